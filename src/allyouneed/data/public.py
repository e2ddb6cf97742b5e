"""Public data sets: what public.toml says about each."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import chain
from typing import Any

from allyouneed.data.fetch import File, mirror_folder

Span = tuple[int, int]


@dataclass(frozen=True)
class Form:
    """The files that a data set can be read from. Some sets can be read from different files."""

    layout: str  # which function of layouts.py or picture_layouts.py reads them
    files: Mapping[str, Sequence[File]]  # of each split
    notes: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # of the layout

    @property
    def every_file(self) -> list[File]:
        return list(dict.fromkeys(chain.from_iterable(self.files.values())))


@dataclass(frozen=True)
class NamedSet:
    """One line of `ayn list data`."""

    name: str
    shape: str
    what: str
    licence: str
    origin: str


@dataclass(frozen=True)
class PublicSet(NamedSet):
    """A public data set."""

    forms: Sequence[Form]
    notes: Sequence[str] = ()
    held_out: tuple[float, float] = (0.0, 0.0)  # parts of train for valid and test, by a hash of input or caption
    bytes: Mapping[str, Span] = field(default_factory=dict)  # of one document that each split has
    documents: Mapping[str, Span] = field(default_factory=dict)  # that each split has
    swapped: bool = False  # whether the target comes first in the files

    @property
    def download(self) -> Form | None:
        """The form that can be downloaded."""
        return next((form for form in self.forms if all(file.address for file in form.every_file)), None)

    def choose(self, mirror: str = "") -> Form:
        """The first form that the mirror has, else the one that can be downloaded."""
        folder = mirror_folder(mirror)
        if folder is not None:
            for form in self.forms:
                if all(os.path.isfile(folder / file.path) for file in form.every_file):
                    return form
        return self.download or self.forms[0]


def _read_table() -> tuple[PublicSet, ...]:
    table = tomllib.loads((resources.files("allyouneed") / "data" / "public.toml").read_text(encoding="utf-8"))
    known = {path: File(path, **about) for path, about in table["files"].items()}

    def form(layout: str, files: dict[str, list[str]], notes: Sequence[str] = (), **options: Any) -> Form:
        return Form(layout, {split: [known[path] for path in paths] for split, paths in files.items()}, notes, options)

    return tuple(
        PublicSet(name, **{**about, "forms": [form(**one) for one in about["forms"]]})
        for name, about in table["sets"].items()
    )


PUBLIC_SETS = _read_table()


def public_set(name: str) -> PublicSet:
    return next(public for public in PUBLIC_SETS if public.name == name)
