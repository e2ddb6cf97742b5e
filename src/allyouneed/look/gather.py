"""From a run and a text to the view of a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError
from allyouneed.look.answer import show_alignment, show_answer, show_likely, show_nearest
from allyouneed.look.architecture import show_architecture
from allyouneed.look.attention import Sequences, show_attention
from allyouneed.look.checkpoints import show_checkpoints
from allyouneed.look.gates import show_gates
from allyouneed.look.hand import show_hand
from allyouneed.look.inside import show_inside, show_positions
from allyouneed.look.learning import show_learning
from allyouneed.look.starts import lines, start_image, starts
from allyouneed.look.view import View
from allyouneed.look.vocabulary import show_vocabulary
from allyouneed.look.writing import show_beams, show_writing
from allyouneed.predict.base import Predictor, Traced, Writing
from allyouneed.predict.embed import Embedding
from allyouneed.predict.images import CompressPredictor, ImageReader
from allyouneed.predict.inputs import unknown_note
from allyouneed.predict.words import WordsPredictor
from allyouneed.storage.runfolder import RunFolder

# What is traced for a page.
KINDS = ("weights", "queries", "keys", "values", "embeddings", "inputs", "states", "gates", "layers", "codes")


def look_at(folder: RunFolder, predictor: Predictor, text: Any, decode: DecodeConfig, facts: dict[str, Any]) -> View:
    """What the model computes for a text; without one, what it is and how it has learned. A UserError if the model
    cannot read the text."""
    view, sequences = View(), Sequences()
    asked = text if isinstance(text, str) else "an image"
    view.shown |= {"run": facts, "text": asked, "notes": [], "sequences": sequences.shown}
    view.shown["starts"] = starts(predictor, decode)
    show_architecture(view, predictor.model)
    view.shown["learning"] = show_learning(folder)
    show_positions(view, predictor.model)
    show_vocabulary(view, predictor, text)
    if text is not None and not (isinstance(text, str) and not text):
        ready_image = start_image(text) if isinstance(text, str) and isinstance(predictor, ImageReader) else None
        given = predictor.read(text if ready_image is None else ready_image, decode)
        if "image" in vars(predictor.recipe.model):
            view.shown["grid"] = predictor.recipe.model.grid
        answer = show_answer(view, predictor, given, decode)
        view.shown["notes"] += _notes(predictor.unknown(given), answer.details if answer else {})
        show_alignment(view, predictor, given, decode)
        if isinstance(predictor, Embedding) and len(given) == 1:
            show_nearest(view, predictor, given, lines(predictor, decode))
        if not isinstance(predictor, Writing) or predictor.makes_image:
            show_likely(view, predictor, given, decode)
        if isinstance(predictor, Writing) and answer is not None:
            show_writing(view, predictor, given, answer.whole, answer.reason, decode)
            show_beams(view, predictor, given, decode)
        found: dict[str, Traced] = {}
        try:
            # Logits are scores for word vectors and for image codes; elsewhere there may be very many.
            scores = ("logits",) if isinstance(predictor, WordsPredictor | CompressPredictor) else ()
            found = predictor.trace(given, decode, (*KINDS, *scores))
            show_attention(view, sequences, found)
            show_gates(view, sequences, found)
            show_hand(view, sequences, predictor, given, found)
            show_checkpoints(view, folder, predictor, given, decode)
        except UserError as error:
            view.shown["notes"].append(str(error))
        show_inside(view, predictor, text, given, found, decode)
    return view


def _notes(unknown: Sequence[str], details: dict[str, Any]) -> list[str]:
    """What was not read as it was written."""
    notes = []
    if unknown:
        note = unknown_note(unknown)
        notes.append(f"{note[0].upper()}{note[1:]}. The model reads them as one unknown word.")
    if details.get("unread"):
        notes.append(f"The text was cut: its last {details['unread']:,} tokens were not read.")
    if details.get("windows", 1) > 1:
        notes.append(f"The text was read in {details['windows']} windows; what is inside is shown for the first.")
    return notes
