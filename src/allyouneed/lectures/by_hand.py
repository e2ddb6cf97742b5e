"""Attention by hand: every number from the words to the next word, for a sentence or for the examples of the slides.

Without a run the vectors of a sentence are made by a rule, so that they can be checked with pencil and paper. With one
they are those of its first layer and head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from allyouneed.errors import UserError
from allyouneed.figures.grids import Grid, plot_grids
from allyouneed.figures.style import visible
from allyouneed.lectures.base import Lecture
from allyouneed.lectures.hand_examples import (
    EXAMPLES,
    Steps,
    choose,
    numbers,
    take_steps,
    tell_choice,
    tell_query,
    tell_square,
    whole_numbers,
)  # fmt: skip
from allyouneed.nn.masks import Mask
from allyouneed.nn.scores import scaled_dot
from allyouneed.run import Run

WIDTH, KEYS, MOST = 6, 4, 10  # of a word and of a key; words in a sentence
SENTENCE = "The dog sees the cat"
SENTENCES = {"lm": "The dog sees the cat.", "translate": "I am Italian.", "pretrain": "The aunt went to the [MASK]."}


def show(lecture: Lecture) -> dict[str, Any]:
    """A sentence of the reader's own, one through a trained run, or all examples and then one sentence."""
    if lecture.run:
        return _of_run(lecture, lecture.trained("lm/gpt"))
    found = {} if lecture.text else {name: as_lists(example(lecture)) for name, example in EXAMPLES.items()}
    return {**found, "sentence": as_lists(_of_words(lecture, lecture.text or SENTENCE))}


def as_lists(found: dict[str, Any]) -> dict[str, Any]:
    """Tensors as lists, with null for what is not finite: JSON has no -∞."""
    return {name: _listed(value) for name, value in found.items()}


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return as_lists(value)
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_listed(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _of_words(lecture: Lecture, text: str) -> dict[str, Any]:
    words = text.split()
    if not 2 <= len(words) <= MOST:
        raise UserError(f"attention by hand needs a sentence of 2 to {MOST} words, not {len(words)}")
    x = torch.stack([whole_numbers(word, WIDTH) for word in words])
    matrices = {name: whole_numbers(f"W_{name}", WIDTH, KEYS) for name in "QKV"}
    q, k, v = (x @ matrix for matrix in matrices.values())
    lecture.tell(
        f"""Attention by hand for "{text}". Nothing is learned here: the vectors of the words and the matrices are -1, 0
        or 1, drawn by a fixed rule from their names, so that every number can be checked. A word is {WIDTH} numbers,
        its query, key and value {KEYS} each: q = x W^Q, k = x W^K, v = x W^V."""
    )
    steps = _tell_steps(lecture, words, x, q, k, v, causal=True)
    out = whole_numbers("W_O", KEYS, WIDTH)
    logits, logs = choose(steps.out[-1] @ out, x)
    lecture.tell(
        f"""From z of the last word to a choice: z W^O is {WIDTH} wide again, and its dot product with the vector of
        each word is the logit of that word. These matrices know nothing, so the choice means nothing."""
    )
    index = tell_choice(lecture, logits, logs, words, MOST)
    found = {"words": words, "x": x, **matrices, "W^O": out, "q": q, "k": k, "v": v, **steps._asdict()}
    return {**found, "logits": logits, "log_probs": logs, "index": index}


def _of_run(lecture: Lecture, run: Run) -> dict[str, Any]:
    kind = run.recipe.task_kind
    text = lecture.text or SENTENCES[kind]
    if (score := run.recipe.model.score) != "scaled_dot":
        raise UserError(f"the steps of this topic are q · k / √dₖ, but {run.folder.path} has model.score = {score}")
    run.read(text)
    known = run.predictor.tokenizer if kind != "translate" else run.processor.tokenizers["tokenizer.json"]
    if not known.knows_all and (unknown := known.unknown(text.replace("[MASK]", ""))):
        raise UserError(f"these words are not in the vocabulary of {run.folder.path}: {', '.join(map(shown, unknown))}")
    found = run.trace(text, "embeddings", "queries", "keys", "values", "scores", "weights", "heads", "logits")
    path = next(name for name in found if name.endswith(".weights")).removesuffix(".weights")
    words = [shown(token) for token in found[f"{path}.weights"].axes[1].labels]
    if not 2 <= len(words) <= 4 * MOST:
        raise UserError(f"attention by hand needs a sentence of 2 to {4 * MOST} tokens, not {len(words)}")
    q, k, v = (found[f"{path}.{name}"].value for name in ("queries", "keys", "values"))
    x = next(value.value for name, value in found.items() if name.endswith("embeddings"))
    causal = bool(found[f"{path}.scores"].value.isneginf().any())
    lecture.tell(
        f""""{text}" in {run.folder.path}: the first layer ({path}), its first head of {q.size(0)}. The words enter as
        x, {x.size(-1)} wide, positions included; q, k and v are {q.size(-1)} wide. The tables show the first numbers of
        each; `ayn look` shows every layer and head."""
    )
    steps = _tell_steps(lecture, words, x, q[0], k[0], v[0], causal)
    apart = float((steps.weights - found[f"{path}.weights"].value[0]).abs().max())
    lecture.tell(
        f"The weights that the model used and those computed here from q and k alone differ by {apart:.1g} at most."
    )
    numbered = {"words": words, "x": x, "q": q[0], "k": k[0], "v": v[0], **steps._asdict()}
    return {**as_lists(numbered), "apart": apart, **as_lists(_tell_next(lecture, run, found))}


def shown(token: str) -> str:
    """A token without the space before it; a newline as a sign."""
    return visible(token.strip(" ") or token)


def _tell_next(lecture: Lecture, run: Run, found: dict[str, Any]) -> dict[str, Any]:
    """What the model says at a [MASK], or after the last token that it has read."""
    logits = next(value for name, value in found.items() if name.endswith("logits") and value.axes[0].labels)
    names, tokens = run.predictor.tokenizer, logits.axes[0].labels
    at = tokens.index("[MASK]") if "[MASK]" in tokens else 0 if run.recipe.task_kind == "translate" else len(tokens) - 1
    row = logits.value[at, : len(names)]
    lecture.tell(f"""The choice at "{shown(tokens[at])}": the highest logits of {len(row):,}.""")
    logs = row.log_softmax(-1)
    index = tell_choice(lecture, row, logs, [shown(names.token(id)) for id in range(len(row))])
    return {"logits": row, "log_probs": logs, "index": index}


def _tell_steps(
    lecture: Lecture, words: Sequence[str], x: Tensor, q: Tensor, k: Tensor, v: Tensor, causal: bool
) -> Steps:
    steps, free = take_steps(q, k, v, Mask(causal=causal)), scaled_dot(q, k)
    rows = [[word, *(numbers(part[i]) for part in (x, q, k, v))] for i, word in enumerate(words)]
    lecture.table(["word", "x", "q", "k", "v"], rows)
    scale = f"{math.sqrt(q.size(-1)):.3g}"
    hidden = "what comes later is -∞ (j ≤ i), " if causal else "nothing is hidden, "
    lecture.tell(
        f"""Each query times each key is a score, which is divided by √{q.size(-1)} = {scale}; {hidden}the softmax makes
        weights of a row, which add up to one, and z is the sum of the values with these weights. The rows are queries,
        the columns keys. First the scores, then the weights, then all steps of the last word."""
    )
    if len(words) <= MOST:
        tell_square(lecture, words, steps.scores, f"score / {scale}")
        tell_square(lecture, words, steps.weights, "weight")
    tell_query(lecture, words, q, k, v, steps, len(words) - 1)
    parts = [("1  words X", x), ("2  queries Q", q), ("3  keys K", k), ("4  values V", v)]
    squares = [("5  Q Kᵀ", steps.dots), (f"6  divided by {scale}", free)] + [("7  masked", steps.scores)] * causal
    end = len(squares) + 5
    lines = [
        [Grid(name, part.numpy()) for name, part in parts],
        [Grid(name, np.array(square), words) for name, square in squares],
        [Grid(f"{end}  softmax", steps.weights.numpy(), words, weights=True), Grid(f"{end + 1}  Z", steps.out.numpy())],
    ]
    title = f"Attention step by step: “{' '.join(words)}”"
    lecture.draw(lambda out: plot_grids(lines, words, out, title), title)
    return steps
