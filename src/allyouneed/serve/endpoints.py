"""One endpoint per task."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from PIL import Image as PillowImage

from allyouneed.data.formats.pixels import to_image
from allyouneed.errors import UserError
from allyouneed.predict.inputs import BETWEEN, MARKS
from allyouneed.predict.words import WordsPredictor
from allyouneed.serve.bodies import Image, Nearest, Next, OnePair, OneText, Question, Settings, Trace, Vectors
from allyouneed.serve.served import Runs, Served

LONGEST_TRACE = 4000  # characters of a text of which all values are given


def routes(runs: Runs) -> APIRouter:
    router = APIRouter(tags=["tasks"])

    async def answered(served: Served, body: Settings, inputs: Sequence[Any]) -> dict[str, Any]:
        return {"model": served.name, "answers": await served.answers(inputs, served.settings(body.decode))}

    @router.post("/translate")
    async def translate(body: OneText) -> dict[str, Any]:
        """Translate sentences."""
        served = runs.find(body.model, ["translate"], "translate")
        return await answered(served, body, texts_of(served, body.input))

    @router.post("/classify")
    async def classify(body: OnePair) -> dict[str, Any]:
        """The class of each text, or of each pair of texts."""
        served = runs.find(body.model, ["classify"], "classify texts")
        return await answered(served, body, pairs_of(served, body))

    @router.post("/tag")
    async def tag(body: OneText) -> dict[str, Any]:
        """Entities, or a tag per word."""
        served = runs.find(body.model, ["tag"], "tag words")
        return await answered(served, body, texts_of(served, body.input))

    @router.post("/answer")
    async def answer(body: Question) -> dict[str, Any]:
        """The piece of a text that answers a question."""
        served = runs.find(body.model, ["answer"], "answer questions")
        served.check_texts([body.question, body.context])
        check_marks([body.question])
        return await answered(served, body, [f"{body.question}\t{body.context}"])

    @router.post("/fill")
    async def fill(body: OneText) -> dict[str, Any]:
        """The words for each [MASK]."""
        served = runs.find(body.model, ["pretrain"], "fill in hidden words")
        return await answered(served, body, texts_of(served, body.input))

    @router.post("/next")
    async def following(body: Next) -> dict[str, Any]:
        """The likely next words of a text or, with a second text, whether it follows the first."""
        if body.second is not None:
            served = runs.find(body.model, ["pretrain"], "tell whether a text follows another")
            return await answered(served, body, pairs_of(served, body))
        served, found = runs.find(body.model, ["lm"], "continue texts"), []
        decode = served.settings(body.decode)
        for text in texts_of(served, body.input):
            read = await served.read(text, decode)
            (said,) = await served.compute(lambda read=read: served.run.predictor.says(read, decode))
            found.append({"next": [{"token": name, "id": id, "probability": p} for name, p, id in said.likely(body.most)]})
        return {"model": served.name, "answers": found}

    @router.post("/embed")
    async def embed(body: Vectors) -> dict[str, Any]:
        """The vector of each text, from any run whose body reads texts."""
        served = runs.find(body.model, EMBEDDED, "make vectors of texts")
        vectors, _ = await served.vectors(texts_of(served, body.input), body.layers, body.pool)
        return {"model": served.name, "answers": [{"vector": vector} for vector in vectors]}

    @router.post("/nearest")
    async def nearest(body: Nearest) -> dict[str, Any]:
        """The lines that are nearest to each text, or the words nearest to "man + aunt - uncle"."""
        served = runs.find(body.model, [*EMBEDDED, "wordvectors"], "find what is near")
        texts = texts_of(served, body.input)
        if isinstance(served.run.predictor, WordsPredictor):
            if body.lines:
                raise UserError("lines: a run of word vectors finds its own words; leave them out")
            return {"model": served.name, "answers": await served.answers(texts, served.run.decode())}
        if not body.lines:
            raise UserError("lines: give the texts that are searched")
        lines = [line for line in body.lines if line.strip()]
        served.check_texts([*lines[:1], max(lines, key=len, default="")])

        def compute() -> list[dict[str, Any]]:
            found = [served.run.nearest(text, body.lines, body.most, body.layers, body.pool) for text in texts]
            return [{"nearest": [{"line": o.line, "text": o.text, "cosine": o.cosine} for o in near]} for near in found]

        return {"model": served.name, "answers": await served.compute(compute)}

    @router.post("/recognize")
    async def recognize(body: Image) -> dict[str, Any]:
        """The class of each image."""
        served = runs.find(body.model, ["recognize"], "recognize images")
        return await answered(served, body, images_of(served, body.image))

    @router.post("/compress")
    async def compress(body: Image) -> dict[str, Any]:
        """The codes of each image."""
        served = runs.find(body.model, ["compress"], "make codes of images")
        return await answered(served, body, images_of(served, body.image))

    @router.post("/draw")
    async def draw(body: OneText) -> dict[str, Any]:
        """Draw each caption: images as PNG files in base64, the best first."""
        served = runs.find(body.model, ["draw"], "draw")
        decode, texts = served.settings(body.decode), texts_of(served, body.input)
        found = []
        for text in texts:
            answer = await served.answer(await served.read(text, decode), decode)
            found.append({"images": [{"png": png(one.image), **one.details} for one in (answer, *answer.others)]})
        return {"model": served.name, "answers": found}

    @router.post("/tokenize")
    async def tokenize(body: OneText) -> dict[str, Any]:
        """The tokens of each text, as the run reads it."""
        served = runs.named(body.model) if body.model else runs.find(None, TEXTS, "read texts")
        if not served.run.processor.tokenizers:
            raise UserError(f"{served.name} has no tokenizer")
        tokenizer = getattr(served.run.processor, "reader", served.run.predictor.tokenizer)
        found = [tokenizer.encode(text) for text in texts_of(served, body.input)]
        answers = [{"ids": ids, "tokens": [tokenizer.token(id) for id in ids]} for ids in found]
        return {"model": served.name, "answers": answers}

    @router.post("/trace")
    async def trace(body: Trace) -> dict[str, Any]:
        """What the model computes for a text: values by the path of their module, with their axes."""
        served = runs.named(body.model) if body.model else runs.find(None, TEXTS, "read texts")
        served.settings(body.decode)
        if served.task in ("recognize", "compress"):
            raise UserError(f"{served.name} reads images; its trace is on the page at /")
        served.check_texts([body.input])
        if len(body.input) > LONGEST_TRACE:
            raise UserError(f"input: a trace is made of at most {LONGEST_TRACE:,} characters")
        found = await served.compute(lambda: served.run.trace(body.input, *body.kinds, **body.decode))
        numbers = sum(one.value.numel() for one in found.values())
        if numbers > served.limits.numbers:
            raise UserError(f"these are {numbers:,} numbers: name kinds, such as weights, or give a shorter text")
        values = {
            name: {"axes": [axis._asdict() for axis in one.axes], "value": one.value.tolist()} for name, one in found.items()
        }
        return {"model": served.name, "values": values}

    return router


TEXTS = ("answer", "classify", "draw", "embed", "lm", "pretrain", "tag", "translate", "wordvectors")
EMBEDDED = ("answer", "classify", "embed", "lm", "pretrain", "tag")


def texts_of(served: Served, given: str | list[str]) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    served.check_texts(texts)
    return texts


def pairs_of(served: Served, body: OnePair) -> list[str]:
    first = texts_of(served, body.input)
    if body.second is None:
        return first
    second = texts_of(served, body.second)
    if len(first) != len(second):
        raise UserError(f"second: there are {len(first)} first texts and {len(second)} second ones")
    check_marks(first)
    return [f"{one}\t{other}" for one, other in zip(first, second)]


def check_marks(texts: Sequence[str]) -> None:
    if any(mark in text for text in texts for mark in MARKS):
        raise UserError(f"the first of two texts has a tab or {BETWEEN} in it, which stands between them: leave it out")


def images_of(served: Served, given: str | list[str]) -> list[bytes]:
    several = [given] if isinstance(given, str) else given
    if len(several) > served.limits.texts:
        raise UserError(f"image: {len(several)} images are given, and this server takes {served.limits.texts}")
    try:
        return [base64.b64decode(one.rpartition("base64,")[2], validate=True) for one in several]
    except (binascii.Error, ValueError):
        raise UserError("image: it is not in base64") from None


def png(pixels: Any) -> str:
    file, image = io.BytesIO(), to_image(pixels)
    assert isinstance(image, PillowImage.Image)
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()
