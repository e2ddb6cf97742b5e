"""Compressed files: gz, xz and bz2, and a zip archive with a single file in it."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import shlex
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

from allyouneed.errors import UserError

ENDINGS = (".gz", ".xz", ".bz2", ".zip")
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile)
BROKEN = (zipfile.BadZipFile, RuntimeError, ValueError)  # what zipfile raises for an archive that it cannot open
MAGIC: dict[bytes, Any] = {rb"\x1f\x8b": gzip, rb"\xfd7zXZ\0": lzma, rb"BZh\d1AY&SY": bz2}  # how files begin
ASIDE = ("readme", "license", "licence")  # files of an archive that are not its data


def plain_name(path: Path) -> str:
    """The name of a file without the ending of its compression: train.en.gz -> train.en. An archive has the ending of
    the file in it: sms.zip -> sms.csv."""
    if path.suffix.lower() not in ENDINGS:
        return path.name
    ending = ""
    if path.suffix.lower() == ".zip":
        with suppress(UserError, OSError), path.open("rb") as file:  # `opened` reports what is wrong with it
            ending = PurePosixPath(_only_member(path, file).filename).suffix
    return path.stem if path.stem.lower().endswith(ending.lower()) else path.stem + ending


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A stream of the decompressed bytes. The first bytes tell the format, whatever the file is called."""
    with path.open("rb") as file:
        head = file.read(10)
        file.seek(0)
        unpacked: Any = next((form.open(file) for magic, form in MAGIC.items() if re.match(magic, head)), file)
        if head.startswith((b"PK\3\4", b"PK\5\6")):
            member = _only_member(path, file)
            try:
                unpacked = zipfile.ZipFile(file).open(member)  # noqa: SIM115  (it ends with the file)
            except BROKEN as error:  # or a compression that Python does not know
                raise UserError(f"{path} cannot be unpacked here: {error}; unpack it and give the file") from None
        yield unpacked


def _only_member(path: Path, file: IO[bytes]) -> zipfile.ZipInfo:
    """The file in a zip archive; hidden files and a readme do not count."""
    try:
        with zipfile.ZipFile(file) as archive:
            listed = [member for member in archive.infolist() if not member.is_dir()]
    except BROKEN as error:
        raise UserError(f"{path} is damaged: it is not a whole zip archive ({error})") from None
    paths = {member.filename: PurePosixPath(member.filename) for member in listed}
    if "[Content_Types].xml" in paths:
        raise UserError(f"{path} is a file of an office program: save it there as CSV (UTF-8), or as plain text")
    shown = [m for m in listed if not any(part[0] in "._" for part in paths[m.filename].parts)]
    found = [m for m in shown if paths[m.filename].stem.lower() not in ASIDE] or shown
    if not found:
        raise UserError(f"{path} is an archive without a file")
    if len(found) > 1:
        names = ", ".join(member.filename for member in found[:10]) + ", …" * (len(found) > 10)
        raise UserError(
            f"{path} holds {len(found)} files ({names}): unpack it with `{shlex.join(['unzip', str(path)])}` and give "
            "one of them, or a folder with train.*, valid.* and test.*"
        )
    if found[0].flag_bits & 1:
        raise UserError(f"{path} is encrypted: unpack it with its password and give the file")
    return found[0]
