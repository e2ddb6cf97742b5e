"""Clients of a server: so many at a time, over plain sockets, so that they take little of the machine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Timed(NamedTuple):
    """When the pieces of an answer came: seconds after the request was sent."""

    status: int
    times: list[float]
    whole: float
    events: list[bytes]

    @property
    def text(self) -> str:
        found = [json.loads(event[6:]) for event in self.events]
        return "".join(choice["text"] for event in found for choice in event["choices"])


async def ask(host: str, port: int, body: dict[str, Any]) -> Timed:
    """One streamed request to /v1/completions."""
    data = json.dumps({**body, "stream": True}).encode()
    lines = ("POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Connection: close")
    head = "\r\n".join((*lines, f"Content-Length: {len(data)}", "", ""))
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(head.encode() + data)
    status, times, events = int((await reader.readline()).split()[1]), list[float](), list[bytes]()
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            times.append(time.perf_counter() - start)
            events.append(line)
    writer.close()
    return Timed(status, times, time.perf_counter() - start, events)


def ask_all(host: str, port: int, bodies: Sequence[dict[str, Any]], clients: int) -> tuple[float, list[Timed]]:
    """Seconds in which all are answered, and each answer; a client asks again when it has its answer."""
    found: list[Timed] = []
    left = iter(bodies)

    async def client() -> None:
        for body in left:
            found.append(await ask(host, port, body))

    async def all_of_them() -> None:
        await asyncio.gather(*(client() for _ in range(clients)))

    start = time.perf_counter()
    asyncio.run(all_of_them())
    return time.perf_counter() - start, found


def percentiles(found: Sequence[Timed]) -> dict[str, float]:
    """p50 and p99 of the time to the first piece and between pieces, in ms, of what was not refused."""
    fine = [one for one in found if one.status == 200 and one.times]
    first = [one.times[0] for one in fine]
    between = [gap for one in fine for gap in np.diff(one.times).tolist()]
    return {
        f"{name} p{p}": round(1000 * float(np.percentile(values, p)), 1)
        for name, values in (("first token", first), ("between tokens", between))
        for p in (50, 99)
        if values
    }
