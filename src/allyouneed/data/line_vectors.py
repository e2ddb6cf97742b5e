"""Vectors of lines in the cache, so that a line that was embedded once is not embedded again.

One file holds the lines of one maker, that is of one model and one way to make its vectors: a digest of each line, its
kind and its vector, with a checksum over all. It is complete or not there, and a damaged one counts as not there; if
two processes write at once, the lines of the later one stay. Where nothing can be written, nothing is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from allyouneed.data.fetch import cache_folder
from allyouneed.errors import UserError
from allyouneed.storage.tensorfile import read_tensors
from allyouneed.storage.wholefile import write_tensors

VERSION = 1  # raise it whenever this file writes something else
DIGEST = 16  # bytes
MOST_BYTES = 1 << 28  # of one file
EMPTY, WHOLE, CUT = 0, 1, 2  # a line without words has no vector, and a long one that of its beginning


class LineVectors(NamedTuple):
    """The kind (N,) and the vector (N, D) of each line; an empty line has zeros. Without any others D is 0."""

    kinds: np.ndarray
    vectors: np.ndarray


def vectors_of(lines: Sequence[str], maker: str, make: Callable[[Sequence[str]], LineVectors]) -> LineVectors:
    """The vectors of the lines: those in the cache, and the others from `make`, which are kept there. `maker` names all
    that the vectors depend on besides the line."""
    path = cache_folder() / "vectors" / f"{maker}-{VERSION}.safetensors"
    digests = [hashlib.blake2b(line.encode("utf-8", "surrogatepass"), digest_size=DIGEST).digest() for line in lines]
    known, cached = _read(path)
    new = {digest: line for digest, line in zip(digests, lines) if digest not in known}
    if new:
        cached = _joined(cached, make(list(new.values())))
        known |= {digest: len(known) + i for i, digest in enumerate(new)}
        _write(path, known, cached, digests)
    rows = [known[digest] for digest in digests]
    return LineVectors(cached.kinds[rows], cached.vectors[rows])


def _joined(some: LineVectors, more: LineVectors) -> LineVectors:
    width = max(some.vectors.shape[1], more.vectors.shape[1])
    sides = [np.zeros((len(kinds), width), np.float32) if not kinds.any() else v for kinds, v in (some, more)]
    return LineVectors(np.concatenate([some.kinds, more.kinds]), np.concatenate(sides))


def _read(path: Path) -> tuple[dict[bytes, int], LineVectors]:
    """The row of each line by its digest, and the rows; none if the file is damaged."""
    with suppress(UserError, OSError, KeyError, TypeError, ValueError):
        digests, kinds, vectors = map(read_tensors(path).__getitem__, ("digests", "kinds", "vectors"))
        known = {digest.tobytes(): row for row, digest in enumerate(digests.numpy())}
        if len(known) == len(kinds) == len(vectors) and vectors.ndim == 2:
            return known, LineVectors(kinds.numpy(), vectors.numpy())
    return {}, LineVectors(np.zeros(0, np.uint8), np.zeros((0, 0), np.float32))


def _write(path: Path, known: dict[bytes, int], rows: LineVectors, asked: Sequence[bytes]) -> None:
    """As many lines as a file may have, first those that were `asked` for."""
    import torch

    most = MOST_BYTES // (DIGEST + 1 + 4 * rows.vectors.shape[1])
    digests = list(dict.fromkeys([*asked, *known]))[:most]
    chosen = [known[digest] for digest in digests]
    tensors = {
        "digests": torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8).reshape(-1, DIGEST),
        "kinds": torch.from_numpy(rows.kinds[chosen]),
        "vectors": torch.from_numpy(rows.vectors[chosen]),
    }
    with suppress(UserError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors)
