"""From a run and a text to the view of a page."""

from __future__ import annotations

from typing import Any

from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError
from allyouneed.look.answer import show_alignment, show_answer, show_likely
from allyouneed.look.architecture import show_architecture
from allyouneed.look.attention import Sequences, show_attention
from allyouneed.look.hand import kinds_for, show_hand
from allyouneed.look.learning import show_learning
from allyouneed.look.view import View
from allyouneed.predict.base import Predictor
from allyouneed.storage.runfolder import RunFolder


def look_at(folder: RunFolder, predictor: Predictor, text: Any, decode: DecodeConfig, facts: dict[str, Any]) -> View:
    """What the model computes for a text; without one, what it is and how it has learned. A UserError if the model
    cannot read the text."""
    view, sequences = View(), Sequences()
    view.shown |= {
        "run": facts,
        "text": text if isinstance(text, str) else "an image",
        "notes": [],
        "sequences": sequences.shown,
    }
    view.shown["architecture"] = show_architecture(predictor.model)
    view.shown["learning"] = show_learning(folder)
    if text is not None and not (isinstance(text, str) and not text):
        given = predictor.read(text, decode)
        if "image" in vars(predictor.recipe.model):
            view.shown["grid"] = predictor.recipe.model.grid
        show_answer(view, predictor, given, decode)
        show_alignment(view, predictor, given, decode)
        show_likely(view, predictor, given, decode)
        try:
            found = predictor.trace(given, decode, kinds_for(predictor))
            show_attention(view, sequences, found)
            show_hand(view, sequences, predictor, given, found)
        except UserError as error:
            view.shown["notes"].append(str(error))
    return view
