"""The alignment matrix: how much the decoder attended to each French word when it wrote each English word
(Bahdanau et al., 2015).

The weights follow the diagonal, except where one English word has several French ones, or the order is another: a
colour stands after its noun.
"""

from __future__ import annotations

from typing import Any

from allyouneed.figures import alignment as draw
from allyouneed.lectures.base import Lecture, check_words

SENTENCES = ("La lettre a été signée hier.", "Il a acheté une voiture rouge hier.")
SETTINGS = ("data.name=french", "text.joint=false", "model.share=false")


def show(lecture: Lecture) -> dict[str, Any]:
    """A recurrent translator with attention, trained on the built-in set `french` unless a run is given."""
    run = lecture.trained("translate/attention", *SETTINGS, name="french-attention")
    lecture.tell(
        """The decoder writes one word after the other. For each it looks back at the source: the weights of its attention
        say how much it takes from each word, and those of one row add up to 1."""
    )
    numbers = []
    for number, sentence in enumerate([lecture.text] if lecture.text else SENTENCES, 1):
        check_words(run.predictor.source, sentence)
        found = run.align(sentence)
        best = found.weights.argmax(-1).tolist()
        rows = [
            [word, found.source[at], f"{weights[at]:.2f}"]
            for word, at, weights in zip(found.target, best, found.weights)
        ]
        lecture.tell(f'"{sentence}" becomes "{run.predict(sentence)}"')
        lecture.table(["writes", "attends most to", "weight"], rows)
        weights, part = found.weights.numpy(), "" if number == 1 else str(number)
        lecture.draw(lambda out: draw(weights, found.source, found.target, out, sentence, found.shown), sentence, part)
        numbers.append({"source": found.source, "target": found.target, "weights": found.weights.tolist()})
    return {"sentences": numbers}
