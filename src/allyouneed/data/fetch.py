"""Public files: from a local mirror, from the cache, or downloaded; never used unless their checksum is right."""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from allyouneed.errors import UserError, option_name
from allyouneed.format import human_bytes
from allyouneed.terminal import write
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
                _check(copy, file.checksum)
                return copy
        except OSError as error:
            raise UserError(f"{copy} cannot be read: {error.strerror or error}") from None
        missing = f"the mirror {folder} has no {file.path}, and "
    cached = cache_folder() / file.path
    with suppress(UserError, OSError):
        if cached.is_file():
            _check(cached, file.expected)
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

    from rich.console import Console
    from rich.progress import DownloadColumn, Progress

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
    with answer, part.open("ab" if answer.status == 206 else "wb") as out:
        length = answer.headers.get("Content-Length")
        total = out.tell() + int(length) if length else None
        write(f"downloading {address}" + (f" ({human_bytes(total)})" if total else ""), err=True)
        columns = (*Progress.get_default_columns(), DownloadColumn())
        bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
        row = bar.add_task("", total=total)
        try:
            with bar:
                while block := answer.read1(BLOCK):
                    out.write(block)
                    bar.update(row, completed=out.tell())
        except ConnectionError:
            pass  # what has come is kept
        else:
            if total in (None, out.tell()):
                return
        of = "" if total is None else f" of {total}"
        raise ConnectionError(f"the connection ended after {out.tell()}{of} bytes; run it again to go on from there")


def _check(path: Path, checksum: str) -> None:
    """Raise a UserError if the file has another checksum; without one, any file is right."""
    name = "SHA-1" if len(checksum) == 40 else "SHA-256"
    got = _checksum(path, name.replace("-", "").lower()) if checksum else ""
    if got != checksum:
        raise UserError(f"{path} has the wrong checksum: {name} {checksum} is expected, it has {got}")


def _checksum(path: Path, algorithm: str) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()
