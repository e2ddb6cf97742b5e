"""The layout of a run on disk. One process writes it, and a checkpoint is used only if it verifies.

RUN/  recipe.toml  config.json  model.safetensors  tokenizer.json  metrics.jsonl  scores.json
      checkpoints/step-000800/  model.safetensors  train.safetensors  state.json  manifest.json
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from allyouneed.errors import UserError, nearest
from allyouneed.recipe import Recipe
from allyouneed.tensorfile import chunks, read_notes, read_tensors
from allyouneed.wholefile import put, remove, sync, writing

if TYPE_CHECKING:
    from torch import Tensor

# All that a run consists of. The recipe is what makes a folder a run: written first, removed last.
PARTS = (
    *("checkpoints", "tensorboard", "metrics.jsonl", "scores.json", "loss.png", "confusion.png", "vectors.txt"),
    *("vectors.bin", "words.png", "model.safetensors", "tokenizer.json", "tokenizer.target.json", "labels.json"),
    *("config.json", "recipe.toml"),
)
FILES = ("model.safetensors", "train.safetensors", "state.json")


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint."""

    step: int
    path: Path
    state: dict[str, Any]

    def model(self) -> dict[str, Tensor]:
        """The weights."""
        return read_tensors(self.path / "model.safetensors")

    def train(self) -> dict[str, Tensor]:
        """The tensors only training needs: optimizer/…, ema/…, carry/…"""
        return read_tensors(self.path / "train.safetensors")


_locks: set[int] = set()


def _leave_locks() -> None:
    """In a forked child: let go of the parent's locks, or a worker that outlives it would keep the run locked."""
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_leave_locks)


class RunFolder:
    """A run on disk: where its parts are, who may write, and its checkpoints."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe = self.path / "recipe.toml"
        self.config = self.path / "config.json"
        self.model = self.path / "model.safetensors"
        self.tokenizer = self.path / "tokenizer.json"
        self.metrics = self.path / "metrics.jsonl"
        self.scores = self.path / "scores.json"
        self._checkpoints = self.path / "checkpoints"

    @staticmethod
    def create(path: str | Path, *, resume: bool = False, overwrite: bool = False) -> RunFolder:
        """The folder of a run that begins, goes on (`resume`) or begins again (`overwrite`).

        A folder of anything else than a run is refused; `replacing` is what overwrites.
        """
        run = RunFolder(path)
        if resume and overwrite:
            raise UserError("--resume and --overwrite exclude each other: continue the run, or replace it")
        if run.path.exists() and not run.path.is_dir():
            raise UserError(f"{run.path} is a file; a run needs a folder")
        if resume:
            if not run._is_run():
                raise UserError(f"there is no run in {run.path} to resume; start one without --resume")
            return run
        with writing(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
            names = {entry.name for entry in run.path.iterdir()}
        if ".lock" in names:  # a run that was killed before it wrote its recipe
            names = {name for name in names if name != ".lock" and not name.startswith(".tmp-")}
        if not names:
            return run
        if not run._is_run():
            raise UserError(f"{run.path} is not empty and holds no run; choose another folder")
        if not overwrite:
            raise UserError(f"{run.path} already holds a run: --resume continues it, --overwrite replaces it")
        return run

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Overwrite: the parts of the run that is there, and nothing else, are set aside. They come back if the new
        run does not come to the end of the block; after it they are gone. For the holder of the lock."""
        aside = self.path / ".tmp-replaced"
        with writing(self.path):
            aside.mkdir()
            _move(self.path, aside)
        try:
            yield
        except BaseException:
            for part in PARTS:
                remove(self.path / part)
            with suppress(OSError):
                _move(aside, self.path)
                aside.rmdir()
            raise
        remove(aside)

    def read_recipe(self) -> Recipe:
        """recipe.toml, checked."""
        return _parsed(self.recipe, lambda text: Recipe.parse(tomllib.loads(text)))

    def read_config(self) -> dict[str, Any]:
        """config.json."""
        return _parsed(self.config, _object("data", "versions"))

    def read_scores(self) -> dict[str, Any]:
        """scores.json, {} where there is none."""
        return _parsed(self.scores, _object(), "remove it and run `ayn test`") if self.scores.exists() else {}

    def made_at(self) -> str:
        """Which checkpoint the model is, for signatures."""
        return f"step:{read_notes(self.model).get('step', 'unknown')}"

    def neighbours(self) -> str:
        """A hint for a misspelt run: the one beside it with the nearest name, or all of them."""
        beside = self.path.parent.iterdir() if self.path.parent.is_dir() else ()
        return nearest(self.path.name, (entry.name for entry in beside if (entry / "recipe.toml").is_file()))

    def drop_if_empty(self) -> None:
        """Remove the folder unless something is in it."""
        with suppress(OSError):
            self.path.rmdir()

    def _is_run(self) -> bool:
        marks = (".lock", "checkpoints", "model.safetensors")
        return self.recipe.is_file() and any((self.path / mark).exists() for mark in marks)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that writes here, until the end of the block or of the process, however it ends.

        What an interrupted write left behind is put right first: only now can it be nobody's work in progress.
        """
        path = self.path / ".lock"
        with writing(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        _locks.add(handle)
        try:
            with writing(path):
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    holder = os.pread(handle, 20, 0).decode(errors="replace") or "(unknown)"
                    raise UserError(f"{self.path} is in use by process {holder}: wait for it, or stop it") from None
                os.ftruncate(handle, 0)
                os.pwrite(handle, str(os.getpid()).encode(), 0)
            self._tidy()
            yield
        finally:
            if handle in _locks:  # a forked child has left it already
                _locks.remove(handle)
                fcntl.flock(handle, fcntl.LOCK_UN)
                os.close(handle)

    def _tidy(self) -> None:
        """Finish a checkpoint that only lacked its last rename; remove every other leftover."""
        with writing(self.path):
            for leftover in self.path.glob(".tmp-*"):
                remove(leftover)
            for leftover in self._checkpoints.glob(".tmp-step-*"):
                final = self._checkpoints / leftover.name.removeprefix(".tmp-")
                if not final.exists() and _damage(leftover) is None:
                    os.rename(leftover, final)
                    sync(self._checkpoints)
                remove(leftover)
            for leftover in self._checkpoints.glob(".old-*"):
                remove(leftover)

    def save_checkpoint(
        self, step: int, model: Mapping[str, Tensor], train: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> Path:
        """Write a checkpoint in place of any of this step; later ones belong to a future now left, and are removed."""
        final = self._folder(step)
        temporary = final.with_name(f".tmp-{final.name}")
        # The state comes back as it was, so Infinity and NaN stay what they are.
        text = (json.dumps(state, indent=2) + "\n").encode()
        contents = dict(zip(FILES, (chunks(model), chunks(train), [text])))
        steps = self.checkpoints()
        last = f"the last checkpoint is {self._folder(steps[-1])}" if steps else "there was no checkpoint yet"
        with writing(final, kept=last):
            remove(temporary)
            try:
                temporary.mkdir(parents=True)
                files = {name: put(temporary / name, pieces) for name, pieces in contents.items()}
                put(temporary / "manifest.json", [json.dumps(files, indent=2).encode()])
                sync(temporary)
            except BaseException:
                remove(temporary)
                raise
            # Between these renames the step is only in `temporary`, whole, where `_tidy` finds it.
            aside = [self._set_aside(final)] if final.exists() else []
            os.rename(temporary, final)
            aside += [self._set_aside(self._folder(later)) for later in self._steps() if later > step]
            sync(self._checkpoints)
            sync(self.path)
        for folder in aside:
            remove(folder)
        return final

    def checkpoints(self) -> list[int]:
        """The steps of the checkpoints, ascending; `latest` says which of them are whole."""
        return [step for step in self._steps() if (self._folder(step) / "manifest.json").is_file()]

    def latest(self, complain: Callable[[str], object] = print) -> Checkpoint | None:
        """The last checkpoint that verifies; each later one that does not is named to `complain`."""
        damaged: list[str] = []
        for step in reversed(self._steps()):
            folder = self._folder(step)
            damage = _damage(folder)
            if damage is None:
                for problem in damaged:
                    complain(f"{problem}; using step {step} instead")
                return Checkpoint(step, folder, json.loads((folder / "state.json").read_bytes()))
            if folder.exists():  # else it was pruned while we looked
                damaged.append(f"checkpoints/{folder.name}/{damage}")
        if damaged:
            raise UserError(f"no checkpoint of {self.path} can be used: {'; '.join(damaged)}")
        return None

    def weights(self, step: int) -> dict[str, Tensor]:
        """The model of one checkpoint."""
        return read_tensors(self._folder(step) / "model.safetensors")

    def prune(self, keep: int, also: Collection[int] = ()) -> None:
        """Remove all checkpoints but the last `keep` and those of the steps in `also`."""
        steps = self.checkpoints()
        with writing(self._checkpoints):
            aside = [self._set_aside(self._folder(step)) for step in steps[:-keep] if step not in also]
            if aside:
                sync(self._checkpoints)
        for folder in aside:
            remove(folder)

    def _folder(self, step: int) -> Path:
        return self._checkpoints / f"step-{step:06d}"

    def _steps(self) -> list[int]:
        names = [entry.name.removeprefix("step-") for entry in self._checkpoints.glob("step-*") if entry.is_dir()]
        return sorted(int(name) for name in names if name.isdecimal() and name == f"{int(name):06d}")

    def _set_aside(self, folder: Path) -> Path:
        """Rename what will be removed: half removed, it must not look like a checkpoint."""
        aside = folder.with_name(f".old-{folder.name}")
        remove(aside)
        os.rename(folder, aside)
        return aside


T = TypeVar("T")


def _parsed(path: Path, parse: Callable[[str], T], remedy: str = "put a copy in its place, or train again") -> T:
    """A text file of a run; the complaint names it."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (UserError, ValueError) as error:  # not UTF-8, not TOML and not JSON are all ValueErrors
        raise UserError(f"{path} is damaged ({error}); {remedy}") from None


def _object(*keys: str) -> Callable[[str], dict[str, Any]]:
    """A parser of a JSON object that has these keys."""

    def parse(text: str) -> dict[str, Any]:
        value = json.loads(text)
        if not isinstance(value, dict) or any(key not in value for key in keys):
            raise ValueError(f"it is no JSON object{' with ' if keys else ''}{' and '.join(keys)}")
        return value

    return parse


def _move(here: Path, there: Path) -> None:
    """Every part of a run."""
    for part in PARTS:
        if os.path.lexists(here / part):
            os.rename(here / part, there / part)


def _damage(folder: Path) -> str | None:
    """What is wrong with the files of a checkpoint, judged by its manifest; None if nothing is."""
    name = "manifest.json"
    try:
        manifest = json.loads((folder / name).read_bytes())
        expected = [(manifest[name]["bytes"], manifest[name]["sha256"]) for name in FILES]
        for name, (size, digest) in zip(FILES, expected):
            with open(folder / name, "rb") as file:
                if os.fstat(file.fileno()).st_size != size:
                    return f"{name} is damaged (size differs)"
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    return f"{name} is damaged (sha256 differs)"
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError):
        return f"{name} is damaged (not a manifest)"
    return None
