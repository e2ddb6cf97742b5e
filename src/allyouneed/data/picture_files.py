"""Pictures in folders, and tables of their paths with labels or captions."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from allyouneed.config import DataConfig
from allyouneed.data.columns import Column, text_column
from allyouneed.data.decoding import ENDINGS
from allyouneed.data.examples import LabelledPicture
from allyouneed.data.labels import open_labels, with_usual_names
from allyouneed.data.objects import is_unicode
from allyouneed.data.paths import SPLITS, as_text, is_file, is_folder
from allyouneed.data.picture_arrays import CAPTIONS, Listed, idx_pictures
from allyouneed.data.tables import Table, column_of, form_of, open_table
from allyouneed.errors import UserError, shortened

PATHS = ("path", "file", "filename", "file_name", "image", "picture", "image_path", "filepath", "img")
IDX = {"train-images": ("train", "images"), "train-labels": ("train", "labels")}
IDX |= {"t10k-images": ("test", "images"), "t10k-labels": ("test", "labels")}
VALUES = (str, int, float, type(None))  # of JSON; a label may be a number, or missing


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
    return Listed(unlabelled(pictures), f"{folder.name}: {len(pictures):,} pictures{_left_out(aside)}")


def unlabelled(files: Sequence[Path]) -> list[LabelledPicture]:
    """Files as plain pictures."""
    return [LabelledPicture(str(file), "", _content(file)) for file in files]


def _pictures_in(folder: Path) -> tuple[list[Path], int]:
    """The pictures at any depth, and how many other files there are; hidden ones do not count."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not is_hidden(file, folder)]
    pictures = [file for file in files if is_picture_name(file.name)]
    return pictures, len(files) - len(pictures)


def _left_out(aside: int) -> str:
    return f"; left out as no pictures, by their names: {aside:,}" if aside else ""


def _classes(folder: Path, shape: str) -> Listed:
    found, aside = [], 0
    names = [path for path in sorted(folder.iterdir()) if is_folder(path) and not path.name.startswith(".")]
    if not names:
        raise UserError(f"{folder} has no folders in it: put the pictures of each class into a folder of its own")
    for path in names:
        pictures, others = _pictures_in(path)
        if not pictures:
            raise UserError(f"the class folder {path} has no picture: add some, or remove the folder")
        aside += others
        found += [LabelledPicture(str(file), as_text(path.name), _content(file)) for file in pictures]
    told = f"{folder.name}: {len(found):,} pictures in {len(names)} class folders"
    if shape == "captions":
        told += "; the name of a folder is the caption of its pictures"
    if odd := [as_text(path.name) for path in names if not is_unicode(path.name)]:
        told += f"; names of folders that are not UTF-8 are written as {', '.join(odd[:5])}{', …' * (len(odd) > 5)}"
    return Listed(found, told + _left_out(aside))


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=12)).hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def table_pictures(path: Path, config: DataConfig, shape: str) -> Listed:
    """Paths, from the folder of the table, and labels or captions."""
    header = _header(path, config)
    wanted = (config.source, config.target if shape != "plain" else "")
    table = open_table([path], wanted, _names_pictures, header, values=VALUES, least=1, code=config.encoding)
    columns, guessed = {"picture": _picture_column(table, config.source)}, ""
    unlabelled: frozenset[str] = frozenset()
    if shape == "captions":
        columns["caption"], guessed = _caption_column(table, config.target, columns["picture"])
    elif shape == "pictures":
        labelled = open_labels([path], table.names[columns["picture"]], config.target, "", header, code=config.encoding)
        columns = {"picture": labelled.text, "label": labelled.label}
        table, guessed, unlabelled = labelled.table, labelled.guessed, labelled.unlabelled
    found: list[LabelledPicture] = []
    contents: dict[Path, str] = {}  # a picture may have several captions
    for number, cells in enumerate(table.rows(list(columns.values())), 1 + table.header):
        name, *label = (cell.strip() for cell in cells)
        if not name and not any(label):  # a blank line
            continue
        file = path.parent / os.path.expanduser(name)
        if name and not is_file(file):
            raise UserError(
                f"{path}, row {number}: there is no picture {shortened(file, 300)}; paths count from the folder of the "
                "table"
            )
        if file not in contents:
            contents[file] = _content(file) if name else ""  # blank, so it is dropped and counted
        label = [cell for cell in label if cell not in unlabelled]
        found.append(LabelledPicture(str(file), "".join(label), contents[file]))
    return Listed(found, table.understood(columns, "example", guessed))


def _header(path: Path, config: DataConfig) -> str:
    """data.header; if it is auto, pictures may tell: a first row that names one is no header, and one that names none
    above pictures is."""
    if config.header != "auto" or form_of(path) == "jsonl":
        return config.header
    table = open_table([path], (), _names_pictures, "false", values=VALUES, least=1, code=config.encoding)
    first = next((row for row in table.rows(range(len(table.names))) if any(row)), ())
    if any(map(is_picture_name, first)):
        return "false"
    return "true" if any(map(_has_pictures, table.survey())) else "auto"


def _has_pictures(column: Column) -> bool:
    """Whether most cells end as the names of pictures do."""
    return 2 * sum(map(is_picture_name, column.different)) > len(column.different)


def _names_pictures(first: Sequence[str]) -> bool:
    return any(cell.strip().lower() in PATHS for cell in first)


def _picture_column(table: Table, wanted: str) -> int:
    """The column that the user names, or one with a usual name, or one whose cells end as the names of pictures do."""
    if wanted:
        return column_of(table, wanted)
    names = [name.strip().lower() for name in table.names]
    usual = next((names.index(name) for name in PATHS if name in names), None)
    if usual is not None:
        return usual
    found = next((at for at, column in enumerate(table.survey()) if _has_pictures(column)), None)
    if found is not None:
        return found
    raise UserError(
        f"{table.where} has no column with paths of pictures; it has {', '.join(table.names)}: name it with data.source"
    )


def _caption_column(table: Table, wanted: str, picture: int) -> tuple[int, str]:
    """The column that the user names, or one with a usual name, or the one with the most words; and what was guessed,
    for the user."""
    if wanted:
        at = column_of(table, wanted)
        if at == picture:
            raise UserError(
                f"{table.where}: column {table.names[at]} cannot be the picture and the caption; name two columns with "
                "data.source and data.target"
            )
        return at, ""
    columns = table.survey()
    free = [at for at, column in enumerate(columns) if at != picture and column.filled]
    usual = (*CAPTIONS, "label", "labels", "class", "category", "target")
    named = [at for at in with_usual_names(table.names, usual) if at in free]
    texts = [at for at in free if not columns[at].has_numbers]
    if not named and not texts:
        raise UserError(
            f"{table.where} has no column with captions; it has {', '.join(table.names)}: add one called caption, or "
            "name it with data.target"
        )
    at = named[0] if named else text_column(columns, texts)
    others = ", ".join(table.names[other] for other in (named or texts) if other != at)
    told = "" if named else "; caption guessed from the cells"
    return at, told + (f"; the caption could also be {others} (data.target)" if others else "")
