"""A server in a thread, and clients of it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

JSON = {"content-type": "application/json"}


@contextmanager
def serving(*runs: Any, **limits: Any) -> Iterator[str]:
    """The address of a server of some runs."""
    uvicorn = pytest.importorskip("uvicorn")
    from allyouneed.serve import Limits, app
    from allyouneed.serve.running import _Impatient

    with socket.create_server(("127.0.0.1", 0), backlog=1024) as place:
        made = app(runs, Limits(**limits))
        server = uvicorn.Server(uvicorn.Config(made, log_level="error", http=_Impatient, timeout_graceful_shutdown=5))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        try:
            yield f"http://localhost:{place.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)


Asked = tuple[str, dict[str, Any]]  # a path and a body


def ask_all(address: str, asked: Sequence[Asked], clients: int) -> list[tuple[int, str]]:
    """Status and body of each answer; so many clients ask at the same time, each one request after the other."""
    import httpx

    found: list[tuple[int, str]] = [(0, "")] * len(asked)

    async def client(number: int) -> None:
        async with httpx.AsyncClient(base_url=address, timeout=300) as http:
            for i in range(number, len(asked), clients):
                answer = await http.post(asked[i][0], json=asked[i][1])
                found[i] = answer.status_code, answer.text

    async def all_of_them() -> None:
        await asyncio.gather(*map(client, range(clients)))

    asyncio.run(all_of_them())
    return found
