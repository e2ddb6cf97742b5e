"""Pictures in folders, and tables of their paths with labels or captions."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from allyouneed.config import DataConfig
from allyouneed.data.examples import LabelledPicture
from allyouneed.data.formats.columns import Column, text_column
from allyouneed.data.formats.decoding import ENDINGS, BadPictureError, damage_told, open_picture
from allyouneed.data.formats.file_paths import SPLITS, as_text, form_of, is_file, is_folder
from allyouneed.data.formats.labels import LabelTable, open_labels
from allyouneed.data.formats.objects import is_unicode
from allyouneed.data.formats.picture_arrays import CAPTIONS, Listed, idx_pictures
from allyouneed.data.formats.roles import Role, by_names, find_columns, with_usual_names
from allyouneed.data.formats.table import Table, open_table
from allyouneed.data.formats.textfile import TextFile
from allyouneed.errors import UserError, shortened

IDX = {"train-images": ("train", "images"), "train-labels": ("train", "labels")}
IDX |= {"t10k-images": ("test", "images"), "t10k-labels": ("test", "labels")}
VALUES = (str, int, float, type(None))  # of JSON; a label may be a number, or missing
LOOKED_AT = 100  # pictures
GREY = ("1", "L", "LA", "I", "F", "I;16")  # what Pillow calls pictures without colours


def _has_pictures(column: Column) -> bool:
    """Whether most cells end as the names of pictures do."""
    return 2 * sum(map(is_picture_name, column.different)) > len(column.different)


def _of_pictures(columns: Sequence[Column], free: Sequence[int]) -> int | None:
    return next((at for at in free if _has_pictures(columns[at])), None)


def _of_captions(columns: Sequence[Column], free: Sequence[int]) -> int | None:
    texts = [at for at in free if columns[at].filled and not columns[at].has_numbers]
    return text_column(columns, texts) if texts else None


def _filled(columns: Sequence[Column], free: Sequence[int]) -> int | None:
    return next((at for at in free if columns[at].filled), None)


PICTURE = Role(
    "picture",
    "data.source",
    ("path", "file", "filename", "file_name", "image", "picture", "image_path", "filepath", "img"),
    by_cells=_of_pictures,
)
CAPTION = Role(
    "caption",
    "data.target",
    (*CAPTIONS, "label", "labels", "class", "category", "target"),
    parts=True,
    among=_filled,
    by_cells=_of_captions,
)


def is_picture_name(name: str) -> bool:
    """Whether a name ends as those of pictures do."""
    return name.strip().lower().endswith(ENDINGS)


def is_hidden(file: Path, folder: Path) -> bool:
    """Whether the file, or a folder on the way to it, begins with a dot."""
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def folder_pictures(folder: Path, shape: str) -> dict[str, Listed]:
    """Class folders, or for plain pictures a folder that holds some at any depth; or folders train, valid and test of
    these; or the idx files of MNIST."""
    entries = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    inside = [path for path in entries if is_folder(path)]
    idx = {IDX[key]: path for path in entries for key in IDX if path.name.startswith(key)}
    pairs = {
        split: (path, None if shape == "plain" else idx[split, "labels"])
        for (split, kind), path in idx.items()
        if kind == "images" and (shape == "plain" or (split, "labels") in idx)
    }
    if "train" in pairs:
        return {split: idx_pictures(*both) for split, both in pairs.items()}
    named = {SPLITS[path.name.lower()]: path for path in inside if path.name.lower() in SPLITS}
    if "train" in named:
        return {split: _files_of(path, shape) for split, path in named.items()}
    if not inside and shape != "plain":
        own = sum(is_picture_name(path.name) for path in entries)
        what = (
            f"{own:,} pictures without a {'caption' if shape == 'captions' else 'class'}" if own else "no folders in it"
        )
        put = "put the pictures of each class into a folder of its own, with its name"
        if shape == "captions":
            put = f"give a CSV, TSV or JSONL file with paths and captions, or {put}, which becomes the caption"
        raise UserError(f"{folder} has {what}: {put}")
    return {"train": _files_of(folder, shape)}


def _files_of(folder: Path, shape: str) -> Listed:
    return _all_files(folder) if shape == "plain" else _classes(folder, shape)


def _all_files(folder: Path) -> Listed:
    pictures, aside = _pictures_in(folder)
    if not pictures:
        raise UserError(
            f"the folder {folder} has no picture in it, at any depth: give one with files such as .png or .jpg"
        )
    told = f"{folder.name}: {len(pictures):,} pictures{_left_out(aside)}"
    return file_pictures(dict.fromkeys(pictures, ""), told)


def file_pictures(files: Mapping[Path, str], told: str) -> Listed:
    """Files as pictures, with these labels."""
    looked = _Looked(len(files))
    found = [LabelledPicture(str(file), label, looked.content(file)) for file, label in files.items()]
    return Listed(found, told, seen=looked.seen())


class _Looked:
    """Hashes files, each of which is opened once; of some of `total` it also keeps their size."""

    def __init__(self, total: int) -> None:
        self.step, self.number = max(1, total // LOOKED_AT), 0
        self.sides: list[int] = []
        self.grey = True

    def content(self, path: Path) -> str:
        """A hash of what is in a file."""
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=12)).hexdigest()
                if self.number % self.step == 0:
                    file.seek(0)
                    with suppress(BadPictureError), damage_told(), open_picture(file) as picture:
                        self.sides.append(min(picture.size))
                        self.grey = self.grey and picture.mode in GREY
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
        self.number += 1
        return found

    def seen(self) -> tuple[int, int]:
        """The usual length of the shorter side, and the values per pixel; a damaged picture tells nothing."""
        sides = sorted(self.sides)
        return (sides[len(sides) // 2], 1 if self.grey else 3) if sides else (0, 3)


def _pictures_in(folder: Path) -> tuple[list[Path], int]:
    """The pictures at any depth, and how many other files there are; hidden ones do not count."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not is_hidden(file, folder)]
    pictures = [file for file in files if is_picture_name(file.name)]
    return pictures, len(files) - len(pictures)


def _left_out(aside: int) -> str:
    return f"; left out as no pictures, by their names: {aside:,}" if aside else ""


def _classes(folder: Path, shape: str) -> Listed:
    found, aside = dict[Path, str](), 0
    names = [path for path in sorted(folder.iterdir()) if is_folder(path) and not path.name.startswith(".")]
    if not names:
        raise UserError(f"{folder} has no folders in it: put the pictures of each class into a folder of its own")
    for path in names:
        pictures, others = _pictures_in(path)
        if not pictures:
            raise UserError(f"the class folder {path} has no picture: add some, or remove the folder")
        aside += others
        found |= dict.fromkeys(pictures, as_text(path.name))
    told = f"{folder.name}: {len(found):,} pictures in {len(names)} class folders"
    if shape == "captions":
        told += "; the name of a folder is the caption of its pictures"
    if odd := [as_text(path.name) for path in names if not is_unicode(path.name)]:
        told += f"; names of folders that are not UTF-8 are written as {', '.join(odd[:5])}{', …' * (len(odd) > 5)}"
    return file_pictures(found, told + _left_out(aside))


def table_pictures(path: Path, config: DataConfig, shape: str) -> Listed:
    """Paths, from the folder of the table, and labels or captions."""
    file = TextFile(path, config.encoding)
    header = _header(file, config)
    wanted = (config.source, config.target if shape != "plain" else "")
    table = open_table([file], wanted, _names_pictures, header, values=VALUES, least=1)
    roles = (PICTURE, CAPTION) if shape == "captions" else (PICTURE,)
    asked = {"picture": config.source, "caption": config.target}
    known = by_names(table.names, roles, None, table.survey)
    if "caption" in known and not table.survey()[known["caption"]].filled:
        del known["caption"]
    found = find_columns(table.names, roles, asked, table.where, table.survey, known=known)
    columns, guessed, labelled = dict(found.columns), "", None
    if shape == "captions":
        guessed = _told(table, columns, bool(found.by_cells and found.by_cells[-1] is CAPTION), config.target)
    elif shape == "pictures":
        labelled = open_labels(
            [file], replace(config, source=table.names[columns["picture"]], second="", header=header)
        )
        table, columns = labelled.table, {"picture": labelled.columns["text"], "label": labelled.columns["label"]}
    pictures = _rows(path, table, columns, labelled)
    told = labelled.understood(columns) if labelled is not None else table.understood(columns, "example", guessed)
    return Listed(pictures[0], told, seen=pictures[1])


def _rows(
    path: Path, table: Table, columns: Mapping[str, int], labelled: LabelTable | None
) -> tuple[list[LabelledPicture], tuple[int, int]]:
    cells = list(table.rows(list(columns.values()))) if labelled is None else [row[:2] for row in labelled.rows()]
    marks = labelled.unlabelled if labelled is not None else frozenset()
    looked, contents = _Looked(len(cells)), dict[Path, str]()  # a picture may have several captions
    found = []
    for number, row in enumerate(cells, 1 + table.header):
        name, *label = (cell.strip() for cell in row)
        if not name and not any(label):  # a blank line
            continue
        file = path.parent / os.path.expanduser(name)
        if name and not is_file(file):
            raise UserError(
                f"{path}, row {number}: there is no picture {shortened(file, 300)}; paths count from the folder of the "
                "table"
            )
        if file not in contents:
            contents[file] = looked.content(file) if name else ""  # blank, so it is dropped and counted
        found.append(LabelledPicture(str(file), "".join(one for one in label if one not in marks), contents[file]))
    return found, looked.seen()


def _header(file: TextFile, config: DataConfig) -> str:
    """data.header; if it is auto, pictures may tell: a first row that names one is no header, and one that names none
    above pictures is."""
    if config.header != "auto" or form_of(file.path) == "jsonl":
        return config.header
    table = open_table([file], (), _names_pictures, "false", values=VALUES, least=1)
    first = next((row for row in table.rows(range(len(table.names))) if any(row)), ())
    if any(map(is_picture_name, first)):
        return "false"
    return "true" if any(map(_has_pictures, table.survey())) else "auto"


def _names_pictures(first: Sequence[str]) -> bool:
    return any(cell.strip().lower() in PICTURE.usual for cell in first)


def _told(table: Table, columns: Mapping[str, int], guessed: bool, wanted: str) -> str:
    """What was guessed of the caption, for the user."""
    if wanted:
        return ""
    surveyed = table.survey()
    free = [at for at, column in enumerate(surveyed) if at != columns["picture"] and column.filled]
    named = [at for at in with_usual_names(table.names, CAPTION) if at in free]
    texts = [at for at in free if not surveyed[at].has_numbers]
    others = ", ".join(table.names[at] for at in (named or texts) if at != columns["caption"])
    told = "; caption guessed from the cells" if guessed else ""
    return told + (f"; the caption could also be {others} ({CAPTION.setting})" if others else "")
