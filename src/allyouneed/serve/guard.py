"""Guard: every request passes it first. Who may ask, how much and for how long; a client that has gone is forgotten."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import re
from contextlib import suppress
from traceback import format_tb
from typing import Any

from starlette.datastructures import Headers, MutableHeaders

from allyouneed.format import human_bytes
from allyouneed.serve.limits import Limits

LOG = logging.getLogger("uvicorn.error")
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline' data:; style-src 'self' "
    "'unsafe-inline'; img-src 'self' data: blob:; frame-ancestors 'none'",
}
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def problem(status: int, message: str, param: str | None = None, code: str | None = None) -> bytes:
    """An error as OpenAI's API gives it."""
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


class Guard:
    """An ASGI app around another one."""

    def __init__(self, app: Any, limits: Limits, names: list[str]) -> None:
        self.app, self.limits, self.names = app, limits, names
        self.asking = 0  # requests that compute and are being answered
        self.draining = False  # no more requests are expected

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
                self._allow(scope, message)
            async with asyncio.timeout(self.limits.sending):  # in which a client has to read some of it
                await send(message)

        headers, asks = Headers(scope=scope), scope["method"] == "POST" or scope["path"].startswith("/look/")
        if refused := self._refuse(scope, headers, asks):
            if refused[0] == 413:
                await self._skip(receive)
            await self._end(answer, *refused)
            return
        self.asking += asks
        try:
            async with asyncio.timeout(self.limits.sending):
                body = await self._body(receive) if asks else b""
            if body is None:
                await self._end(answer, 413, f"a request has at most {human_bytes(self.limits.body)}: send less")
                return
        except TimeoutError:
            await self._end(answer, 408, f"the request did not come within {self.limits.sending:g} s", closes=True)
            return
        except ConnectionError:
            return
        else:
            await self._pass(scope, receive, answer, body)
        finally:
            self.asking -= asks

    def _refuse(self, scope: Any, headers: Headers, asks: bool) -> tuple[Any, ...] | None:
        """Why a request is refused before it is read, if it is."""
        limits, origin = self.limits, headers.get("origin", "")
        host = re.sub(r":\d*$", "", headers.get("host", "").lower())
        if limits.hosts and host not in limits.hosts:
            return 400, "this server does not answer to that name", None, "wrong_host"
        if scope["method"] == "OPTIONS" and origin in limits.origins:
            return 204, ""
        if limits.key and not self._knows_key(headers.get("authorization", "")):
            return 401, "an API key is needed: send it as 'Authorization: Bearer KEY'", None, "invalid_api_key"
        other = origin and origin.partition("://")[2] != headers.get("host", "").lower()
        if headers.get("sec-fetch-site", "cross-site" if other else "") in ("cross-site", "same-site"):
            follows_link = scope["method"] == "GET" and headers.get("sec-fetch-dest") == "document"
            if origin not in limits.origins and not follows_link and (asks or scope["method"] != "GET"):
                return 403, "other pages may not ask this server", None, "cross_site"
        if asks and self.asking >= len(self.names) * (limits.waiting + limits.rows):
            return 429, "too many requests wait: try again soon", None, "queue_full"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > limits.body:
            return 413, f"a request has at most {human_bytes(limits.body)}: send less", None, "too_large"
        return None

    def _knows_key(self, given: str) -> bool:
        """A bearer token or, from a browser, the password."""
        kind, _, text = given.partition(" ")
        value = text.strip().encode("latin-1")  # the bytes that were sent
        if kind.lower() == "basic":
            with suppress(ValueError):
                value = base64.b64decode(value, validate=True).partition(b":")[2]
        return hmac.compare_digest(value, self.limits.key.encode())

    def _allow(self, scope: Any, message: Any) -> None:
        """Let a page of a named origin read the answer."""
        origin = Headers(scope=scope).get("origin", "")
        if origin in self.limits.origins:
            allowed = {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
            names = {"Access-Control-Allow-Headers": "Authorization, Content-Type", "Access-Control-Allow-Methods": "*"}
            MutableHeaders(scope=message).update({**allowed, **names})

    async def _end(
        self,
        send: Any,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        closes: bool = False,
    ) -> None:
        headers = [(b"content-type", b"application/json")] * (status != 204)
        headers += [(b"retry-after", b"1")] * (status == 429) + [(b"connection", b"close")] * (closes or status == 413)
        headers += [(b"www-authenticate", b'Basic realm="allyouneed", charset="UTF-8"')] * (status == 401)
        body = problem(status, message, param, code) if status != 204 else b""
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _body(self, receive: Any) -> bytes | None:
        """What was sent; None if it is too much."""
        pieces, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError
            pieces.append(message.get("body", b""))
            if (size := size + len(pieces[-1])) > self.limits.body:
                return None
            if not message.get("more_body"):
                return b"".join(pieces)

    async def _skip(self, receive: Any) -> None:
        """Read on for a moment: a client that still sends may not see the answer."""
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                while size < 4 * self.limits.body and (message := await receive()).get("more_body"):
                    size += len(message["body"])

    async def _pass(self, scope: Any, receive: Any, send: Any, body: bytes) -> None:
        """Let the app answer, until it is done, its time is over, or the client goes away."""
        gone, given, started = asyncio.Event(), [{"type": "http.request", "body": body, "more_body": False}], []

        async def again() -> Any:
            if given:
                return given.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def noted(message: Any) -> None:
            started.append(message["type"])
            del started[1:]
            await send(message)

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        work, watching = asyncio.ensure_future(self.app(scope, again, noted)), asyncio.ensure_future(watch())
        try:
            done, _ = await asyncio.wait(
                (work, watching), timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if work not in done:
                gone.set()
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
                if watching not in done and not started:
                    late = f"there is no answer after {self.limits.seconds:g} s: ask for less"
                    await self._end(send, 408, late, code="timeout", closes=True)
            else:
                await work
        except Exception as error:  # its message could hold what the client has sent
            trace = "".join(format_tb(error.__traceback__))
            LOG.error("a request failed: %s\n%s", type(error).__name__, trace)
        finally:
            watching.cancel()
            work.cancel()
