"""Running an app: a socket, and uvicorn until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import errno
import gc
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from allyouneed.errors import UserError

HEAD_SECONDS = 10  # in which the head of a request has to come
READ_SECONDS = 20  # in which a client has to read some of an answer


class _Impatient(H11Protocol):
    """A connection without a whole head of a request is closed after some seconds."""

    late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.late = self.loop.call_later(HEAD_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        idle = self.cycle is None or self.cycle.response_complete
        if not idle and self.late is not None:
            self.late.cancel()
            self.late = None
        elif idle and self.late is None:
            self.late = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.late is not None:
            self.late.cancel()


class _Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.draining = True  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> socket.socket:
    """A socket at this address; port 0 is any free one."""
    place = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # a client that reads nothing is dropped, also after its answer is done
        place.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * READ_SECONDS)
    try:
        place.bind((host, port))
    except OSError as error:
        place.close()
        why = {errno.EADDRINUSE: "in use", errno.EACCES: "not allowed"}.get(error.errno or 0)
        if why is None:
            raise UserError(f"{host} is not an address of this machine: {error.strerror or error}") from None
        raise UserError(f"port {port} is {why}: choose another with --port, or --port 0 for any free one") from None
    place.listen(1024)
    return place


def run(app: Any, place: socket.socket, ready: Callable[[], None], patience: int | None = None) -> None:
    """Serve until Ctrl-C or SIGTERM; then accepted requests are answered, for at most so many seconds."""
    sys.setswitchinterval(0.001)  # a request is looked at soon, also while a model computes
    gc.freeze()
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, http=_Impatient, ws="none", timeout_graceful_shutdown=patience,
        server_header=False, backlog=1024,
    )  # fmt: skip
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it again when all is answered
    try:
        with suppress(KeyboardInterrupt):
            ready()
            _Server(config).run(sockets=[place])
    finally:
        signal.signal(signal.SIGTERM, before)
        place.close()
