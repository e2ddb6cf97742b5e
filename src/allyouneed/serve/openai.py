"""The endpoints that clients of OpenAI's API know: /v1/models, completions, chat/completions and embeddings."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from array import array
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError
from allyouneed.predict.answers import Answer, Prompt
from allyouneed.predict.base import best_of
from allyouneed.predict.lm import LMPredictor
from allyouneed.serve.bodies import Chat, Completion, Embeddings, Sampling
from allyouneed.serve.guard import problem
from allyouneed.serve.served import Runs, Served, gathered

SCORED = 1 << 26  # logits that are held for log-probabilities
Scored = list[tuple[int, float | None, list[tuple[int, float]]]]  # of each token: its id, log-probability, likely ones


def routes(runs: Runs) -> APIRouter:
    router, born = APIRouter(prefix="/v1", tags=["OpenAI"]), int(time.time())

    def described(served: Served) -> dict[str, Any]:
        return {"id": served.name, "object": "model", "created": born, "owned_by": "allyouneed", "task": served.task}

    @router.get("/models")
    async def models() -> dict[str, Any]:
        """The runs of this server."""
        return {"object": "list", "data": [described(served) for served in runs.by_name.values()]}

    @router.get("/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """One of them."""
        return described(runs.named(name))

    @router.post("/completions")
    async def completions(body: Completion) -> Any:
        """Continue a text, or translate a sentence."""
        served = runs.find(body.model, ["lm", "translate"], "write texts")
        most = 16 if body.max_tokens is None else body.max_tokens
        if not most and not body.echo:
            raise UserError("max_tokens: 0 needs echo: only the prompt is scored then")
        if body.echo and served.task != "lm":
            raise UserError("echo: the answer of a translator does not continue its prompt; leave it out")
        decode = served.settings({**sampling(body), "max_new": max(1, most), "chat": False})
        writer = TextWriter(served, body, decode, await read_prompts(served, body.prompt, decode))
        return await writer.respond()

    @router.post("/chat/completions")
    async def chat(body: Chat) -> Any:
        """Answer a chat."""
        served = runs.named(body.model)
        predictor = served.run.predictor
        if not isinstance(predictor, LMPredictor) or not predictor.processor.chat:
            raise UserError(f"{served.name} has no chat template: ask /v1/completions")
        if body.top_logprobs is not None and not body.logprobs:
            raise UserError("top_logprobs: it needs logprobs = true")
        if body.max_tokens and body.max_completion_tokens:
            raise UserError("max_tokens and max_completion_tokens are the same: give one of them")
        most = body.max_completion_tokens or body.max_tokens
        decode = served.settings({**sampling(body), **({"max_new": most} if most else {})})
        messages = [{"role": one.role.replace("developer", "system"), "content": one.text} for one in body.messages]
        served.texts("".join(message["content"] for message in messages))
        read = served.checked(await asyncio.to_thread(predictor.read_chat, messages, decode))
        return await ChatWriter(served, body, decode, [("", read)]).respond()

    @router.post("/embeddings")
    async def embeddings(body: Embeddings) -> Any:
        """Vectors of texts."""
        served = runs.named(body.model)
        vectors, tokens = await served.vectors(served.texts(body.input), "last", "")
        data = [
            {
                "object": "embedding",
                "index": i,
                "embedding": in_base64(one) if body.encoding_format == "base64" else one,
            }
            for i, one in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": served.name, "usage": usage}

    return router


def in_base64(vector: list[float]) -> str:
    return base64.b64encode(array("f", vector).tobytes()).decode()


def sampling(body: Sampling) -> dict[str, Any]:
    """What a request says of sampling, as settings of [decode]."""
    if body.stream_options is not None and not body.stream:
        raise UserError("stream_options: it needs stream = true")
    samples = bool(body.temperature) or body.top_p is not None or body.top_k is not None
    if body.beam is not None and samples:
        raise UserError("beam: a beam search does not sample; leave temperature, top_p and top_k out")
    given = {name: getattr(body, name) for name in ("top_p", "top_k", "beam", "alpha", "length_penalty", "seed")}
    found = {name: value for name, value in given.items() if value is not None}
    if body.beam is not None:
        found["method"] = "beam" if body.beam > 1 else "greedy"
    elif body.temperature == 0 or samples:
        found["method"] = "greedy" if body.temperature == 0 else "sample"
    if samples:
        found["temperature"] = 1.0 if body.temperature is None else body.temperature
    if body.stop is not None:
        found["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    return {**found, "n_best": body.n} if body.n > 1 else found


async def read_prompts(served: Served, prompt: Any, decode: DecodeConfig) -> list[tuple[str, Prompt]]:
    """Each prompt with its text."""
    several = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    served.texts([one if isinstance(one, str) else "" for one in several])
    predictor, tokenizer, found = served.run.predictor, served.run.predictor.tokenizer, []
    for one in several:
        if isinstance(one, str):
            found.append((one, await served.read(one, decode)))
        elif not isinstance(predictor, LMPredictor):
            raise UserError("prompt: a translator reads a sentence, not tokens")
        elif max(one) >= len(tokenizer):
            raise UserError(f"prompt: there is no token {max(one)} in a vocabulary of {len(tokenizer)}")
        else:
            found.append((tokenizer.decode(one), served.checked(predictor.read_ids(one, decode))))
    return found


class TextWriter:
    """The answers to the prompts of one request of /v1/completions, at once or as they are written."""

    prefix, object, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, served: Served, body: Any, decode: DecodeConfig, asked: list[tuple[str, Prompt]]) -> None:
        self.served, self.body, self.decode, self.asked = served, body, decode, asked
        self.tokenizer = served.run.predictor.tokenizer
        self.head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": served.name}
        self.written = 0  # tokens

    async def respond(self) -> Any:
        if self.body.stream:
            if len(self.asked) > 1:
                raise UserError(f"stream: one prompt is streamed, but {len(self.asked)} are given; leave it out")
            events = self._events()
            first = await anext(events)  # what is refused before it has a status of its own
            return StreamingResponse(self._sent(first, events), media_type="text/event-stream")
        found = await gathered([self._answer(read) for _, read in self.asked])
        choices = [await self._choice(i, k, one) for i, each in enumerate(found) for k, one in enumerate(each)]
        return {**self.head, "object": self.object, "choices": choices, "usage": self._usage()}

    def _usage(self) -> dict[str, int]:
        read = sum(len(prompt.ids) for _, prompt in self.asked)
        return {"prompt_tokens": read, "completion_tokens": self.written, "total_tokens": read + self.written}

    async def _answer(self, read: Prompt) -> list[Answer]:
        """The answers to a prompt."""
        scored_only = getattr(self.body, "max_tokens", None) == 0
        answer = Answer("", [], 0.0, "length") if scored_only else await self.served.answer(read, self.decode)
        each = [answer, *answer.others]
        self.written += sum(len(one.whole) for one in each)
        return each

    async def _events(self) -> AsyncGenerator[str, None]:
        """The events of a stream. Log-probabilities come with the end of an answer."""
        read, shown, each = self.asked[0][1], [""] * self.decode.n_best, list[Answer]()
        if self.served.worker.writes and getattr(self.body, "max_tokens", None) != 0:
            async with aclosing(self.served.worker.write(read, self.decode, pieces=True)) as results:
                async for result in results:
                    if isinstance(result, Answer):
                        each = [self.served.ended(result), *result.others]
                        self.written = sum(len(one.whole) for one in each)
                        continue
                    k, piece = result
                    if not shown[k] and (opening := self._opening()):
                        yield self._event(self._delta(0, k, opening))
                    shown[k] += piece
                    yield self._event(self._delta(0, k, self._part(piece)))
        for k, one in enumerate(each or await self._answer(read)):
            if not shown[k] and (opening := self._opening()):
                yield self._event(self._delta(0, k, opening))
            logprobs, rest = await self._logprobs(0, one), one.text[len(shown[k]) :]
            more = {"logprobs": logprobs} if logprobs else {}
            yield self._event(self._delta(0, k, self._part(rest), finish_reason=one.reason, **more))
        if self._tells_usage:
            yield self._event(None)
        yield "data: [DONE]\n\n"

    async def _sent(self, first: str, events: AsyncGenerator[str, None]) -> AsyncIterator[str]:
        async with aclosing(events):
            try:
                yield first
                async for event in events:
                    yield event
            except Exception as error:  # the status is sent already
                said = str(error) if isinstance(error, UserError) else "the answer was interrupted by an error"
                yield f"data: {problem(500, said).decode()}\n\n"

    @property
    def _tells_usage(self) -> bool:
        return self.body.stream_options is not None and self.body.stream_options.include_usage

    def _event(self, choice: dict[str, Any] | None) -> str:
        fields: dict[str, Any] = {"choices": [] if choice is None else [choice]}
        if self._tells_usage:
            fields["usage"] = self._usage() if choice is None else None
        return f"data: {json.dumps({**self.head, 'object': self.chunk, **fields}, ensure_ascii=False)}\n\n"

    def _opening(self) -> Any:
        """What comes before the first piece of a streamed answer, if anything does."""
        return {"text": self.asked[0][0]} if self.body.echo else None

    def _part(self, piece: str) -> dict[str, Any]:
        return {"text": piece}

    def _delta(self, i: int, k: int, part: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {**part, "index": i * self.decode.n_best + k, "logprobs": None, "finish_reason": None, **more}

    async def _choice(self, i: int, k: int, answer: Answer) -> dict[str, Any]:
        text = (self.asked[i][0] if self.body.echo else "") + answer.text
        return self._delta(i, k, {"text": text}, finish_reason=answer.reason, logprobs=await self._logprobs(i, answer))

    async def _logprobs(self, i: int, answer: Answer) -> dict[str, Any] | None:
        if (most := self.body.logprobs) is None:
            return None
        scored = await self._scored(i, answer, most, self.body.echo)
        token, stream, offsets = self.tokenizer.token, self.tokenizer.stream(), [0]
        for id, *_ in scored:
            offsets.append(offsets[-1] + len(stream.add(id)))
        likely = [None if p is None else {token(other): value for other, value in best} for _, p, best in scored]
        return {
            "tokens": [token(id) for id, *_ in scored],
            "token_logprobs": [p for _, p, _ in scored],
            "top_logprobs": likely if most else None,
            "text_offset": offsets[:-1],
        }

    async def _scored(self, i: int, answer: Answer, most: int, echo: bool = False) -> Scored:
        """The log-probability of each token of an answer, and with echo of its prompt, beside the likeliest ones. They
        are computed for this answer alone, so that they are the same whatever was written beside it."""
        predictor: Any = self.served.run.predictor
        read, tokens, before = self.asked[i][1], answer.whole, Scored()
        if echo:
            first, *rest = read.ids
            read, tokens, before = replace(read, ids=[first]), [*rest, *tokens], [(first, None, [])]
        if len(tokens) * len(self.tokenizer) > SCORED:
            raise UserError(f"logprobs: {len(tokens):,} tokens are too many; ask for fewer")

        def compute() -> Scored:
            rows = predictor.steps(read, tokens)[:, : len(self.tokenizer)].log_softmax(-1)
            return [(id, float(row[id]), best_of(row, most) if most else []) for id, row in zip(tokens, rows)]

        return before + (await self.served.worker.call(compute) if tokens else [])


class ChatWriter(TextWriter):
    """The answers of /v1/chat/completions."""

    prefix, object, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def _opening(self) -> Any:
        return {"delta": {"role": "assistant", "content": ""}}

    def _part(self, piece: str) -> dict[str, Any]:
        return {"delta": {"content": piece} if piece else {}}

    async def _choice(self, i: int, k: int, answer: Answer) -> dict[str, Any]:
        message = {"message": {"role": "assistant", "content": answer.text}}
        return self._delta(i, k, message, finish_reason=answer.reason, logprobs=await self._logprobs(i, answer))

    async def _logprobs(self, i: int, answer: Answer) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None

        def named(id: int, p: float | None) -> dict[str, Any]:
            token = self.tokenizer.token(id)
            return {"token": token, "logprob": p, "bytes": list(token.encode())}

        scored = await self._scored(i, answer, self.body.top_logprobs or 0)
        content = [{**named(id, p), "top_logprobs": [named(*one) for one in best]} for id, p, best in scored]
        return {"content": content, "refusal": None}
