"""Assignment 3: a language model on a small corpus, looked at prefix by prefix, and its body under a classifier of
opinions that has few labels to learn from.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from allyouneed.data.builtin.corpus import corpus
from allyouneed.data.builtin.opinions import opinions
from allyouneed.data.examples import LabelledText
from allyouneed.errors import UserError
from allyouneed.figures.bars import spread_bars
from allyouneed.figures.style import BLUE, ORANGE
from allyouneed.figures.token_table import Row, token_table
from allyouneed.lectures.base import Lecture, check_words
from allyouneed.predict.lm import LMPredictor
from allyouneed.run import Run

SENTENCE = "The smooth blue lake became choppy in the wind."
SETTINGS = (
    "model.context=64", "text.vocab=5000", "train.steps=800", "train.batch_tokens=1024", "train.eval_every=400",
)  # fmt: skip
FINE = ("train.steps=60", "train.eval_every=20", "train.warmup=10", "train.lr=2e-3")
COUNTS, SEEDS = (30, 100), (1, 2, 3)
PART = 3  # one line of so many of the built-in corpus
TOGETHER, TIMES = 4, 30  # opinions in a review; reviews that have an opinion
TEST, VALID = 200, 60  # opinions held out from the text and from the labelled ones
# With one of these words an opinion may say the opposite of its other words.
TURNS = {
    "ago", "although", "anything", "before", "but", "cannot", "even", "far", "first", "never", "neither", "nobody",
    "not", "now", "these", "told", "used", "wish",
}  # fmt: skip
SCRATCH, PRETRAINED = "from scratch", "pretrained"
READ, LABEL = "prefix: what the model reads", "label: the next word"


def show(lecture: Lecture, settings: Sequence[str] = SETTINGS, fine: Sequence[str] = FINE) -> dict[str, Any]:
    """A GPT nano on sentences without labels, unless a language model or a BERT is given; then the classifiers."""
    lecture.out.mkdir(parents=True, exist_ok=True)
    plain = plain_opinions()
    text = write_text(lecture.out / "assignment.txt", plain[TEST + VALID :])
    run = lecture.trained("lm/gpt", *settings, data=text, name="assignment-lm")
    numbers: dict[str, Any] = {}
    if run.recipe.task_kind == "lm":
        numbers["prefixes"] = predict(lecture, run, lecture.text or SENTENCE)
    else:
        lecture.tell("A BERT has no next word: there is no table of prefixes. Its body reads the opinions.")
    return {**numbers, **classify(lecture, run, plain, fine)}


def predict(lecture: Lecture, run: Run, text: str) -> list[dict[str, Any]]:
    """Every prefix of the sentence with its label, and what the model says after it."""
    tokenizer = run.processor.tokenizer
    check_words(tokenizer, text)
    given, _ = run.read(text)
    if len(given.ids) < 2:
        raise UserError(f"'{text}' has no word after its first: give a sentence")
    p = cast(LMPredictor, run.predictor).steps(replace(given, ids=given.ids[:1]), given.ids[1:]).softmax(-1)
    token = lambda id: tokenizer.token(id).replace("\n", "↵").strip()
    names = [token(id) for id in given.ids]
    found, rows = list[dict[str, Any]](), []
    for at, row in enumerate(p):
        label = given.ids[at + 1]
        best = [(token(id), float(row[id])) for id in row.topk(3).indices.tolist()]
        own, rank = float(row[label]), 1 + int((row > row[label]).sum())
        found.append({"prefix": names[: at + 1], "label": names[at + 1], "p": own, "rank": rank, "likely": best})
        boxes = [*names[: at + 2], *[None] * (len(names) - at - 2)]
        says = f"{100 * own:.1f} %; likeliest: {best[0][0]}"
        rows.append(Row(str(at + 1), boxes, [READ] * (at + 1) + [LABEL] * (len(names) - at - 1), says))
    lecture.tell(
        f"""One sentence of {len(names)} tokens gives {len(found)} training examples: each prefix with the word after it
        as its label. They are all learned in one pass, since no position sees what comes after it. The model's first
        choice is the label {sum(row["rank"] == 1 for row in found)} times of {len(found)}."""
    )
    head = ["prefix", "label", "p of the label", "its rank", "the model says"]
    said = [", ".join(f"{word} {100 * value:.0f} %" for word, value in row["likely"]) for row in found]
    cells = [
        [" ".join(row["prefix"]), row["label"], f"{row['p']:.3f}", row["rank"], words]
        for row, words in zip(found, said)
    ]
    lecture.table(head, cells)
    title = "One sentence, many examples: prefix, label, and the probability that the model gives it"
    colours = {READ: "#d4ebf7", LABEL: ORANGE}
    lecture.draw(lambda out: token_table(rows, colours, out, title), title, "prefixes")
    return found


def classify(lecture: Lecture, run: Run, plain: Sequence[LabelledText], settings: Sequence[str]) -> dict[str, Any]:
    """Accuracy on held-out opinions after few labelled ones, from scratch and from the body of the run."""
    paths = {split: lecture.out / f"assignment-{split}.tsv" for split in ("valid", "test")}
    test, valid, rest = plain[:TEST], plain[TEST : TEST + VALID], plain[TEST + VALID :]
    write_labelled(valid, VALID, 0, paths["valid"])
    write_labelled(test, TEST, 0, paths["test"])
    data = [f"data.{split}_path={path}" for split, path in paths.items()]
    recipe = f"classify/{run.recipe.model_kind}"
    groups: dict[str, dict[str, list[float]]] = {}
    for count in COUNTS:
        group = groups[f"{count} labelled opinions"] = {SCRATCH: [], PRETRAINED: []}
        for seed in SEEDS:
            path = lecture.out / f"assignment-{count}-{seed}.tsv"
            write_labelled(rest, count, seed, path)
            for name, start in ((SCRATCH, ()), (PRETRAINED, (f"train.init={run.folder.path}",))):
                own = (*settings, *data, *start, f"train.seed={seed}")
                folder = f"assignment-{name.replace(' ', '-')}-{count}-{seed}"
                made = lecture.trained(recipe, *own, data=path, name=folder, own=True)
                group[name].append(next(s.value for s in made.scores()["test"] if s.name == "accuracy"))
    means = {of: {name: sum(values) / len(values) for name, values in runs.items()} for of, runs in groups.items()}
    rows = [
        [of, name, ", ".join(f"{value:.1f}" for value in values), f"{means[of][name]:.1f}"]
        for of, runs in groups.items() for name, values in runs.items()
    ]  # fmt: skip
    gains = "; ".join(f"{of}: {mean[PRETRAINED] - mean[SCRATCH]:+.1f} points" for of, mean in means.items())
    unknown = 100 * unknown_part(corpus()["train"], [example.text for example in test])
    lecture.tell(
        f"""The same small classifier learns from few labelled opinions, positive or negative ones without a negation,
        once from random numbers and once from the body of the language model; {len(SEEDS)} seeds, each with other
        examples, and {TEST} opinions to test on that no model has read. Pretraining changes the mean
        accuracy by: {gains}. Its body reads with the vocabulary that
        it was trained with. So the text without labels must have the words of the opinions: {unknown:.0f} % of theirs
        do not stand in the built-in corpus alone, and a body cannot know what is one <unk> to it. Here that text has
        opinions, too, {TOGETHER} by one person in a row, who likes a thing or does not; no label stands beside them."""
    )
    lecture.table(["learned from", "start", "accuracy of each seed", "mean"], rows)
    labels = [example.label for example in test]
    guess = 100 * max(labels.count(label) for label in set(labels)) / len(labels)
    title = "Few labels: a classifier from scratch, and on a pretrained body"
    colours = {SCRATCH: ORANGE, PRETRAINED: BLUE}
    lecture.draw(lambda out: spread_bars(groups, colours, out, title, "accuracy (%)", guess), title, "accuracy")
    lecture.tell(
        """The same with a model of another library: ayn import it and give the run with --run, or train the recipe
        classify/sentiment-hf, which starts from an imported BERT and reads film reviews."""
    )
    return {"accuracy": groups, "unknown": unknown}


def plain_opinions() -> list[LabelledText]:
    """The built-in opinions that are positive or negative and say so without a turn, in a fixed order."""
    found = [example for split in opinions().values() for example in split if example.label != "neutral"]
    found = [example for example in found if not TURNS & set(_words(example.text.lower()))]
    random.Random(1).shuffle(found)
    return found


def write_text(path: Path, plain: Sequence[LabelledText]) -> Path:
    """A part of the built-in corpus, and reviews: opinions of one person in a row, without labels. One per line."""
    rng, lines = random.Random(1), corpus()["train"].splitlines()
    lines = [line for at, line in enumerate(lines) if at % PART == 0 or line == SENTENCE]
    for label in sorted({example.label for example in plain}):
        same = [example.text for example in plain if example.label == label]
        for _ in range(TIMES):
            rng.shuffle(same)
            lines += [" ".join(same[i : i + TOGETHER]) for i in range(0, len(same), TOGETHER)]
    rng.shuffle(lines)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_labelled(examples: Sequence[LabelledText], count: int, seed: int, path: Path) -> None:
    """Some opinions with their labels, drawn at random."""
    chosen = random.Random(seed).sample(examples, count)
    path.write_text("".join(f"{example.text}\t{example.label}\n" for example in chosen), encoding="utf-8")


def unknown_part(text: str, others: Sequence[str]) -> float:
    """The part of the words of `others` that do not stand in the text."""
    known, words = set(_words(text)), [word for other in others for word in _words(other)]
    return sum(word not in known for word in words) / len(words)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)
