"""What every topic needs: a way to tell, to draw and to keep what it shows, and small models that topics share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from allyouneed.errors import UserError
from allyouneed.lectures.shown import Block, as_text
from allyouneed.recipe import Recipe
from allyouneed.run import Run, load
from allyouneed.runtime import pick_device
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.wholefile import write_json
from allyouneed.terminal import say, write
from allyouneed.training.fit import fit
from allyouneed.training.starting import choose
from allyouneed.version import __version__

SUFFIXES = ("png", "svg")


@dataclass
class Lecture:
    """The folder and the options of topics. `run` is a trained run to use instead of training one, `text` what the
    reader asks about, `quiet` whether trainings print one line in all. `shown` is what the topic has told, its tables
    and its figures, in their order."""

    out: Path
    say: Callable[[str], None] = say
    run: str = ""
    mirror: str = ""
    device: str = "cpu"
    text: str = ""
    quiet: bool = False
    name: str = ""
    runs: tuple[str, ...] = ()
    shown: list[Block] = field(default_factory=list)

    _trains = False  # a line of names has begun

    def __post_init__(self) -> None:
        self.mirror = os.path.abspath(self.mirror) if self.mirror else ""
        self.device = pick_device(self.device)

    @contextmanager
    def topic(self, name: str, runs: tuple[str, ...]) -> Iterator[None]:
        """What is told belongs to the topic `name`, which can look into `runs`."""
        self.name, self.runs, self.shown, self._trains = name, runs, [], False
        try:
            yield
        finally:
            if self._trains:
                write("")

    def path(self, suffix: str, part: str = "") -> Path:
        """A file of the topic, or of a part of it."""
        return self.out / f"{self.name}{f'-{part}' * bool(part)}.{suffix}"

    def tell(self, text: str) -> None:
        """Print a paragraph."""
        self._show({"text": " ".join(text.split())})

    def table(self, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a small table."""
        self._show({"head": list(head), "rows": [[str(cell) for cell in row] for row in rows]})

    def _show(self, block: Block) -> None:
        self.shown.append(block)
        self.say(as_text(block))

    def draw(self, plot: Callable[[Path], None], title: str, part: str = "") -> None:
        """Draw a figure as PNG and SVG; `title` says what it shows to those who cannot see it."""
        for suffix in SUFFIXES:
            plot(self.path(suffix, part))
        self.shown.append({"figure": self.path("png", part).name, "title": title})

    def write(self, numbers: dict[str, Any], **about: Any) -> dict[str, Any]:
        """Keep what was shown, and the numbers of its figures, so that they can be drawn again."""
        given = {"run": self.run, "text": self.text, "device": self.device, "version": __version__}
        self.out.mkdir(parents=True, exist_ok=True)
        record = {"topic": self.name, **about, "given": given, "shown": self.shown, "numbers": numbers}
        write_json(self.path("json"), record)
        return record

    def trained(
        self, recipe: str, *settings: str, data: str | Path | None = None, name: str = "", own: bool = False
    ) -> Run:
        """The given run, or a small model, which is trained only once: topics that ask for the same `name` share it.
        `own`: a model beside the given run."""
        if self.run and not own:
            return self._given()
        chosen = choose(recipe, ["data.follow=false", f"train.device={self.device}", *settings], data and str(data))
        if self.mirror:
            chosen = chosen.with_(data=replace(chosen.data, mirror=self.mirror))
        folder = self.out / "models" / (name or recipe.replace("/", "-"))
        begun = _begun(folder, chosen)
        if begun and (folder / "scores.json").is_file():
            self.say(f"using the model that was trained before: {folder}")
        else:
            if self.quiet:
                write(f", {folder.name}" if self._trains else f"training, into {folder.parent}: {folder.name}", end="")
                self._trains = True
            fit(chosen, folder, resume=begun, overwrite=not begun, quiet=self.quiet, say=self.say)
        return load(folder, self.device, precision="fp32")

    def _given(self) -> Run:
        found = load(self.run, self.device, precision="fp32")
        kind = found.recipe.task_kind, f"{found.recipe.task_kind}/{found.recipe.model_kind}"
        if not set(kind) & set(self.runs):
            wanted = " or ".join(self.runs)
            raise UserError(f"{self.run} is a run of {kind[1]}, but '{self.name}' needs one of {wanted}")
        return found


def check_words(tokenizer: Any, text: str) -> None:
    """Raise a UserError for a sentence of the reader's own without words, or with words that the model cannot read."""
    if not text.strip():
        raise UserError("the sentence is empty: give some words")
    unknown = tokenizer.unknown(text)
    if unknown:
        words = ", ".join(repr(word.strip()) for word in unknown)
        raise UserError(f"the model has never seen {words}: take words that it knows")


def _begun(folder: Path, recipe: Recipe) -> bool:
    """Whether this recipe has begun to be trained in a folder."""
    before = RunFolder(folder)
    before.recover()
    try:
        return before.begun() and before.read_recipe() == recipe
    except UserError:  # it is damaged
        return False
