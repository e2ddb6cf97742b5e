"""One endpoint per task."""

import asyncio
import base64
import binascii
import io
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from allyouneed.errors import UserError
from allyouneed.predict.inputs import BETWEEN, MARKS
from allyouneed.predict.words import WordsPredictor
from allyouneed.serve.bodies import Image, Nearest, Next, OnePair, OneText, Question, Settings, Trace, Vectors
from allyouneed.serve.served import Runs, Served

LONGEST_TRACE = 4000  # characters of a text of which all values are given
EMBEDDED = ("answer", "classify", "embed", "lm", "pretrain", "tag")
TEXTS = (*EMBEDDED, "draw", "translate", "wordvectors")


def texts(served: Served, body: Any) -> list[Any]:
    return served.texts(body.input)


def pairs(served: Served, body: OnePair) -> list[Any]:
    """Texts, or pairs of them as one text each."""
    first = served.texts(body.input)
    return first if body.second is None else joined(first, served.texts(body.second))


def question(served: Served, body: Question) -> list[Any]:
    return joined(served.texts(body.question), served.texts(body.context))


def joined(first: list[str], second: list[str]) -> list[Any]:
    if len(first) != len(second):
        raise UserError(f"second: there are {len(first)} first texts and {len(second)} second ones")
    if any(mark in text for text in first for mark in MARKS):
        raise UserError(f"the first of two texts has a tab or {BETWEEN} in it, which stands between them: leave it out")
    return [f"{one}\t{other}" for one, other in zip(first, second)]


def images(served: Served, body: Image) -> list[Any]:
    try:
        given = served.several(body.image)
        return [base64.b64decode(one.rpartition("base64,")[2], validate=True) for one in given]
    except (binascii.Error, ValueError):
        raise UserError("image: it is not in base64") from None


def routes(runs: Runs) -> APIRouter:
    router = APIRouter(tags=["tasks"])

    async def answers(served: Served, body: Settings, inputs: Sequence[Any]) -> dict[str, Any]:
        return {"model": served.name, "answers": await served.answers(inputs, served.settings(body.decode))}

    def endpoint(task: str, what: str, about: str, body_class: Any, read: Any, path: str = "") -> None:
        @router.post(path or f"/{task}", name=task, description=about)
        async def asked(body: body_class) -> dict[str, Any]:
            served = runs.find(body.model, [task], what)
            return await answers(served, body, read(served, body))

    endpoint("translate", "translate", "Translate sentences.", OneText, texts)
    endpoint("classify", "classify texts", "The class of each text, or of each pair of texts.", OnePair, pairs)
    endpoint("tag", "tag words", "Entities, or a tag per word.", OneText, texts)
    endpoint("answer", "answer questions", "The piece of a text that answers a question.", Question, question)
    endpoint("pretrain", "fill in hidden words", "The words for each [MASK].", OneText, texts, "/fill")
    endpoint("recognize", "recognize images", "The class of each image.", Image, images)
    endpoint("compress", "make codes of images", "The codes of each image.", Image, images)

    @router.post("/next")
    async def following(body: Next) -> dict[str, Any]:
        """The likely next words of a text or, with a second text, whether it follows the first."""
        if body.second is not None:
            served = runs.find(body.model, ["pretrain"], "tell whether a text follows another")
            return await answers(served, body, pairs(served, body))
        served, found = runs.find(body.model, ["lm"], "continue texts"), []
        decode = served.settings(body.decode)
        for text in served.texts(body.input):
            read = await served.read(text, decode)
            (said,) = await served.worker.call(partial(served.run.predictor.says, read, decode))
            likely = said.likely(body.most)
            found.append({"next": [{"token": name, "id": id, "probability": p} for name, p, id in likely]})
        return {"model": served.name, "answers": found}

    @router.post("/embed")
    async def embed(body: Vectors) -> dict[str, Any]:
        """The vector of each text, from any run whose body reads texts."""
        served = runs.find(body.model, EMBEDDED, "make vectors of texts")
        vectors, _ = await served.vectors(served.texts(body.input), body.layers, body.pool)
        return {"model": served.name, "answers": [{"vector": vector} for vector in vectors]}

    @router.post("/nearest")
    async def nearest(body: Nearest) -> dict[str, Any]:
        """The lines that are nearest to each text, or the words nearest to "man + aunt - uncle"."""
        served = runs.find(body.model, (*EMBEDDED, "wordvectors"), "find what is near")
        asked, lines = served.texts(body.input), body.lines
        if isinstance(served.run.predictor, WordsPredictor):
            if lines:
                raise UserError("lines: a run of word vectors finds its own words; leave them out")
            return {"model": served.name, "answers": await served.answers(asked, served.run.decode())}
        if not any(line.strip() for line in lines):
            raise UserError("lines: give the texts that are searched")
        served.texts(max(lines, key=len))

        def compute() -> list[Any]:
            return [served.run.nearest(text, lines, body.most, body.layers, body.pool) for text in asked]

        found = [{"nearest": [one._asdict() for one in near]} for near in await served.worker.call(compute)]
        return {"model": served.name, "answers": found}

    @router.post("/draw")
    async def draw(body: OneText) -> dict[str, Any]:
        """Draw each caption: images as PNG files in base64, the best first."""
        served = runs.find(body.model, ["draw"], "draw")
        decode, found = served.settings(body.decode), []
        for text in served.texts(body.input):
            answer = await served.answer(await served.read(text, decode), decode)
            found.append({"images": [{"png": png(one.result), **one.details} for one in (answer, *answer.others)]})
        return {"model": served.name, "answers": found}

    @router.post("/tokenize")
    async def tokenize(body: OneText) -> dict[str, Any]:
        """The tokens of each text, as the run reads it."""
        served = runs.find(body.model, TEXTS, "read texts")
        processor = served.run.processor
        if not processor.tokenizers:
            raise UserError(f"{served.name} has no tokenizer: its words are read by their letters")
        tokenizer = processor.tokenizers["tokenizer.json"]
        found = await asyncio.to_thread(tokenizer.encode_batch, served.texts(body.input))
        shown = [{"ids": ids, "tokens": [tokenizer.token(id) for id in ids]} for ids in found]
        return {"model": served.name, "answers": shown}

    @router.post("/trace")
    async def trace(body: Trace) -> Response:
        """What the model computes for a text: values by the path of their module, with their axes."""
        served = runs.find(body.model, TEXTS, "read texts")
        served.settings(body.decode)
        (text,) = served.texts(body.input)
        if len(text) > LONGEST_TRACE:
            raise UserError(f"input: a trace is made of at most {LONGEST_TRACE:,} characters")

        def compute() -> Response:
            found = served.run.trace(text, *body.kinds, **body.decode)
            if (numbers := sum(one.value.numel() for one in found.values())) > served.limits.numbers:
                raise UserError(f"these are {numbers:,} numbers: name kinds, such as weights, or give a shorter text")
            values = {
                name: {"axes": [axis._asdict() for axis in one.axes], "value": plain(one.value)}
                for name, one in found.items()
            }
            return JSONResponse({"model": served.name, "values": values})

        made: Response = await served.worker.call(compute)
        return made

    return router


def plain(value: Any) -> Any:
    """Numbers as JSON has them: null for what is not finite, such as the score of a key that is hidden."""
    if bool(value.isfinite().all()):
        return value.tolist()
    found: Any = np.where(value.isfinite().numpy(), value.numpy().astype(object), None)
    return found.tolist()


def png(image: Any) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()
