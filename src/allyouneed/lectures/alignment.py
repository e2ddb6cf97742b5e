"""The alignment matrix: how much the decoder attended to each French word when it wrote each English word
(Bahdanau et al., 2015).

The weights follow the diagonal, except where one English word has several French ones, or the order is another: a
colour stands after its noun.
"""

from __future__ import annotations

from typing import Any

from allyouneed.figures import alignment as draw
from allyouneed.lectures.base import Lecture, check_words
from allyouneed.run import Run

SENTENCES = ("La lettre a été signée hier.", "Il a acheté une voiture rouge hier.")
SETTINGS = ("data.name=french", "text.joint=false", "model.share=false")


def show(lecture: Lecture) -> dict[str, Any]:
    """A recurrent translator with attention, trained on the built-in set `french` unless a run is given."""
    run = lecture.trained("translate/attention", *SETTINGS, name="french-attention")
    lecture.tell(
        """The decoder writes one word after the other. For each it looks back at the source: the weights of its
        attention say how much it takes from each word, and those of one row add up to 1."""
    )
    if lecture.text:
        return {"sentences": [_show(lecture, run, lecture.text)]}
    return {"sentences": [_show(lecture, run, text, f"{number or ''}") for number, text in enumerate(SENTENCES)]}


def _show(lecture: Lecture, run: Run, sentence: str, part: str = "") -> dict[str, Any]:
    processor: Any = run.processor
    check_words(processor.reader, sentence)
    found = run.align(sentence)
    lecture.tell(f'"{sentence}" becomes "{found.answer or run.predict(sentence)}"')
    rows = []
    for word, weights in zip(found.target, found.weights):
        best = int(weights.argmax())
        rows.append([word, found.source[best], f"{float(weights[best]):.2f}"])
    lecture.table(["writes", "attends most to", "weight"], rows)
    weights = found.weights.numpy()
    lecture.draw(lambda out: draw(weights, found.source, found.target, out, sentence, found.shown), sentence, part)
    return {"source": found.source, "target": found.target, "weights": found.weights.tolist()}
