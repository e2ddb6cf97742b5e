"""Texts to start from: those of the lectures and of the built-in data that a run knows every word of."""

from __future__ import annotations

import numpy as np

from allyouneed.config import DecodeConfig
from allyouneed.data.builtin.shapes import Shape, draw
from allyouneed.errors import UserError
from allyouneed.predict.base import Predictor
from allyouneed.predict.images import ImageReader

MOST = 6
TEXTS = {
    "lm": ("Attention is all you need", "The animal", "The dog sees the", "The king eats", "The old woman", "ROMEO:"),
    "translate": (
        "I am Italian.",
        "Je suis étudiant",
        "The boys ate a cake.",
        "Are our sisters English?",
        "I am tired.",
    ),
    "pretrain": (
        "My dog is [MASK].",
        "the dog [MASK] in the garden",
        "she goes to the [MASK] and swims",
        "the man goes to the bank . ||| he needs [MASK] .",
    ),
    "classify": (
        "The film was wonderful.",
        "The bus was neither awful nor cheap.",
        "Is the bread tasty?",
    ),
    "tag": ("Doctor Carter moved to Sydney .", "Anna lives in Rome", "Please ask Mark Carter for the book ."),
    "answer": (
        "Who bought the bicycle? ||| Mia was tired on Sunday. Peter bought the bicycle in Dublin.",
        "Where did Peter buy the bicycle? ||| Mia was tired on Sunday. Peter bought the bicycle in Dublin.",
    ),
    "embed": ("I am tired. ||| Io sono stanco.", "the dog sleeps", "She reads a good book."),
    "wordvectors": ("king", "king - man + woman", "man + aunt - uncle", "queen"),
    "draw": ("a small red circle", "a large blue square", "a small red circle above a large blue square"),
}
# Images have names, by which they can be asked for.
SHAPES = {
    f"{size} {colour} {form}": Shape(form, colour, size, x, y)
    for size, colour, form, x, y in (
        ("large", "red", "ring", 12.0, 14.0),
        ("large", "blue", "square", 18.0, 17.0),
        ("small", "green", "triangle", 9.0, 20.0),
        ("large", "black", "cross", 16.0, 16.0),
    )
}


def start_image(name: str) -> np.ndarray | None:
    """The image with this name, (H, W, 3) bytes; None: there is none."""
    return draw([SHAPES[name]]) if name in SHAPES else None


def starts(predictor: Predictor, decode: DecodeConfig) -> list[str]:
    """Up to MOST of the texts for this task, whose words it all knows."""
    if isinstance(predictor, ImageReader):
        return list(SHAPES)
    return [text for text in TEXTS.get(predictor.recipe.task_kind, ()) if _knows(predictor, text, decode)][:MOST]


def _knows(predictor: Predictor, text: str, decode: DecodeConfig) -> bool:
    try:
        predictor.read(text, decode)
    except UserError:
        return False
    return not unknown_words(predictor, text)


def unknown_words(predictor: Predictor, text: str) -> list[str]:
    """The words of a text that the tokenizer of a run does not know."""
    plain = text.replace("[MASK]", " ").replace("|||", " ")
    for tokenizer in list(predictor.processor.tokenizers.values())[:1]:  # that of the source
        # Some tokenizers take the first word of a text as any other, with a space before it.
        unknown = min((tokenizer.unknown(given) for given in (plain, f" {plain}")), key=len)
        return [unit.strip() for unit in unknown if unit.strip().isalnum()]
    return []
