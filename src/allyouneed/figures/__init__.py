"""Arrays -> PNG and SVG, chosen by the suffix of the file. The same numbers give the same bytes."""

from __future__ import annotations

from allyouneed.figures.attention import alignment, heads
from allyouneed.figures.confusion import confusion_matrix
from allyouneed.figures.curves import loss_curve
from allyouneed.figures.positions import sinusoid
from allyouneed.figures.sheet import contact_sheet
from allyouneed.figures.style import check_name
from allyouneed.figures.word_map import word_map

__all__ = [
    "alignment",
    "check_name",
    "confusion_matrix",
    "contact_sheet",
    "heads",
    "loss_curve",
    "sinusoid",
    "word_map",
]
