"""From a run and a text to the view of a page."""

from __future__ import annotations

from typing import Any

from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError
from allyouneed.look.answer import show_answer, show_likely
from allyouneed.look.architecture import show_architecture
from allyouneed.look.attention import Sequences, show_attention
from allyouneed.look.learning import show_learning
from allyouneed.look.view import View
from allyouneed.look.writing import show_beams, show_writing, with_end
from allyouneed.predict.base import Predictor, Writing
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
        answer = show_answer(view, predictor, given, decode)
        if not isinstance(predictor, Writing) or predictor.makes_image:
            show_likely(view, predictor, given, decode)
        elif answer is not None:
            tokens = with_end(predictor, given, answer, decode)
            show_writing(view, predictor, given, tokens, answer.reason, decode)
            show_beams(view, predictor, given, decode)
        try:
            show_attention(view, sequences, predictor.trace(given, decode, ("weights",)))
        except UserError as error:
            view.shown["notes"].append(str(error))
    return view
