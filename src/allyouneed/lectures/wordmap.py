"""Words on a map: words with similar neighbours are close, and man → woman has the direction of uncle → aunt.

So woman = man + aunt - uncle: start at man and go from uncle to aunt.
"""

from __future__ import annotations

from typing import Any

from allyouneed.data.builtin.family import ROLES
from allyouneed.errors import UserError
from allyouneed.figures.words import word_map
from allyouneed.lectures.base import Classroom
from allyouneed.metrics.words import unit

SUM = "man + aunt - uncle"


def show(room: Classroom) -> dict[str, Any]:
    """Skip-gram vectors of the built-in text about families, unless a run is given."""
    run = room.trained("wordvectors/skipgram")
    found = run.task.vectors(run.model)  # type: ignore[attr-defined]
    place = {word: row for row, word in enumerate(found.words)}
    couples = [couple for couple in ROLES if set(couple) <= place.keys()]
    if len(couples) < 3:
        raise UserError(f"{room.run} knows fewer than three couples such as uncle and aunt: train on a larger text")
    words = [word for couple in couples for word in couple]
    near = next(run.answers([SUM])).details["nearest"]
    room.table([SUM, "cosine"], [[row["word"], f"{row['cosine']:.3f}"] for row in near[:5]])
    vectors = unit(found.matrix[[place[word] for word in words]])
    word_map(words, vectors, room.picture("wordmap"), arrows=couples, title=f"{SUM} = {near[0]['word']}")
    return {"sum": SUM, "nearest": near, "words": words, "vectors": vectors.tolist()}
