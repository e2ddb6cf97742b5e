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
    if (pixels := getattr(given, "pixels", None)) is not None:
        view.shown["image"] = view.put("image", pixels[0], "uint8")
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
        **({} if answer.image is None else {"image": view.put("answer", answer.image, "uint8")}),
    }
    return answer


def show_nearest(view: View, predictor: Embedding, given: Any, lines: list[str]) -> None:
    """view.shown["nearest"]: lines and their cosines with the text, the nearest first."""

    def nearest(lines: list[str]) -> View:
        vectors = torch.from_numpy(predictor.vectors([*given, *map(predictor.row, lines)]))
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
    weights = view.put("alignment", found.weights, "parts")
    view.shown["alignment"] = vars(found) | {"weights": weights}


def show_likely(view: View, predictor: Predictor, given: Any, decode: DecodeConfig) -> None:
    """view.shown["likely"]: at each position, the most likely predictions; nothing if the task has none."""
    try:
        found = predictor.table(given, decode, LIKELY)
    except UserError:
        return
    rows = [{"token": one.token, "likely": [(word, float(value)) for word, value in one.likely]} for one in found]
    view.shown["likely"] = {"title": predictor.table_heading, "rows": rows}
