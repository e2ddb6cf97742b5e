"""Files that are either complete or absent: written to a temporary file, synced, then renamed. Nothing is written
through a symbolic link."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allyouneed.errors import UserError
from allyouneed.storage.tensorfile import CHECK, checksum, chunks

if TYPE_CHECKING:
    from torch import Tensor

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_pieces(path: str | Path, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write a file: afterwards it holds all of the pieces, or what it held before. Returns its size and its SHA-256.

    It is written beside its place and renamed: a link at `path` is replaced, not followed."""
    path = Path(path)
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    with writing(path):
        remove(temporary)
        try:
            written = put(temporary, pieces)
            os.replace(temporary, path)
        except BaseException:
            remove(temporary)
            raise
        sync(path.parent)
    return written


def write_bytes(path: str | Path, data: bytes) -> dict[str, Any]:
    """`write_pieces` of one."""
    return write_pieces(path, [data])


def write_text(path: str | Path, text: str) -> None:
    """`write_pieces` of UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """`write_pieces` of strict JSON; a number that is not finite becomes null."""
    write_text(path, json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """`write_pieces` of a safetensors file with its checksum. Returns the SHA-256 of the file."""
    return str(write_pieces(path, chunks(tensors, {**(metadata or {}), CHECK: checksum(tensors)}))["sha256"])


def size_and_hash(data: bytes) -> dict[str, Any]:
    """The size and the SHA-256 of a file with this content."""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@contextmanager
def writing(path: Path, remaining: str = "nothing is lost") -> Iterator[None]:
    """Turn an OSError in the block into a sentence that names `path` and, on a full disk, what is there still."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in FULL:
            full = f"the disk is full: could not write {path} ({reason})"
            raise UserError(f"{full}; {remaining}; free space and resume") from error
        raise UserError(f"could not write {path}: {reason}") from error


def refuse_link(path: Path) -> None:
    """A run writes only inside its own folder: an error if there is a link where it writes."""
    if path.is_symlink():
        raise UserError(f"{path} is a symbolic link, and a run writes only inside its own folder: remove the link")


def open_plain(path: Path, flags: int) -> int:
    """Open a file to change it in place: never through a link, and never a device or a pipe."""
    refuse_link(path)
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        raise UserError(f"{path} is not a plain file: remove it")
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def open_to_read(path: str | Path) -> BufferedReader:
    """Open a regular file. Anything else, such as a pipe, which might never end, is an OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a plain file")
    return os.fdopen(handle, "rb")


def read_bytes(path: str | Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes; otherwise an OSError."""
    with open_to_read(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB")
        return file.read()


def put(path: Path, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write and sync one new file; returns its size and its SHA-256."""
    digest, size = hashlib.sha256(), 0
    with open(path, "xb") as file:  # "x": what is there already, such as a link, is never written to
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def sync(folder: Path) -> None:
    """Make the renames inside a folder durable, if the file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it exists; what cannot be removed is left for the next `lock`."""
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
    """metrics.jsonl: one strict JSON object per line, each appended with one write. Use it in a `with` block, or call
    `close`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with writing(self.path):
            self._file = os.fdopen(open_plain(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0)

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line; a number that is not finite becomes null."""
        line = (json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")
        with writing(self.path):
            before = os.fstat(self._file.fileno()).st_size
            if self._file.write(line) != len(line):
                self._file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def offset(self) -> int:
        """The number of bytes so far. They are on the disk: a checkpoint may rely on them."""
        with writing(self.path):
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size

    def truncate(self, offset: int) -> None:
        """Remove what was written after `offset`, and a last line that a crash left incomplete."""
        with writing(self.path):
            self._file.truncate(self.path.read_bytes()[: max(0, offset)].rfind(b"\n") + 1)

    def close(self) -> None:
        """No more lines."""
        self._file.close()
