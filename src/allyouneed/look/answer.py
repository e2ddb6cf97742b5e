"""The answer to a text or an image, and what the model thought likely."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError
from allyouneed.look.view import View
from allyouneed.predict.answers import Answer
from allyouneed.predict.base import Predictor, answered
from allyouneed.predict.embed import Embedding

LIKELY = 8  # predictions at each position


def show_answer(view: View, predictor: Predictor, given: Any, decode: DecodeConfig) -> Answer | None:
    """view.shown["answer"], or why there is none."""
    pixels = getattr(given, "pixels", None)
    if pixels is not None:
        view.shown["image"] = view.image("image", pixels[0].shape, lambda: pixels[0])
    try:
        (answer,) = answered(predictor.answers([given], decode))
    except UserError as error:
        view.shown["notes"].append(str(error))
        return None
    view.shown["answer"] = {
        "text": answer.text,
        "shown": answer.shown or answer.text,
        "reason": answer.reason,
        "logprob": answer.logprob,
        "details": answer.details,
        "others": [{"text": one.text, "score": one.score or one.logprob} for one in answer.others],
    }
    if (image := answer.image) is not None:
        view.shown["answer"]["image"] = view.image("answer", image.shape, lambda: image)
    return answer


def show_nearest(view: View, predictor: Embedding, given: Any, lines: list[str]) -> None:
    """view.shown["nearest"]: lines and their cosines with the text, the nearest first."""

    def nearest(lines: list[str]) -> View:
        rows = [predictor.row(line) for line in lines]
        vectors = torch.from_numpy(predictor.vectors([*given, *rows]))
        near, other = F.cosine_similarity(vectors[:1], vectors[1:]).tolist(), View()
        other.shown["nearest"] = sorted(zip(lines, near), key=lambda one: -one[1])
        return other

    view.shown |= nearest(lines).shown
    view.questions["nearest"] = nearest


def show_alignment(view: View, predictor: Predictor, given: Any, decode: DecodeConfig) -> None:
    """view.shown["alignment"], if an answer has a source that it attends to."""
    try:
        found = predictor.align(given, decode)
    except UserError:
        return
    weights = view.parts("alignment", found.weights.shape, lambda: found.weights)
    shown = {"source": found.source, "target": found.target, "weights": weights, "shown": found.shown}
    view.shown["alignment"] = shown


def show_likely(view: View, predictor: Predictor, given: Any, decode: DecodeConfig) -> None:
    """view.shown["likely"]: at each position, the most likely predictions; nothing if the task has none."""
    try:
        found = predictor.table(given, decode, LIKELY)
    except UserError:
        return
    view.shown["likely"] = {
        "title": predictor.table_heading,
        "rows": [{"token": one.token, "likely": [(word, float(value)) for word, value in one.likely]} for one in found],
    }
