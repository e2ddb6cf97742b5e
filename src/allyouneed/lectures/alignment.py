"""The alignment matrix: how much the decoder attended to each English word when it wrote each French word
(Bahdanau et al., 2015).

The weights follow the diagonal, except where French puts an adjective after its noun: there they run backwards.
"""

from __future__ import annotations

from typing import Any

from allyouneed.figures import alignment as draw
from allyouneed.lectures.base import Lecture

SENTENCE = "He bought a red car yesterday."
SETTINGS = (
    "data.name=tatoeba-eng-fra", "data.max_length=20", "text.kind=word", "text.vocab=5000",
    "text.joint=false", "model.share=false", "train.steps=1500", "train.batch_tokens=1024", "train.eval_every=500",
)  # fmt: skip


def show(lecture: Lecture) -> dict[str, Any]:
    """A recurrent translator with attention, trained on short sentences of Tatoeba unless a run is given."""
    run = lecture.trained("translate/attention", *SETTINGS)
    found = run.align(SENTENCE)
    best = found.weights.argmax(-1).tolist()
    rows = [
        [word, found.source[at], f"{weights[at]:.2f}"] for word, at, weights in zip(found.target, best, found.weights)
    ]
    lecture.table(["writes", "attends most to", "weight"], rows)
    weights = found.weights.numpy()
    lecture.draw(lambda out: draw(weights, found.source, found.target, out, SENTENCE, found.shown), SENTENCE)
    return {"source": found.source, "target": found.target, "weights": found.weights.tolist()}
