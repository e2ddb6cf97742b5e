"""BERT: how words are hidden, what it thinks of a hidden word, and which passage follows; what goes in and what each
task reads of what comes out (Devlin et al., 2019).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from allyouneed.data.batches.masked import Passages
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.figures.bars import share_bars
from allyouneed.figures.style import BLUE, GREEN, ORANGE, PINK, SKY
from allyouneed.figures.token_table import Row, token_table
from allyouneed.lectures.base import Lecture, check_words
from allyouneed.randomness import make_key
from allyouneed.run import MASK, Run
from allyouneed.tasks.pretrain import Pretrain

SETTINGS = ("train.steps=2400", "train.eval_every=800")
SENTENCE = f"My dog is {MASK}."
PASSAGE = "The man went to the store. He bought a gallon of milk."  # which is hidden in
FIRST = f"The man went to {MASK} store."
SECONDS = (f"He bought a gallon {MASK} milk.", f"Penguins {MASK} flightless birds.")
EPOCHS, MANY = 10, 2000  # that are shown; that are counted
PANELS = 6  # hidden words of which the candidates are drawn
HIDDEN, OTHER, KEPT = "[MASK]", "another word", "kept, but predicted too"
COLOURS = {HIDDEN: BLUE, OTHER: ORANGE, KEPT: GREEN}


def show(lecture: Lecture, settings: Sequence[str] = SETTINGS) -> dict[str, Any]:
    """A narrow BERT, pretrained on the built-in stories unless a run is given."""
    text = lecture.text or SENTENCE
    if MASK not in text:
        raise UserError(f"write {MASK} for the word that is to be found, as in '{SENTENCE}'")
    run = lecture.trained("pretrain/bert", *settings, name="pretrain-bert")
    check_words(run.processor.tokenizer, text.replace(MASK, " "))
    numbers: dict[str, Any] = {"hiding": hide(lecture, run), "candidates": candidates(lecture, run, text)}
    if run.processor.options.next:
        numbers["next"] = follow(lecture, run)
    return {**numbers, "shapes": draw_inside(lecture, run)}


def hide(lecture: Lecture, run: Run) -> dict[str, float]:
    """The passage as the training hides it, epoch after epoch; returns what becomes of the chosen words."""
    ids = run.processor.tokenizer.encode(PASSAGE)
    made = cast(Pretrain, run.task).hide(Passages(Ragged.of([ids]), np.zeros(1, dtype=np.int64)), pairs=False)
    token, one = run.processor.tokenizer.token, np.zeros(1, dtype=np.int64)
    rows: list[Row] = []
    counts: Counter[str] = Counter()
    for epoch in range(MANY):
        tensors = made.collate(one, make_key(run.recipe.train.seed, epoch)).tensors
        after, before = tensors["ids"][0].tolist(), tensors["ids"][0].clone()
        chosen = tensors["chosen"].tolist()
        before[tensors["chosen"]] = tensors["targets"]
        kinds = {at: HIDDEN if after[at] == made.mask else KEPT if after[at] == before[at] else OTHER for at in chosen}
        counts.update(kinds.values())
        if epoch == 0:
            rows.append(Row("the text", [token(id) for id in before.tolist()]))
        if epoch < EPOCHS:
            cells = [token(id) for id in after]
            rows.append(Row(f"epoch {epoch + 1}", cells, [kinds.get(at, "") for at in range(len(cells))]))
    shares = {kind: counts[kind] / counts.total() for kind in COLOURS}
    per_epoch = counts.total() / MANY
    part = run.recipe.task.chosen
    lecture.tell(
        f"""In every epoch other words are chosen: {per_epoch:.0f} of the {len(ids)}, which is {100 * part:g} %. Over
        {MANY:,} epochs, {100 * shares[HIDDEN]:.1f} % of the chosen words became {MASK}, {100 * shares[OTHER]:.1f} %
        another word, and {100 * shares[KEPT]:.1f} % stayed; all of them are predicted.
        [CLS] and [SEP] are never chosen. There is one [SEP] after both sentences: it ends a passage."""
    )
    title = "What is hidden of one text, epoch after epoch"
    lecture.draw(lambda out: token_table(rows, COLOURS, out, title), title, "masks")
    return {**shares, "per epoch": per_epoch}


def candidates(lecture: Lecture, run: Run, text: str) -> list[list[dict[str, Any]]]:
    """The likeliest words of each [MASK]; returns them with their probabilities."""
    answer = run.answers([text.replace(MASK, own_mask(run))])[0]
    found: list[list[dict[str, Any]]] = answer.details["masks"]
    panels = []
    for number, words in enumerate(found, 1):
        rest = 1 - sum(word["probability"] for word in words)
        name = MASK if len(found) == 1 else f"{MASK} number {number}"
        panels.append((name, [*((word["word"], word["probability"]) for word in words), ("all others", rest)]))
    for name, bars in panels:
        lecture.table([name, "probability"], [[word, f"{100 * p:.1f} %"] for word, p in bars])
    first = found[0]
    lecture.tell(
        f"""The words for one {MASK} share one probability: those of all words add up to 100 %. So {first[0]["word"]}
        with {100 * first[0]["probability"]:.0f} % and {first[1]["word"]} with {100 * first[1]["probability"]:.0f} %
        compete. The model has read "{answer.text}" into it, from both sides at once."""
    )
    title = f"Candidates for “{text}”"
    lecture.draw(lambda out: share_bars(panels[:PANELS], out, title, "probability", "all others"), title, "candidates")
    return found


def follow(lecture: Lecture, run: Run) -> dict[str, float]:
    """Whether the milk and the penguins follow the man at the store: p(IsNext) of each."""
    answers = run.answers([f"{FIRST} ||| {second}".replace(MASK, own_mask(run)) for second in SECONDS])
    rows, found = [], {}
    for second, answer in zip(SECONDS, answers):
        p = answer.details["follows"]
        words = ", ".join(masks[0]["word"] for masks in answer.details["masks"])
        rows.append([second, f"{100 * p:.1f} %", f"{100 * (1 - p):.1f} %", "IsNext" if p >= 0.5 else "NotNext", words])
        found[second] = p
    lecture.tell(
        f"""Does B follow A? A is "{FIRST}" One vector, that of [CLS], is asked, while each {MASK} is filled in: one
        pass, two tasks."""
    )
    lecture.table(["B", "IsNext", "NotNext", "the model says", "hidden words"], rows)
    return found


def draw_inside(lecture: Lecture, run: Run) -> dict[str, list[int]]:
    """What is added at the input, and what each task reads of the output; returns the shapes."""
    model, token = run.model, run.processor.tokenizer.token
    text = f"{FIRST} ||| {SECONDS[0]}".replace(MASK, own_mask(run))
    laid, _ = run.read(text)
    words = [token(id) for id in laid.ids]
    shapes = {
        "token": list(model.body.embedding.tokens.weight.shape),
        "segment": list(model.body.segments.weight.shape) if model.body.segments is not None else [],
        "position": [model.body.limit or len(words), model.body.width],
        "sum": [len(words), model.body.width],
    }
    vocab, width = shapes["token"]
    by = lambda name: " x ".join(f"{size:,}" for size in shapes[name])
    rows = [Row("input", words, sign="↓"), Row("token", [f"E {word}" for word in words], ["t"] * len(words),
                f"{by('token')}: a row per token", "+")]  # fmt: skip
    if shapes["segment"]:
        sides = ["AB"[segment] for segment in laid.segments]
        rows.append(Row("segment", [f"E {side}" for side in sides], sides, f"{by('segment')}: A or B", "+"))
    rows += [
        Row("position", [f"E {at}" for at in range(len(words))], ["p"] * len(words), f"{by('position')}", "="),
        Row("sum", [f"x {at}" for at in range(len(words))], ["x"] * len(words), f"{by('sum')}, then a norm"),
    ]
    colours = {"t": "#fdf0d0", "A": "#d4ebf7", "B": "#f5d9e8", "p": "#d9efe7", "x": "#eeeeee"}
    title = "What BERT reads: three vectors per token, added"
    lecture.draw(lambda out: token_table(rows, colours, out, title, legend=False), title, "inputs")
    _draw_outputs(lecture, run, text, words, laid.side)
    lecture.tell(
        f"""A token enters as the sum of three learned vectors of {width} numbers. The segment tells A from B, not where
        a token is; the position tells where. Every token leaves as a vector of {width} numbers, and a task reads those
        that it needs: a hidden word the one at its place ({width} to {vocab:,} scores), the other tasks those of the
        figure. The last three heads are new in a run that starts from this one."""
    )
    return shapes


def _draw_outputs(lecture: Lecture, run: Run, text: str, words: list[str], side: list[int]) -> None:
    config, width, vocab = run.recipe.model, run.model.body.width, len(run.processor.tokenizer)
    mask, mean = own_mask(run), run.processor.options.next
    answer = run.answers([text])[0] if mean else run.answers([text.replace(" ||| ", " ")])[0]
    filled = iter(found[0]["word"] for found in answer.details["masks"])
    said = "IsNext" if answer.details.get("follows", 0) >= 0.5 else "NotNext"
    rest = [None] * (len(words) - 1)
    hidden = [next(filled) if word == mask else None for word in words]
    rows = [
        Row("hidden words", hidden, ["hidden words"] * len(words), f"softmax({width} → {vocab:,} words)"),
        Row("next passage", [said if mean else "–", *rest], ["next passage"] * len(words),
            f"tanh({width} → {width}), softmax({width} → 2)"),
        Row("class of the text", ["class", *rest], ["class of the text"] * len(words),
            f"tanh({width} → {width}), softmax({width} → classes)"),
        Row("entities", ["tag" if at >= 0 else None for at in side], ["entities"] * len(words),
            f"softmax({width} → tags), each word"),
        Row("answer in B", ["0 | 1" if at == 1 else None for at in side], ["answer in B"] * len(words),
            "0 or 1; or where it begins and ends"),
        Row("output", ["C", *(f"T {at}" for at in range(1, len(words)))], ["out"] * len(words),
            f"{len(words)} x {width}", "↑"),
        Row("", [f"BERT: {config.layers} blocks, {config.heads} heads, {width} wide, no mask"], ["body"],
            sign="↑"),
        Row("input", words),
    ]  # fmt: skip
    colours = {"hidden words": BLUE, "next passage": ORANGE, "class of the text": GREEN, "entities": SKY,
               "answer in B": PINK, "out": "#eeeeee", "body": "#fdf0d0"}  # fmt: skip
    title = "What each task reads of BERT's output"
    lecture.draw(lambda out: token_table(rows, colours, out, title, legend=False), title, "outputs")


def own_mask(run: Run) -> str:
    """How the run writes a hidden word."""
    tokenizer = run.processor.tokenizer
    return tokenizer.token(tokenizer.need("mask", "to hide words"))
