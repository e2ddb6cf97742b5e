"""The endpoints that clients of OpenAI's API know: /v1/models, completions, chat/completions and embeddings."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from array import array
from collections.abc import AsyncIterator
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
from allyouneed.serve.served import Runs, Served, gathered

SCORED = 1 << 26  # logits that are held for log-probabilities


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
        served = runs.named(body.model)
        if served.task not in ("lm", "translate"):
            raise UserError(f"{served.name} is a run of the task '{served.task}', which does not write texts")
        most = body.max_tokens if body.max_tokens is not None else 16
        if not most and not body.echo:
            raise UserError("max_tokens: 0 needs echo: only the prompt is scored then")
        decode = served.settings({**sampling(body), "max_new": max(1, most), "chat": False})
        asked = await read_prompts(served, body.prompt, decode)
        if body.echo and not isinstance(served.run.predictor, LMPredictor):
            raise UserError("echo: the answer of a translator does not continue its prompt; leave it out")
        return await CompletionWriter(served, body, decode, asked, most).respond()

    @router.post("/chat/completions")
    async def chat(body: Chat) -> Any:
        """Answer a chat."""
        served = runs.named(body.model)
        predictor = served.run.predictor
        if not isinstance(predictor, LMPredictor) or not predictor.processor.chat:
            raise UserError(f"{served.name} has no chat template: ask /v1/completions")
        if body.top_logprobs is not None and not body.logprobs:
            raise UserError("top_logprobs: it needs logprobs = true")
        if None not in (body.max_tokens, body.max_completion_tokens):
            raise UserError("max_tokens and max_completion_tokens are the same: give one of them")
        most = body.max_completion_tokens or body.max_tokens
        decode = served.settings({**sampling(body), **({"max_new": most} if most else {})})
        roles = {"developer": "system"}
        messages = [{"role": roles.get(one.role, one.role), "content": one.text} for one in body.messages]
        served.check_texts([message["content"] for message in messages][:1])
        served.check_texts(["".join(message["content"] for message in messages)])
        read = served.checked(await asyncio.to_thread(predictor.read_chat, messages, decode))
        return await ChatWriter(served, body, decode, [("", read)], decode.max_new).respond()

    @router.post("/embeddings")
    async def embeddings(body: Embeddings) -> Any:
        """Vectors of texts."""
        served = runs.named(body.model)
        texts = [body.input] if isinstance(body.input, str) else body.input
        served.check_texts(texts)
        vectors, tokens = await served.vectors(texts, "last", "")
        if body.encoding_format == "base64":
            shown: list[Any] = [base64.b64encode(array("f", vector).tobytes()).decode() for vector in vectors]
        else:
            shown = vectors
        data = [{"object": "embedding", "index": i, "embedding": one} for i, one in enumerate(shown)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": served.name, "usage": usage}

    return router


def sampling(body: Sampling) -> dict[str, Any]:
    """What a request says of sampling, as settings of [decode]."""
    given = {name: getattr(body, name) for name in ("top_p", "top_k", "beam", "alpha", "length_penalty", "seed")}
    found = {name: value for name, value in given.items() if value is not None}
    if body.n > 1:
        found["n_best"] = body.n
    if body.stop is not None:
        found["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    samples = body.temperature or body.top_p is not None or body.top_k is not None
    if body.beam is not None:
        if samples:
            raise UserError("beam: a beam search does not sample; leave temperature, top_p and top_k out")
        found["method"] = "beam" if body.beam > 1 else "greedy"
    elif body.temperature == 0:
        found["method"] = "greedy"
    elif samples:
        found |= {"method": "sample", "temperature": 1.0 if body.temperature is None else body.temperature}
    if not body.stream and body.stream_options is not None:
        raise UserError("stream_options: it needs stream = true")
    return found


async def read_prompts(served: Served, prompt: Any, decode: DecodeConfig) -> list[tuple[str, Prompt]]:
    """Each prompt with its text."""
    several = prompt if isinstance(prompt, list) and isinstance(prompt[0], str | list) else [prompt]
    served.check_texts([one for one in several if isinstance(one, str)] or [""] * len(several))
    predictor, tokenizer = served.run.predictor, served.run.predictor.tokenizer
    found = []
    for one in several:
        if isinstance(one, str):
            found.append((one, await served.read(one, decode)))
            continue
        if not isinstance(predictor, LMPredictor):
            raise UserError("prompt: a translator reads a sentence, not tokens")
        if max(one) >= len(tokenizer):
            raise UserError(f"prompt: there is no token {max(one)} in a vocabulary of {len(tokenizer)}")
        found.append((tokenizer.decode(one), served.checked(predictor.read_ids(one, decode))))
    return found


class TextWriter:
    """The answers to the prompts of one request, at once or as they are written."""

    object: str
    prefix: str

    def __init__(
        self, served: Served, body: Any, decode: DecodeConfig, asked: list[tuple[str, Prompt]], most: int
    ) -> None:
        self.served, self.body, self.decode, self.asked, self.most = served, body, decode, asked, most
        self.run, self.tokenizer = served.run, served.run.predictor.tokenizer
        self.head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": served.name}

    async def respond(self) -> Any:
        if self.body.stream:
            first = self._stream()
            return StreamingResponse(await _begun(first), media_type="text/event-stream")
        found = await gathered([self._answer(i) for i in range(len(self.asked))])
        choices = [choice for several, _ in found for choice in several]
        return {**self.head, "object": self.object, "choices": choices, "usage": self._usage([n for _, n in found])}

    async def _answer(self, i: int) -> tuple[list[dict[str, Any]], int]:
        """The choices that answer a prompt, and how many tokens they have."""
        text, read = self.asked[i]
        if not self.most:
            blank = Answer("", [], 0.0, "length")
            return [await self._choice(i, 0, blank)], 0
        answer = await self.served.answer(read, self.decode)
        each = [answer, *answer.others]
        return [await self._choice(i, k, one) for k, one in enumerate(each)], sum(len(one.whole) for one in each)

    def _usage(self, written: list[int]) -> dict[str, int]:
        prompts, answers = sum(len(read.ids) for _, read in self.asked), sum(written)
        return {"prompt_tokens": prompts, "completion_tokens": answers, "total_tokens": prompts + answers}

    def _index(self, i: int, k: int) -> int:
        return i * self.decode.n_best + k

    async def _choice(self, i: int, k: int, answer: Answer) -> dict[str, Any]:
        raise NotImplementedError

    def _delta(self, index: int, piece: str, **more: Any) -> dict[str, Any]:
        raise NotImplementedError

    def _opened(self, i: int, k: int) -> list[dict[str, Any]]:
        """What comes before the first piece of an answer."""
        return []

    async def _logprobs(self, i: int, answer: Answer) -> Any:
        return None

    # As they are written

    async def _stream(self) -> AsyncIterator[str]:
        """Events of all prompts as they come. Log-probabilities come with the end of an answer."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        tasks = [asyncio.ensure_future(self._follow(i, queue)) for i in range(len(self.asked))]
        written, left, shown = [0], len(tasks), {"usage": None} if self._wants_usage else {}
        try:
            while left:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                left -= isinstance(item, int)
                if isinstance(item, int):
                    written.append(item)
                else:
                    yield self._event({"choices": [item], **shown})
            if self._wants_usage:
                yield self._event({"choices": [], "usage": self._usage(written)})
            yield "data: [DONE]\n\n"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _wants_usage(self) -> bool:
        return self.body.stream_options is not None and self.body.stream_options.include_usage

    def _event(self, fields: dict[str, Any]) -> str:
        name = self.object if self.object.endswith("text_completion") else f"{self.object}.chunk"
        return f"data: {json.dumps({**self.head, 'object': name, **fields}, ensure_ascii=False)}\n\n"

    async def _follow(self, i: int, queue: asyncio.Queue[Any]) -> None:
        """Put the choices of a prompt into the queue, and how many tokens were written at the end."""
        try:
            opened = [choice for k in range(self.decode.n_best) for choice in self._opened(i, k)]

            def put(choice: Any) -> None:
                """What opens the choices comes with the first result: before it, all may still be refused."""
                for one in (*opened, choice):
                    queue.put_nowait(one)
                opened.clear()

            answer = Answer("", [], 0.0, "length")
            shown = [""] * self.decode.n_best
            if self.most and not self.served.worker.writes:
                answer = await self.served.answer(self.asked[i][1], self.decode)
            elif self.most:
                async with aclosing(self.served.worker.write(self.asked[i][1], self.decode, pieces=True)) as results:
                    async for result in results:
                        if isinstance(result, Answer):
                            answer = self.served.ended(result)
                            break
                        k, piece = result
                        shown[k] += piece
                        put(self._delta(self._index(i, k), piece, finish_reason=None))
            each = [answer, *answer.others]
            for k, one in enumerate(each):
                rest, logprobs = one.text[len(shown[k]) :], await self._logprobs(i, one)
                more = {"logprobs": logprobs} if logprobs else {}
                put(self._delta(self._index(i, k), rest, finish_reason=one.reason, **more))
            queue.put_nowait(sum(len(one.whole) for one in each) if self.most else 0)
        except Exception as error:
            queue.put_nowait(error)

    async def _scored(self, read: Prompt, tokens: list[int], most: int) -> list[tuple[float, list[tuple[int, float]]]]:
        """The log-probability of each of these tokens after a prompt, with the likeliest ones. They are computed for
        this answer alone, so that they are the same whatever was written beside it."""
        if not tokens:
            return []
        if len(tokens) * len(self.tokenizer) > SCORED:
            raise UserError(f"logprobs: of {len(tokens):,} tokens they are too many; ask for fewer tokens")
        predictor: Any = self.run.predictor

        def compute() -> list[tuple[float, list[tuple[int, float]]]]:
            logprobs = predictor.steps(read, tokens)[:, : len(self.tokenizer)].log_softmax(-1)
            return [(float(row[token]), best_of(row, most)) for row, token in zip(logprobs, tokens)]

        return list(await self.served.compute(compute))


async def _begun(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """The events, after the first one is there: what is refused before that is an answer with its own status."""
    first = await anext(events)

    async def all_of_them() -> AsyncIterator[str]:
        try:
            yield first
            async for event in events:
                yield event
        except Exception as error:  # the status is sent already
            shown = str(error) if isinstance(error, UserError) else "the answer was interrupted by an error"
            yield f"data: {json.dumps({'error': {'message': shown, 'type': 'server_error', 'param': None, 'code': None}})}\n\n"
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    return all_of_them()


class CompletionWriter(TextWriter):
    object, prefix = "text_completion", "cmpl"

    async def _choice(self, i: int, k: int, answer: Answer) -> dict[str, Any]:
        text = (self.asked[i][0] if self.body.echo else "") + answer.text
        logprobs = await self._logprobs(i, answer)
        return {"text": text, "index": self._index(i, k), "logprobs": logprobs, "finish_reason": answer.reason}

    def _delta(self, index: int, piece: str, **more: Any) -> dict[str, Any]:
        return {"text": piece, "index": index, "logprobs": None, **more}

    def _opened(self, i: int, k: int) -> list[dict[str, Any]]:
        return [self._delta(self._index(i, k), self.asked[i][0], finish_reason=None)] if self.body.echo else []

    async def _logprobs(self, i: int, answer: Answer) -> dict[str, Any] | None:
        if (most := self.body.logprobs) is None:
            return None
        read, tokens, before = self.asked[i][1], answer.whole if self.most else [], list[int]()
        if self.body.echo:
            first, *rest = read.ids
            read, before, tokens = replace(read, ids=[first]), [first], [*rest, *tokens]
        scored = await self._scored(read, tokens, max(1, most))
        token, stream, offsets, at = self.tokenizer.token, self.tokenizer.stream(), [], 0
        for id in (*before, *tokens):
            offsets.append(at)
            at += len(stream.add(id))
        likely = [{token(id): p for id, p in best} for _, best in scored]
        return {
            "tokens": [token(id) for id in (*before, *tokens)],
            "token_logprobs": [*([None] * len(before)), *(p for p, _ in scored)],
            "top_logprobs": [*([None] * len(before)), *likely] if most else None,
            "text_offset": offsets,
        }


class ChatWriter(TextWriter):
    object, prefix = "chat.completion", "chatcmpl"

    async def _choice(self, i: int, k: int, answer: Answer) -> dict[str, Any]:
        message = {"role": "assistant", "content": answer.text}
        logprobs = await self._logprobs(i, answer)
        return {"index": k, "message": message, "logprobs": logprobs, "finish_reason": answer.reason}

    def _delta(self, index: int, piece: str, **more: Any) -> dict[str, Any]:
        return {"index": index, "delta": {"content": piece} if piece else {}, **more}

    def _opened(self, i: int, k: int) -> list[dict[str, Any]]:
        return [{"index": k, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]

    async def _logprobs(self, i: int, answer: Answer) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None

        def named(id: int, p: float) -> dict[str, Any]:
            token = self.tokenizer.token(id)
            return {"token": token, "logprob": p, "bytes": list(token.encode("utf-8", "replace"))}

        scored = await self._scored(self.asked[i][1], answer.whole, max(1, most := self.body.top_logprobs or 0))
        likely = [[named(*one) for one in best] if most else [] for _, best in scored]
        both = zip(answer.whole, scored, likely)
        return {"content": [{**named(id, p), "top_logprobs": best} for id, (p, _), best in both], "refusal": None}
