"""Files that are whole or not there: written beside their place, synced, renamed; a full disk is a sentence."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allyouneed.errors import UserError
from allyouneed.tensorfile import CHECK, checksum, chunks

if TYPE_CHECKING:
    from torch import Tensor

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file: afterwards it holds all of `data`, or what it held before."""
    _store(Path(path), [data])


def write_text(path: str | Path, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """`write_bytes` of strict JSON; a number that is not finite becomes null."""
    write_text(path, json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_pieces(path: str | Path, pieces: Iterable[bytes]) -> None:
    """`write_bytes` of a file that is made piece by piece."""
    _store(Path(path), pieces)


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write a safetensors file with its checksum, whole or not at all; returns the SHA-256 of what was written."""
    return _store(Path(path), chunks(tensors, {**(metadata or {}), CHECK: checksum(tensors)}))["sha256"]


@contextmanager
def writing(path: Path, kept: str = "nothing that was there is lost") -> Iterator[None]:
    """An OSError inside becomes a sentence that names `path`, and what is `kept` when the disk is full."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in FULL:
            full = f"the disk is full: could not write {path} ({reason})"
            raise UserError(f"{full}; {kept}; free space and resume") from error
        raise UserError(f"could not write {path}: {reason}") from error


def put(path: Path, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write and fsync one file; returns its row of the manifest."""
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _store(path: Path, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """`put` into a temporary file beside `path`, then rename."""
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    with writing(path):
        try:
            row = put(temporary, pieces)
            os.replace(temporary, path)
        except BaseException:
            remove(temporary)
            raise
        sync(path.parent)
    return row


def sync(folder: Path) -> None:
    """Make the renames inside a folder durable, where the file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it is there; what resists is left for the next `lock`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


class Metrics:
    """metrics.jsonl: one strict JSON object a line, appended with one write each."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with writing(self.path):
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line; a number that is not finite becomes null."""
        line = (json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")
        with writing(self.path):
            before = os.fstat(self._file.fileno()).st_size
            if self._file.write(line) != len(line):
                self._file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def offset(self) -> int:
        """How many bytes were written. They are on the disk: a checkpoint may rely on them."""
        with writing(self.path):
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size

    def truncate(self, offset: int) -> None:
        """Forget what was written after `offset`, and any line that a crash has torn."""
        with writing(self.path):
            self._file.truncate(self.path.read_bytes()[:offset].rfind(b"\n") + 1)

    def close(self) -> None:
        """No more lines."""
        self._file.close()
