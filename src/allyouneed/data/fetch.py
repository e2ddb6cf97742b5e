"""Public files: from a local mirror, from the cache, or downloaded; never used unless their checksum is right."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from allyouneed.errors import UserError, option_name
from allyouneed.format import human_bytes
from allyouneed.storage.wholefile import write_json
from allyouneed.terminal import brief, write
from allyouneed.version import __version__

TIMEOUT = 30.0  # seconds without a byte
BLOCK = 1 << 18  # bytes


@dataclass(frozen=True)
class File:
    """A public file."""

    path: str  # in a mirror and in the cache
    bytes: int = 0  # 0: unknown
    checksum: str = ""  # SHA-256, or SHA-1 if only that is published; "": unknown
    address: str | None = None  # None: only a mirror has it
    address_checksum: str | None = None  # of the file at the address, if that is another

    @property
    def expected(self) -> str:
        """The checksum of a download; "": the file may change."""
        return self.checksum if self.address_checksum is None else self.address_checksum


def cache_folder() -> Path:
    """ALLYOUNEED_CACHE, or .cache/allyouneed in the home folder."""
    return Path(os.environ.get("ALLYOUNEED_CACHE") or "~/.cache/allyouneed").expanduser()


def mirror_folder(mirror: str) -> Path | None:
    """The mirror, or ALLYOUNEED_MIRROR, if there is one."""
    named = mirror or os.environ.get("ALLYOUNEED_MIRROR", "")
    return Path(os.path.expanduser(named)) if named else None


def obtain(file: File, mirror: str = "") -> Path:
    """A verified local copy: from the mirror (or ALLYOUNEED_MIRROR), else from the cache, else downloaded."""
    folder, missing = mirror_folder(mirror), ""
    if folder is not None:
        copy = folder / file.path
        try:
            if not folder.is_dir():
                raise UserError(f"the mirror {folder} is not a folder")
            if copy.is_file():
                _verify(copy, file.checksum)
                return copy
        except OSError as error:
            raise UserError(f"{copy} cannot be read: {error.strerror or error}") from None
        missing = f"the mirror {folder} has no {file.path}, and "
    cached = cache_folder() / file.path
    with suppress(UserError, OSError):
        if cached.is_file():
            _verify(cached, file.expected)
            return cached
    if file.address is None:
        raise UserError(
            f"{missing}{file.path} has no public address: give a folder that holds it with "
            f"{option_name('--mirror DIR')}"
        )
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        _download(file.address, cached, file.expected)
    except OSError as error:
        raise UserError(f"{missing}the cache {cache_folder()} cannot be written: {error.strerror or error}") from None
    except UserError as error:
        raise UserError(f"{missing}{error}") from None
    return cached


def discard(file: File, path: Path) -> bool:
    """Remove a file that cannot be read if it is a download without a checksum: the next attempt downloads it again."""
    removed = not file.expected and path.is_relative_to(cache_folder())
    if removed:
        path.unlink(missing_ok=True)
    return removed


def content_checksum(file: File, path: Path) -> str:
    """The checksum of the file, or of the copy if the file may change."""
    return file.checksum if file.expected else _checksum(path, "sha256")


def _download(address: str, path: Path, checksum: str) -> None:
    """Continues the .part file and checks it. If the download is interrupted, the file stays; if it is wrong, it is
    removed. A file that may change is never continued."""
    import http.client
    import urllib.error

    part = path.with_name(path.name + ".part")
    if not checksum:
        part.unlink(missing_ok=True)
    try:
        _transfer(address, part)
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        if isinstance(error, urllib.error.HTTPError):
            reason = f"the server answered {error.code} {reason}"
        local = f"{option_name('--mirror DIR')} takes a local copy instead"
        raise UserError(f"{address} cannot be downloaded: {reason}. {local}") from None
    try:
        _check(part, checksum)
    except UserError as error:
        part.unlink()
        raise UserError(f"{address} was downloaded, but {error}") from None
    os.replace(part, path)


def _transfer(address: str, part: Path) -> None:
    import urllib.error
    import urllib.request

    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": f"allyouneed/{__version__}"}  # some servers refuse that of urllib
    request = urllib.request.Request(address, headers=headers | ({"Range": f"bytes={have}-"} if have else {}))
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # there is nothing after what we have: begin again
            part.unlink()
            return _transfer(address, part)
        raise
    with answer:
        if answer.status != 206:
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        broken = True
        mode = "ab" if have else "wb"
        # After a broken connection, what has come is kept.
        with part.open(mode) as out, _progress(address, have, total) as show, suppress(ConnectionError):
            while block := answer.read1(BLOCK):
                out.write(block)
                have += len(block)
                show(have)
            broken = total is not None and have != total
    if broken:
        of = f" of {total}" if total is not None else ""
        raise ConnectionError(f"the connection ended after {have}{of} bytes; run it again to go on from there")


@contextmanager
def _progress(address: str, have: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, one line elsewhere."""
    if not sys.stderr.isatty():
        size = f" ({human_bytes(total)})" if total else ""
        write(f"downloading {address}{size}", err=True)
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    name, speed = TextColumn("{task.description}", markup=False), TransferSpeedColumn()
    columns = (name, BarColumn(), DownloadColumn(), speed, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        row = bar.add_task(brief(address.rsplit("/", 1)[-1]), total=total, completed=have)
        yield lambda done: bar.update(row, completed=done)


def _verify(path: Path, checksum: str) -> None:
    """Like `_check`, but a file that was right is not read again while its size and time stay the same."""
    register = cache_folder() / "verified.json"
    stat = path.stat()
    key, stamp = str(path.resolve()), [stat.st_size, stat.st_mtime_ns, checksum]
    known: dict[str, list[int | str]] = {}
    with suppress(OSError, ValueError, TypeError):
        known = dict(json.loads(register.read_text(encoding="utf-8")))
    if known.get(key) == stamp:
        return
    _check(path, checksum)
    with suppress(OSError, UserError):  # without the register the file is only read again
        register.parent.mkdir(parents=True, exist_ok=True)
        write_json(register, {**known, key: stamp})


def _check(path: Path, checksum: str) -> None:
    """Raise a UserError if the file has another checksum; without one, any file is right."""
    name = "SHA-1" if len(checksum) == 40 else "SHA-256"
    got = _checksum(path, name.replace("-", "").lower()) if checksum else ""
    if got != checksum:
        raise UserError(f"{path} has the wrong checksum: {name} {checksum} is expected, it has {got}")


def _checksum(path: Path, algorithm: str) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()
