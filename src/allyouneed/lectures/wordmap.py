"""Words on a map: words with similar neighbours are close, and man → woman has the direction of uncle → aunt.

So woman = man + aunt - uncle: start at man and go from uncle to aunt.
"""

from __future__ import annotations

from typing import Any

from allyouneed.errors import UserError
from allyouneed.figures.word_map import word_map
from allyouneed.lectures.base import Lecture

SUM = "man + aunt - uncle"


def show(lecture: Lecture) -> dict[str, Any]:
    """Skip-gram vectors of the built-in text about families, unless a run is given."""
    run = lecture.trained("wordvectors/skipgram")
    found = run.map_words()
    if not found.arrows:
        raise UserError(f"{lecture.run} knows fewer than three couples such as uncle and aunt: train on a larger text")
    near = run.answers([SUM])[0].details["nearest"]
    lecture.table([SUM, "cosine"], [[row["word"], f"{row['cosine']:.3f}"] for row in near[:5]])
    title = f"{SUM} = {near[0]['word']}"
    lecture.draw(lambda out: word_map(found.words, found.vectors, out, arrows=found.arrows, title=title), title)
    return {"sum": SUM, "nearest": near, "words": found.words, "vectors": found.vectors.tolist()}
