"""Attention with numbers: its steps for given vectors, and the examples of the slides.

The notes print words and weights but few vectors. The vectors here are made by rules that are said with each example,
small enough to be checked by hand; what is computed from them comes from the functions of the library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from allyouneed.figures.grids import number_text
from allyouneed.lectures.base import Lecture
from allyouneed.nn.attention import attend, self_attend
from allyouneed.nn.heads import LMHead
from allyouneed.nn.masks import Mask
from allyouneed.nn.scores import dot
from allyouneed.nn.trace import Trace
from allyouneed.randomness import draw, make_key


class Steps(NamedTuple):
    """The steps of attention; rows are queries, columns are keys."""

    dots: Tensor  # q · k
    scores: Tensor  # / √dₖ, and -inf where the mask hides a key
    weights: Tensor  # softmax
    out: Tensor  # the weighted sum of the values


def take_steps(q: Tensor, k: Tensor, v: Tensor, mask: Mask = Mask()) -> Steps:
    """q (Tq, K), k (Tk, K), v (Tk, any width) through `attend`."""
    trace = Trace("scores")
    out, weights = attend(q[None, None], k[None, None], v[None, None], mask, weights=True, trace=trace)
    return Steps(dot(q, k), trace["scores"][0, 0], weights[0, 0], out[0, 0])


def whole_numbers(name: str, *shape: int, most: int = 1) -> Tensor:
    """Whole numbers from -most to most, drawn by the letters of a name: the same name, the same numbers."""
    bits = draw(make_key(*name.encode()), torch.arange(1, math.prod(shape) + 1))
    return (bits.remainder(2 * most + 1) - most).float().view(shape)


def choose(hidden: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """The logits of a hidden state (D,) for words with these vectors (V, D), and their log-softmax."""
    head = LMHead(words.size(1), len(words), tie=nn.Embedding.from_pretrained(words))
    logits = head(hidden).detach()
    return logits, logits.log_softmax(-1)


def numbers(values: Tensor) -> str:
    """A vector in a cell of a table: up to six numbers, or the first three of more."""
    shown = values.tolist() if len(values) <= 6 else values[:3].tolist()
    return " ".join(map(number_text, shown)) + " …" * (len(values) > 6)


def tell_choice(lecture: Lecture, logits: Tensor, logs: Tensor, names: Sequence[str], most: int = 6) -> int:
    """A table of the highest logits, or of all if they are few, and what argmax takes. Returns its index."""
    shown = range(len(names)) if len(names) <= most else logits.topk(most).indices.tolist()
    rows = [[i, names[i], f"{logits[i]:.2f}", f"{logs[i]:.3f}", f"{logs[i].exp():.3f}"] for i in shown]
    lecture.table(["index", "word", "logit", "log-probability", "probability"], rows)
    best = int(logits.argmax())
    lecture.tell(
        f"""Argmax takes index {best}, "{names[best]}". It is the same index in every column: the softmax keeps the
        order. The log-probability is the logit minus log Σ exp(logit) = {torch.logsumexp(logits, -1):.3f}. Only the
        last column adds up to one."""
    )
    return best


def tell_query(lecture: Lecture, words: Sequence[str], q: Tensor, k: Tensor, v: Tensor, steps: Steps, at: int) -> None:
    """The chapter's table of one query: word, q, k, v, score, its scaled form, softmax, softmax · v, sum."""
    rows = [
        [
            word,
            numbers(q[at]) if i == at else "",
            numbers(k[i]),
            numbers(v[i]),
            number_text(float(steps.dots[at, i])),
            number_text(float(steps.scores[at, i])),
            f"{steps.weights[at, i]:.3f}",
            numbers(steps.weights[at, i] * v[i]),
            numbers(steps.out[at]) if i == at else "",
        ]
        for i, word in enumerate(words)
    ]
    scale = f"{math.sqrt(q.size(-1)):.4g}"
    head = ["word", "q", "k", "v", "score q · k", f"score / {scale}", "softmax", "softmax · v", "sum z"]
    lecture.table(head, rows)


def tell_square(lecture: Lecture, words: Sequence[str], table: Tensor, corner: str) -> None:
    """A matrix with a word for each row and each column."""
    lecture.table([corner, *words], [[word, *map(number_text, row)] for word, row in zip(words, table.tolist())])


# The examples, in the order of the notes


def show_shares(lecture: Lecture) -> dict[str, Any]:
    """0.93, 0.01 and 0.06, which cosines cannot give; and 0.6, 0.1, 0.2 and 0.1 of a memory of four."""
    found = {}
    for shares in ((0.93, 0.01, 0.06), (0.6, 0.1, 0.2, 0.1)):
        logs = torch.tensor(shares).log()
        q, k = torch.tensor([[2.0, 0, 0, 0]]), torch.zeros(len(shares), 4)
        k[:, 0] = logs - logs.min()  # q · k / √4 is the first number of the key
        v = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])[: len(shares)]
        steps = take_steps(q, k, v)
        lecture.tell(
            f"""A query looks into a memory of {len(shares)} keys. Which scores give it the weights
            {", ".join(f"{share:g}" for share in shares)}? Only their differences count: score 1 - score 2 =
            ln({shares[0]:g} / {shares[1]:g}) = {math.log(shares[0] / shares[1]):.2f}. Here q = (2, 0, 0, 0), and the
            keys have these scores as their first number, with 0 for the lowest."""
        )
        tell_query(lecture, [f"key {i + 1}" for i in range(len(shares))], q, k, v, steps, 0)
        found[f"memory of {len(shares)}"] = steps._asdict()
    q = torch.tensor([[1.0, 0.0]])
    _, most = attend(
        q[None, None], torch.stack([q[0], -q[0], -q[0]])[None, None], q.expand(3, 2)[None, None],
        weights=True, score="cosine",
    )  # fmt: skip
    best = float(most[0, 0, 0, 0])
    lecture.tell(
        f"""Could the scores be cosines? They lie between -1 and 1, so that two of them differ by 2 at most, and 0.93
        against 0.01 needs 4.53. The best case is one key that points where the query does and two that point away:
        the softmax of (1, -1, -1) gives the first key {best:.3f}."""
    )
    return {**found, "cosines at best": best}


def show_objects(lecture: Lecture) -> dict[str, Any]:
    """Three objects that are classified with help from a memory."""
    traits, classes = ["can be eaten", "is hard", "is alive"], ["fruit", "tool", "animal"]
    memory = {"apple": (2, 1, 0), "cherry": (2, 0, 0), "saw": (0, 3, 0), "spoon": (0, 2, 0), "dog": (0, 0, 3)}
    belongs = [0, 0, 1, 1, 2]
    objects = {"a pear": (2, 1, 0), "a hammer": (0, 3, 0), "a cat": (0, 0, 3)}
    q, k = (torch.tensor([*several.values()], dtype=torch.float32) for several in (objects, memory))
    steps = take_steps(q, k, torch.eye(3)[belongs])
    lecture.tell(
        f"""Three objects are to be classified with help from a memory. An object is a query, what is known of it:
        {", ".join(traits)}, each from 0 to 3. The memory has keys with the same three numbers, and as the value of each
        its class. (The chapter calls the object a key; it is the query.)"""
    )
    rows = [
        [name, numbers(q[i]), *(f"{w:.2f}" for w in steps.weights[i]), classes[int(steps.out[i].argmax())]]
        for i, name in enumerate(objects)
    ]
    lecture.table(["object", "query", *(f"weight of {name}" for name in memory), "largest sum"], rows)
    found = [classes[int(row.argmax())] for row in steps.out]
    shares = ", ".join(f"{name} {row.max():.2f} {kind}" for name, row, kind in zip(objects, steps.out, found))
    lecture.tell(f"What comes back is the weighted sum of the classes: {shares}.")
    return {"q": q, "k": k, "v": torch.eye(3)[belongs], **steps._asdict(), "classes": found}


def show_action(lecture: Lecture) -> dict[str, Any]:
    """ "Action gets results" as the table of the chapter, for the first two words."""
    words, (q, k, v) = ["Action", "gets", "results"], (whole_numbers(f"Action {part}", 3, 64) for part in "qkv")
    steps = take_steps(q, k, v)
    lecture.tell(
        """"Action gets results": q, k and v are 64 wide, as in the paper, so that the scale is √64 = 8. Their numbers
        are -1, 0 or 1, drawn by a fixed rule; the table shows the first three."""
    )
    for at in (0, 1):
        tell_query(lecture, words, q, k, v, steps, at)
    other = (steps.dots / 3).softmax(-1)
    lecture.tell(
        f"""The chapter would divide by 3, the number of words. The scale belongs to the width, not to the length: with
        3 the largest weight of the first word would be {other[0].max():.2f} instead of {steps.weights[0].max():.2f}."""
    )
    return {"q": q, "k": k, "v": v, **steps._asdict()}


def show_thinking(lecture: Lecture) -> dict[str, Any]:
    """ "Thinking Machines": two scores, / 8, softmax, z1."""
    q, k = torch.ones(2, 64), torch.tensor([[1.75], [1.5]]).expand(2, 64)
    v = torch.stack([torch.ones(64), torch.arange(64) % 3 - 1.0])
    steps = take_steps(q, k, v)
    lecture.tell(
        f""""Thinking Machines", 64 wide. Each query is all ones, the first key all 1.75, the second all 1.5: q1 · k1 =
        {steps.dots[0, 0]:g}, q1 · k2 = {steps.dots[0, 1]:g}, divided by 8 {steps.scores[0, 0]:g} and
        {steps.scores[0, 1]:g}. A difference of 2 is a ratio of e² = {math.e**2:.2f} between the weights."""
    )
    tell_query(lecture, ["Thinking", "Machines"], q, k, v, steps, 0)
    return {"q": q, "k": k, "v": v, **steps._asdict()}


def show_festival(lecture: Lecture) -> dict[str, Any]:
    """ "Happy mid autumn festival": j <= i beside j < i."""
    words = ["Happy", "mid", "autumn", "festival"]
    q, k, v = (whole_numbers(f"festival {part}", 4, 4, most=2) for part in "qkv")
    seen, past = take_steps(q, k, v, Mask(causal=True)), Mask(torch.ones(1, 1, 4, 4, dtype=torch.bool).tril(-1))
    earlier = take_steps(q, k, v, past)
    lecture.tell(
        """"Happy mid autumn festival", read by a decoder: the scores of what comes later are -∞ before the softmax, so
        that their weights are 0. First j ≤ i: a word sees itself and the words before it."""
    )
    tell_square(lecture, words, seen.scores, "scores, j ≤ i")
    tell_square(lecture, words, seen.weights, "weights, j ≤ i")
    softmax = earlier.scores.softmax(-1)
    broken = int(softmax.isnan().all(-1).sum())
    lecture.tell(
        f"""Now j < i, as on the slide, which hides the diagonal too. "Happy" has nothing to see: a softmax of only -∞
        is 0 / 0, not a number. That happens in {broken} of 4 rows. (Where a query may see nothing, `attend` of this
        library gives zeros.)"""
    )
    tell_square(lecture, words, earlier.scores, "scores, j < i")
    tell_square(lecture, words, softmax, "weights, j < i")
    return {"q": q, "k": k, "v": v, **seen._asdict(), "j < i": earlier.scores, "rows without weights": broken}


# How much a word has of water, of money, and of other things.
MEANINGS = {"river": (3, 0, 0), "bank": (1, 1, 0), "account": (0, 3, 0)}
SENTENCES = ("she sat by the river bank", "the captain has a bank account")


def show_bank(lecture: Lecture) -> dict[str, Any]:
    """ "bank" beside "river" and before "account", before and after self-attention without parameters."""
    lecture.tell(
        """How "bank" gets more river in it: y_i = Σ_j softmax_j(x_i · x_j) x_j, with nothing learned. The vectors say
        how much a word has of water, of money and of other things: river (3, 0, 0), account (0, 3, 0), bank (1, 1, 0),
        every other word (0, 0, 1)."""
    )
    rows, found = [], {}
    goals = {name: torch.tensor(MEANINGS[name], dtype=torch.float32) for name in ("river", "account")}
    for text in SENTENCES:
        words = text.split()
        x = torch.tensor([MEANINGS.get(word, (0, 0, 1)) for word in words], dtype=torch.float32)
        at = words.index("bank")
        for mask, name in ((Mask(causal=True), "j ≤ i"), (Mask(), "all")):
            after = self_attend(x[None], mask)[0, at]
            cosines = [
                [float(cosine_similarity(vector, goal, dim=0)) for vector in (x[at], after)] for goal in goals.values()
            ]
            rows.append([text, name, *(f"{before:.2f} → {now:.2f}" for before, now in cosines)])
            found[f"{text}, {name}"] = dict(zip(goals, cosines))
    lecture.table(["sentence", "bank sees", "cosine with river", "cosine with account"], rows)
    lecture.tell(
        """The left number is before, the right one after. Beside "river", bank turns towards the water. "account"
        comes after it: with j ≤ i bank cannot see it, and turns only where all words are seen."""
    )
    return found


def show_am(lecture: Lecture) -> dict[str, Any]:
    """Six logits, of which index 5 is "am"."""
    names, table = ["a", "student", "thanks", "I", "<eos>", "am"], torch.tensor(
        [[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [-1, 0, 1], [1, 1, 1]]
    )  # fmt: skip
    hidden = torch.tensor([1.0, 1.5, 0.5])
    logits, logs = choose(hidden, table)
    lecture.tell(
        f"""From the output of the decoder to a word: logits = h W, one per word. Here h = ({numbers(hidden)}), and the
        vectors of the six words are whole numbers. The slide writes log_probs above its Softmax; but softmax gives
        probabilities, and log-softmax log-probabilities."""
    )
    best = tell_choice(lecture, logits, logs, names)
    return {"words": names, "table": table, "hidden": hidden, "logits": logits, "log_probs": logs, "index": best}


EXAMPLES = {
    "shares": show_shares,
    "objects": show_objects,
    "action": show_action,
    "thinking": show_thinking,
    "festival": show_festival,
    "bank": show_bank,
    "am": show_am,
}
