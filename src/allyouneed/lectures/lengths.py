"""Translation score by the length of the sentence: one context vector must hold everything, attention looks back.

The texts are one to six sentences of the built-in phrasebook, one after the other: long texts are not harder, only
longer. Two models that differ only in their attention score are trained on the same texts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from allyouneed.data.builtin.phrasebook import phrasebook
from allyouneed.figures.curves import Panel, plot_curves
from allyouneed.lectures.base import Lecture
from allyouneed.metrics import translation_scores

MOST = 6  # sentences in a text
TRAIN, TEST = 10_000, 100  # texts to learn from; texts of each number of sentences to score
MODELS = {"with attention": "model.score=additive", "one context vector": "model.score=none"}
SETTINGS = ("train.steps=450", "train.batch_tokens=1024", "data.max_length=96", "decode.max_new=96")


def show(lecture: Lecture, settings: Sequence[str] = SETTINGS) -> dict[str, Any]:
    """Train both models and score them by BLEU on texts of each length; minutes on two CPU cores."""
    lecture.out.mkdir(parents=True, exist_ok=True)
    file, tests = write_texts(lecture.out / "lengths.tsv")
    words = [sum(len(source.split()) for source, _ in several) / len(several) for several in tests]
    scores: dict[str, list[float]] = {}
    for name, score in MODELS.items():
        folder = f"lengths-{name.replace(' ', '-')}"
        run = lecture.trained("translate/attention", *settings, score, data=file, name=folder)
        sources, targets = zip(*(pair for several in tests for pair in several))
        answers = run.predict(sources)
        pieces = [slice(start, start + TEST) for start in range(0, len(answers), TEST)]
        scores[name] = [translation_scores(answers[i], targets[i], False)[0].value for i in pieces]
    rows = [[i + 1, f"{words[i]:.1f}", *(f"{s[i]:.1f}" for s in scores.values())] for i in range(MOST)]
    lecture.table(["sentences", "words", *scores], rows)
    curves = [(name, words, values) for name, values in scores.items()]
    panel = Panel("English to Italian, greedy", "words in the source", "BLEU", curves, low=0.0)
    title = "What one vector cannot hold"
    lecture.draw(lambda out: plot_curves([panel], out, title), title)
    return {"words": words, **scores}


def write_texts(path: Path) -> tuple[Path, list[list[tuple[str, str]]]]:
    """Write training texts of one to MOST sentences; returns the file, and test texts by their number of sentences."""
    rng, parts = random.Random(1), phrasebook()

    def text(split: str, count: int) -> tuple[str, str]:
        pairs = [rng.choice(parts[split]) for _ in range(count)]
        return " ".join(source for source, _ in pairs), " ".join(target for _, target in pairs)

    train = [text("train", 1 + i % MOST) for i in range(TRAIN)]
    tests = [[text("test", count) for _ in range(TEST)] for count in range(1, MOST + 1)]
    path.write_text("".join(f"{source}\t{target}\n" for source, target in train), encoding="utf-8")
    return path, tests
