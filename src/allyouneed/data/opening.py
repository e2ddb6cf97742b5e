"""The one door for data: the [data] section of a recipe -> what it names, read once."""

from __future__ import annotations

from pathlib import Path

from allyouneed.config import READ_BY, DataConfig
from allyouneed.data import registry
from allyouneed.data.formats.file_paths import check_name
from allyouneed.data.sources import IMAGES, Dataset, Source
from allyouneed.errors import UserError, nearest

DESCRIBED = {  # the shapes of data
    "text": "plain text",
    "pairs": "pairs of sentences",
    "labels": "labelled texts",
    "tags": "tagged sentences",
    "questions": "questions about texts",
    "images": "labelled images",
    "captions": "captioned images",
    "plain": "images, with or without labels",
}


def open_data(config: DataConfig, shape: str) -> Dataset:
    """The data of a recipe, read and split."""
    return read_data(config, shape).split(config)


def read_data(config: DataConfig, shape: str) -> Source:
    """The user's own files if a path is given, else the built-in or public data set of that name."""
    if config.limit and shape == "text":
        raise UserError("data.limit counts examples, and a text has none: give a shorter file instead")
    if config.reverse and shape != "pairs":
        raise UserError("data.reverse swaps the sides of pairs of sentences; this task has none")
    if config.second and shape not in ("labels", "questions"):
        raise UserError(
            "data.second names the second text of the task classify, or the question of the task answer; "
            "this task has neither"
        )
    if config.header != "auto" and shape not in ("pairs", "labels", "questions", *IMAGES):
        raise UserError(f"data.header = {config.header} is for tables, CSV and TSV; this task reads none")
    if config.mirror:
        check_name(Path(config.mirror))
    if config.path and shape in IMAGES:
        from allyouneed.data.images import read_images  # which imports numpy

        return read_images(config, shape)
    if config.path:
        from allyouneed.data.files import read_own

        return read_own(config, shape)
    if not config.name:
        raise UserError("there is no data: give your own files (data.path) or a name of `ayn list data` (data.name)")
    known = {row.name: row.shape for row in registry.listing()}
    if config.name not in known:
        raise UserError(f"there is no data set '{config.name}'{nearest(config.name, known)}")
    fitting = [name for name, its in known.items() if fits(its, shape)]
    if config.name not in fitting:
        raise UserError(
            f"the data set '{config.name}' is {DESCRIBED[known[config.name]]}, but this task needs "
            f"{DESCRIBED[shape]}; these fit: {', '.join(fitting)}"
        )
    for key in ("valid_path", "test_path", *READ_BY):
        if getattr(config, key) != getattr(DataConfig, key):
            raise UserError(f"data.{key} goes with your own files (data.path); '{config.name}' has fixed splits")
    return registry.read_named(config, shape)


def fits(its: str, wanted: str) -> bool:
    """Whether data of one shape can be read as data of another: all images can be read without their labels."""
    return its == wanted or (wanted == "plain" and its in IMAGES)
