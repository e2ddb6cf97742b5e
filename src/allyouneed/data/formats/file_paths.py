"""The paths that the user gives -> the files of each split. Whatever cannot be read is an error, never left out."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from allyouneed.data.formats.compressed import plain_name
from allyouneed.data.formats.textfile import is_text
from allyouneed.errors import UserError, nearest, shortened

SPLITS = {"train": "train", "valid": "valid", "val": "valid", "dev": "valid", "test": "test"}
PROSE = (".txt", ".md", ".text")
FORMS = {".tsv": "tsv", ".tab": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
KINDS = {stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}


def look(path: str | Path) -> os.stat_result | None:
    """The status of a path; None if nothing is there. An error if the system refuses to tell."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a zero byte, which no name has
        return None
    except OSError as error:
        raise UserError(f"{shortened(path, 200)} cannot be opened: {error.strerror or error}") from None


def is_folder(path: Path) -> bool:
    found = look(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def is_file(path: Path) -> bool:
    found = look(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def existing(given: str) -> Path:
    """A file or a folder that is there; otherwise an error with the nearest name."""
    return readable(Path(os.path.expanduser(given)), or_folder=True)


def readable(path: Path, or_folder: bool = False) -> Path:
    """The path, if it is that of a regular file. A pipe is none: a run can be resumed and tested only if its data can
    be read again."""
    check_name(path)
    found = look(path)
    if found is None:
        raise UserError(_missing(path))
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFIFO:
        raise UserError(f"{path} is a pipe, which can be read only once: save the data to a file and give that file")
    if kind == stat.S_IFCHR and os.path.realpath(path) == os.devnull:
        raise UserError(f"{path} is empty")
    if kind != stat.S_IFREG and not (or_folder and kind == stat.S_IFDIR):
        raise UserError(f"{path} is {KINDS.get(kind, 'a folder')}, but a file is expected here")
    return path


def form_of(path: Path) -> str:
    """The form of a table, as the ending of its name says: tsv, csv or jsonl; "" for any other."""
    return FORMS.get(Path(plain_name(path)).suffix.lower(), "")


def check_name(path: Path) -> None:
    """A recipe is UTF-8 text and must be able to name its data."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = str(path).encode("utf-8", "backslashreplace").decode()
        raise UserError(f"the name {shown} is not valid UTF-8: rename it") from None


def as_text(name: str) -> str:
    """The name of a file as text: bytes that are not UTF-8 are written as \\xe9."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _missing(path: Path) -> str:
    if path.is_symlink():
        return f"{path} is a link to {os.readlink(path)}, which is not there: remove the link or restore the file"
    if not is_folder(path.parent):
        return f"there is no {path}: the folder {path.parent} does not exist"
    hint = ""
    with suppress(OSError):  # a folder that cannot be listed has no names to suggest
        hint = nearest(path.name, (entry.name for entry in path.parent.iterdir()))
    return f"there is no {path}{hint if 'did you mean' in hint else ''}"


def table_files(given: Mapping[str, list[Path]], source: str, target: str) -> dict[str, list[Path]]:
    """The table of each split, or its two parallel files. `source` and `target` choose between files of more than two
    languages."""
    folder, named = _folder_of_splits(given)
    if folder is not None:
        if "train" not in named:
            names = ", ".join(entry.name for entry in entries(folder)[:10]) or "nothing"
            raise UserError(
                f"the folder {folder} has no train.* file (it has {names}); the files of a folder are train.tsv, or "
                "train.en and train.de, and the same for valid and test; or give the file itself"
            )
        found = {name: _one_or_two(paths, folder, name, (source, target)) for name, paths in named.items()}
        given = found | {name: paths for name, paths in given.items() if name != "train"}
    return {name: [readable(path) for path in paths] for name, paths in given.items()}


def text_files(given: Mapping[str, list[Path]], code: str) -> dict[str, list[Path]]:
    """The documents of each split, in order; `code`: data.encoding."""
    _, named = _folder_of_splits(given)
    if "train" in named and len(named) > 1:
        given = named | {name: paths for name, paths in given.items() if name != "train"}
    return {name: [file for path in paths for file in _documents(path, code)] for name, paths in given.items()}


def _folder_of_splits(given: Mapping[str, list[Path]]) -> tuple[Path | None, dict[str, list[Path]]]:
    """The folder that is given, if it is one, and its files that are called after a split: train.tsv, val.en.gz, …"""
    folder, *others = given["train"]
    if others or not is_folder(folder):
        return None, {}
    found: dict[str, list[Path]] = {}
    for path in entries(folder):
        stem, dot, _ = plain_name(path).partition(".")
        if dot and stem.lower() in SPLITS and not is_folder(path):
            found.setdefault(SPLITS[stem.lower()], []).append(path)
    return folder, found


def entries(folder: Path) -> list[Path]:
    """What is in a folder, sorted."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be read: {error.strerror or error}") from None


def _one_or_two(paths: list[Path], folder: Path, split: str, wanted: Sequence[str]) -> list[Path]:
    """A table, or the two files of the wanted languages."""
    tables = [path for path in paths if form_of(path)]
    if len(tables) > 1:
        raise UserError(f"{folder} has more than one table for {split}: {', '.join(path.name for path in tables)}")
    if tables or len(paths) <= 2:
        return tables or paths
    ends = {plain_name(path).partition(".")[2]: path for path in paths}
    chosen = [ends[side] for side in wanted if side in ends]
    if len(chosen) != 2:
        raise UserError(f"{folder} has {', '.join(sorted(ends))} for {split}; choose with data.source and data.target")
    return chosen


def _documents(path: Path, code: str) -> list[Path]:
    """The text files of a folder and the folders inside it, sorted; of a file, itself."""
    if not is_folder(path):
        return [readable(path)]
    inside = sorted(files_below(path))
    prose = [file for file in inside if Path(plain_name(file)).suffix.lower() in PROSE]
    found = [readable(file) for file in prose] or [file for file in inside if is_text(readable(file), code)]
    if not found:
        raise UserError(f"the folder {path} has no text file (it has {len(inside)} files that are not hidden)")
    return found


def files_below(folder: Path) -> Iterator[Path]:
    """Everything below a folder that is neither a folder nor hidden."""
    for path in entries(folder):
        if path.name.startswith("."):
            continue
        if not is_folder(path):
            yield path
        elif not path.is_symlink():  # a link to a folder may lead in a circle
            yield from files_below(path)
