"""Public files: from a local mirror, from the cache, or downloaded; never used unless their checksum is right."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from allyouneed.errors import UserError, told
from allyouneed.format import human_bytes
from allyouneed.terminal import brief, write

TIMEOUT = 30.0  # seconds without a byte
BLOCK = 1 << 18  # bytes


@dataclass(frozen=True)
class File:
    """A public file. If the address is that of a zip archive, `member` names the file in it that is used."""

    path: str  # in a mirror
    bytes: int
    sha256: str
    address: str | None = None  # None: only a mirror has it
    member: str = ""
    content_sha256: str = ""  # of the decompressed file, which is the member of the archive
    address_sha256: str = ""  # of the file at the address, if that is compressed in another way


def cache_folder() -> Path:
    """ALLYOUNEED_CACHE, or .cache/allyouneed in the home folder."""
    return Path(os.environ.get("ALLYOUNEED_CACHE") or "~/.cache/allyouneed").expanduser()


def obtain(file: File, mirror: str = "") -> Path:
    """A verified local copy: from the mirror (or ALLYOUNEED_MIRROR), else from the cache, else downloaded."""
    mirror = mirror or os.environ.get("ALLYOUNEED_MIRROR", "")
    missing = ""
    if mirror:
        copy = _mirrored(file, Path(os.path.expanduser(mirror)))
        if copy is not None:
            return copy
        missing = f"the mirror {mirror} has no {file.path}, and "
    kept = cache_folder() / (file.path if not file.member else str(Path(file.path).with_name(file.member)))
    expected = file.content_sha256 or file.address_sha256 or file.sha256
    if _is_right(kept, expected):
        return kept
    if file.address is None:
        raise UserError(
            f"{missing}{file.path} has no public address; give a folder that holds it with {told('--mirror DIR')}"
        )
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        if file.member:
            archive = kept.with_name(Path(file.address).name)
            _download(file.address, archive, lambda path: _unpack(path, file, kept))
        else:
            _download(file.address, kept, lambda path: _check(path, expected))
            os.replace(_part(kept), kept)
    except OSError as error:
        raise UserError(f"{missing}the cache {cache_folder()} cannot be written: {error.strerror or error}") from None
    except UserError as error:
        raise UserError(f"{missing}{error}") from None
    return kept


def _mirrored(file: File, mirror: Path) -> Path | None:
    """The verified file in a mirror; None if the mirror does not have it."""
    copy = mirror / file.path
    try:
        if not mirror.is_dir():
            raise UserError(f"the mirror {mirror} is not a folder")
        if not copy.is_file():
            return None
        _verify(copy, file.sha256)
    except OSError as error:
        raise UserError(f"{copy} cannot be read: {error.strerror or error}") from None
    return copy


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _download(address: str, path: Path, accept: Callable[[Path], None]) -> None:
    """Continues the .part file and checks it. If the download is interrupted, the file stays; if it is wrong, it is
    removed."""
    import http.client
    import urllib.error

    part = _part(path)
    try:
        _transfer(address, part)
    except urllib.error.HTTPError as error:
        raise _failed(address, f"the server answered {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _failed(address, str(getattr(error, "reason", error)) or type(error).__name__) from None
    try:
        accept(part)
    except UserError as error:
        part.unlink()
        raise UserError(f"{address} was downloaded, but {error}") from None


def _transfer(address: str, part: Path) -> None:
    import urllib.error
    import urllib.request

    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
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

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        row = bar.add_task(brief(address.rsplit("/", 1)[-1]), total=total, completed=have)
        yield lambda done: bar.update(row, completed=done)


def _failed(address: str, reason: str) -> UserError:
    return UserError(f"{address} cannot be downloaded: {reason}. {told('--mirror DIR')} takes a local copy instead")


def _unpack(archive: Path, file: File, to: Path) -> None:
    """The member of a zip archive, verified, at `to`; the archive is removed."""
    part = _part(to)
    try:
        with part.open("wb") as out:
            for block in _member(archive, file.member):
                out.write(block)
        _check(part, file.content_sha256)
    except UserError:
        part.unlink()
        raise
    os.replace(part, to)
    archive.unlink()


def _member(archive: Path, name: str) -> Iterator[bytes]:
    """Blocks of one file in a zip archive; whatever is wrong with the archive is one error."""
    try:
        with zipfile.ZipFile(archive) as zipped, zipped.open(name) as member:
            while block := member.read(BLOCK):
                yield block
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"it is not the expected archive: {error}") from None
    except RuntimeError as error:  # encrypted, or compressed in a way that Python does not know
        raise UserError(f"its member {name} cannot be unpacked: {error}") from None


def _is_right(path: Path, sha256: str) -> bool:
    try:
        if not path.is_file():
            return False
        _verify(path, sha256)
    except (UserError, OSError):
        return False
    return True


def _verify(path: Path, sha256: str) -> None:
    """Like `_check`, but a file that was right is not read again while its size and time stay the same."""
    register = cache_folder() / "verified.json"
    stat = path.stat()
    key, stamp = str(path.resolve()), [stat.st_size, stat.st_mtime_ns, sha256]
    known: dict[str, list[int | str]] = {}
    with suppress(OSError, ValueError, TypeError):
        known = dict(json.loads(register.read_text(encoding="utf-8")))
    if known.get(key) == stamp:
        return
    _check(path, sha256)
    with suppress(OSError):  # without the register the file is only read again
        register.parent.mkdir(parents=True, exist_ok=True)
        fresh = register.with_name(f"verified.json.{os.getpid()}")
        fresh.write_text(json.dumps({**known, key: stamp}), encoding="utf-8")
        os.replace(fresh, register)


def _check(path: Path, sha256: str) -> None:
    with path.open("rb") as stream:
        got = hashlib.file_digest(stream, "sha256").hexdigest()
    if got != sha256:
        raise UserError(f"{path} has the wrong checksum: SHA-256 {sha256} is expected, it has {got}")
