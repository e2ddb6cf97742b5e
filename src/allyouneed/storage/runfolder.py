"""The layout of a run on disk. One process at a time writes it, and a checkpoint is used only if its checksums agree.

RUN/  recipe.toml  config.json  model.safetensors  metrics.jsonl  scores.json
      the parts that config.json lists: tokenizer.json, labels.json, …
      checkpoints/step-000800/  model.safetensors  train.safetensors  state.json  manifest.json
      kept/step-000100.safetensors  the model at that step, with train.keep
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from allyouneed.config import is_storable
from allyouneed.errors import UserError, nearest, option_name, shortened
from allyouneed.recipe import Recipe
from allyouneed.storage.checkpoints import Checkpoints
from allyouneed.storage.runjson import RENAMED, VERSION, check_config, check_scores, is_name, parse_object
from allyouneed.storage.tensorfile import read_header
from allyouneed.storage.wholefile import (
    open_plain,
    read_bytes,
    refuse_link,
    remove,
    size_and_hash,
    sync,
    write_bytes,
    write_json,
    writing,
)

# What every run may have; config.json lists the rest. The recipe makes a folder a run: written first, removed last.
OWN = ["checkpoints", "kept", "tensorboard", "metrics.jsonl", "scores.json"]
OWN += ["model.safetensors", "config.json", "recipe.toml"]
LARGEST = 1 << 28  # bytes of a file that is read whole
# An old run waits here while a new one is written. Its recipe is moved here last and moved out first: if it is here,
# all of the old run is, and the other files in the run's folder belong to the new one.
ASIDE = ".tmp-old"

_locks: set[int] = set()


def _leave_locks() -> None:
    """In a forked child: close the parent's locks, or a worker that outlives the parent would keep the run locked."""
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_leave_locks)


class RunFolder:
    """A run on disk: where its files are, who may write them, and its checkpoints."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe = self.path / "recipe.toml"
        self.config = self.path / "config.json"
        self.model = self.path / "model.safetensors"
        self.metrics = self.path / "metrics.jsonl"
        self.scores = self.path / "scores.json"
        self.checkpoints = Checkpoints(self.path / "checkpoints")

    @staticmethod
    def open(path: str | Path) -> RunFolder:
        """The folder of a run that is there and complete, to be loaded."""
        run = RunFolder(path)
        if not os.path.isdir(run.path):
            if os.path.exists(run.path):
                raise UserError(f"{run.path} is a file; a run is a folder, as `ayn train` makes it")
            raise UserError(f"there is no run folder {shortened(run.path)}{run.neighbours()}")
        run.recover()
        run._check_name("rename it")
        for needed in (run.recipe, run.config):
            if not needed.is_file():
                raise UserError(f"{run.path} is not a complete run: it has no {needed.name}")
        return run

    def _check_name(self, advice: str) -> None:
        """The files of a run name its folder, and so do the libraries that read them."""
        if not is_storable(str(self.path)):
            shown = shortened(ascii(str(self.path)))
            raise UserError(f"the folder {shown} has a name that is not UTF-8, or has a zero byte: {advice}")

    @staticmethod
    def create(path: str | Path, *, resume: bool | None = False, overwrite: bool = False) -> RunFolder:
        """The folder of a run that starts, continues (`resume`; None: it cannot) or starts over (`overwrite`).

        A folder that holds something else than a run is refused; where nothing has begun, a resumed run starts. Nothing
        is overwritten here, but in `replacing`.
        """
        run = RunFolder(path)
        if resume and overwrite:
            raise UserError(
                f"{option_name('--resume')} and {option_name('--overwrite')} exclude each other: "
                "continue the run, or replace it"
            )
        run._check_name("choose another")
        if os.path.exists(run.path) and not os.path.isdir(run.path):
            raise UserError(f"{run.path} is a file; a run needs a folder")
        run.recover()
        if resume and run.begun():
            return run
        with writing(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
            names = {entry.name for entry in run.path.iterdir()}
        if ".lock" in names:  # a run that was killed before it wrote its recipe
            names = {name for name in names if name != ".lock" and not name.startswith(".tmp-")}
        if not names:
            return run
        if not run.begun():
            raise UserError(f"{run.path} is not empty and holds no run; choose another folder")
        if not overwrite:
            go_on = "" if resume is None else f"{option_name('--resume')} continues it, "
            raise UserError(f"{run.path} already holds a run: {go_on}{option_name('--overwrite')} replaces it")
        return run

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Overwrite: move away what the old run wrote, and nothing else. If the block fails, or the process is killed
        inside it, the old run comes back; after the block it is gone. For the holder of the lock."""
        old, aside = self.begun(), self.path / ASIDE
        try:
            if old:
                with writing(self.path):
                    aside.mkdir()
                    for name in self._names():
                        if os.path.lexists(self.path / name):
                            os.rename(self.path / name, aside / name)
                    sync(self.path)
            yield
        except BaseException:
            with suppress(UserError):  # the first error is raised; the next lock tries again to restore
                if old:
                    self._restore()
                else:
                    self._remove_run()
            raise
        if old:
            # One rename ends it: a run of which a part is removed must not come back.
            gone = self.path / ".tmp-gone"
            with writing(self.path):
                os.rename(aside, gone)
                sync(self.path)
            remove(gone)

    def recover(self) -> None:
        """Bring back a run whose replacement was killed, unless a replacement is under way."""
        if os.path.isdir(self.path / ASIDE):
            with suppress(UserError), self.lock():
                pass

    def _restore(self) -> None:
        """Move an old run back into its place; interrupted at any point, it can be called again."""
        aside = self.path / ASIDE
        if not aside.is_dir() or aside.is_symlink():
            return
        recipe = aside / self.recipe.name
        with writing(self.path):
            if recipe.exists():
                self._remove_run()
                os.rename(recipe, self.recipe)
            for entry in aside.iterdir():
                if is_name(entry.name):
                    os.rename(entry, self.path / entry.name)
            remove(aside)

    def _remove_run(self) -> None:
        for name in self._names():
            remove(self.path / name)

    def _names(self) -> list[str]:
        """What the run wrote, as far as config.json can be read; the recipe is the last."""
        listed: list[str] = []
        with suppress(UserError), _checking(self.config):
            config = parse_object(_text(self.config))
            for several in (config.get("parts"), config.get("files")):
                listed += [name for name in several if is_name(name)] if isinstance(several, dict | list) else []
        return [*(name for name in dict.fromkeys(listed) if name not in OWN), *OWN]

    def describe(self, recipe: str, config: Mapping[str, Any], parts: Mapping[str, bytes]) -> None:
        """Write recipe.toml, config.json and the parts, without which the run cannot be used. The names of the parts
        are written before the parts: `replacing` must know them even if this is interrupted."""
        about = {"version": VERSION, "recipe": self.write_recipe(recipe), **config}
        write_json(self.config, {**about, "parts": {}, "files": list(parts)})
        listed = {name: write_bytes(self.path / name, data) for name, data in parts.items()}
        write_json(self.config, {**about, "parts": listed, "files": []})

    def write_recipe(self, recipe: str) -> str:
        """Write recipe.toml; returns its checksum, for config.json. Before that, config.json gets both the old and the
        new one: a run that is killed in between has one of the two files."""
        data = recipe.encode()
        new: str = size_and_hash(data)["sha256"]
        before = self.read_config(needed=False).get("recipe", "")
        if before and before != new:
            self.update_config(recipe=f"{before} {new}")
        write_bytes(self.recipe, data)
        return new

    def update_config(self, **values: Any) -> None:
        """Change some keys of config.json."""
        write_json(self.config, {**self.read_config(), **values})

    def record(self, written: Iterable[Path]) -> None:
        """Note in config.json which other files the run has written, such as images."""
        files = self.read_config()["files"]
        new = [path.name for path in written if path.parent == self.path and path.name not in files]
        if new:
            self.update_config(files=[*files, *new])

    def read_recipe(self) -> Recipe:
        """recipe.toml, checked. In config.json, no checksum of it means that any is accepted."""
        with _checking(self.recipe):
            recipe = Recipe.parse(tomllib.loads(_text(self.recipe)))
        listed = self.read_config(needed=False).get("recipe", "")
        if listed and size_and_hash(_read(self.recipe))["sha256"] not in listed.split():
            raise UserError(
                f"{self.recipe} is not the file that config.json lists: it is damaged, edited, or from another run; "
                'put back the right one and give settings on the command line or, to accept this one, set "recipe" '
                'to "" in config.json'
            )
        return recipe

    def read_config(self, needed: bool = True) -> dict[str, Any]:
        """config.json, checked; {} if there is none and it is not needed."""
        if not needed and not self.config.exists():
            return {}
        with _checking(self.config):
            config = parse_object(_text(self.config))
        found, kind = config.get("version"), config.get("kind")
        earlier = type(found) is int and found in RENAMED and kind not in RENAMED[found]
        if not earlier and (type(found) is not int or found != VERSION):
            has = f"is of version {str(found)[:20]}" if "version" in config else "names no version"
            raise UserError(f"{self.config} {has}, this library reads runs of version {VERSION}: train the run again")
        with _checking(self.config):
            check_config(config)
        return config

    def read_parts(self) -> dict[str, bytes]:
        """The parts that config.json lists, exactly as they were written."""
        found = {}
        for name, expected in self.read_config()["parts"].items():
            path = self.path / name
            if not path.is_file():
                raise UserError(f"{self.path} is not a complete run: it has no {name}")
            found[name] = _read(path)
            if size_and_hash(found[name]) != expected:
                raise UserError(
                    f"{path} is damaged, or belongs to another run: it is not the file that config.json lists; "
                    "put back the right one, or train again"
                )
        return found

    def read_scores(self) -> dict[str, list[dict[str, Any]]]:
        """scores.json, checked; {} if there is none."""
        if not self.scores.exists():
            return {}
        with _checking(self.scores, "remove it and run `ayn test`"):
            scores = parse_object(_text(self.scores))
            check_scores(scores)
        return scores

    def identity(self) -> str:
        """A digest of what the run is: its task, its model and its parts. The weights carry it, so that files of two
        runs cannot be mixed unnoticed."""
        config = self.read_config()
        fields = {key: config[key] for key in ("task", "kind", "model", "parts")}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    def made_at(self) -> str:
        """Which checkpoint the model is, for signatures."""
        return f"step:{read_header(self.model).notes.get('step', 'unknown')}"

    def neighbours(self) -> str:
        """A hint for a misspelt run: those beside it with the nearest names, or those in runs/ if only a name is
        given."""
        folders = {"": self.path.parent, **({"runs/": Path("runs")} if self.path.parent == Path() else {})}
        there = [(before, folder) for before, folder in folders.items() if os.path.isdir(folder)]
        names = (before + recipe.parent.name for before, folder in there for recipe in folder.glob("*/recipe.toml"))
        return nearest(self.path.name, names)

    def drop_if_empty(self, above: Sequence[Path] = ()) -> None:
        """Remove the folder unless something is in it, or another process has just locked it; then those `above` it
        that are empty."""
        with suppress(OSError, ValueError, UserError):
            if os.listdir(self.path) == [".lock"]:
                with self.lock():
                    (self.path / ".lock").unlink()
            for path in (self.path, *above):
                path.rmdir()

    def begun(self) -> bool:
        """Whether there is a run, or the beginning of one."""
        marks = (".lock", "checkpoints", "model.safetensors")
        return os.path.isfile(self.recipe) and any((self.path / mark).exists() for mark in marks)

    def model_at(self, step: int) -> Path:
        """Where the model of a step along the way is, with train.keep."""
        return self.path / "kept" / f"step-{step:06d}.safetensors"

    def models(self) -> dict[int, Path]:
        """The models along the way by their steps, ascending."""
        names = [path.stem.removeprefix("step-") for path in self.path.glob("kept/step-*.safetensors")]
        steps = sorted(int(name) for name in names if name.isdecimal())
        return {step: self.model_at(step) for step in steps if self.model_at(step).is_file()}

    def in_use(self) -> bool:
        """Whether a process holds the lock now."""
        with suppress(OSError, UserError):
            handle = open_plain(self.path / ".lock", os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(handle)
        return False

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that writes here, until the end of the block or of the process, however it ends.

        What an interrupted write left is cleaned up first, and a run whose replacement was killed comes back: under the
        lock it cannot be work in progress.
        """
        path = self.path / ".lock"
        for name in (".lock", "metrics.jsonl", "checkpoints", "kept", "tensorboard"):
            refuse_link(self.path / name)
        with writing(path):
            handle = open_plain(path, os.O_RDWR | os.O_CREAT)
        _locks.add(handle)
        try:
            with writing(path):
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    holder = os.pread(handle, 20, 0).decode(errors="replace") or "(unknown)"
                    raise UserError(f"{self.path} is in use by process {holder}: wait for it, or stop it") from None
                if not os.path.exists(path) or not os.path.samestat(os.fstat(handle), os.stat(path)):
                    raise UserError(f"{self.path} has just been removed by another process: try again")
                os.ftruncate(handle, 0)
                os.pwrite(handle, str(os.getpid()).encode(), 0)
            self._restore()
            with writing(self.path):
                for leftover in (*self.path.glob(".tmp-*"), *self.path.glob("kept/.tmp-*")):
                    remove(leftover)
                self.checkpoints.tidy()
            yield
        finally:
            if handle in _locks:  # a forked child has closed it already
                _locks.remove(handle)
                fcntl.flock(handle, fcntl.LOCK_UN)
                os.close(handle)


@contextmanager
def _checking(path: Path, remedy: str = "put a copy in its place, or train again") -> Iterator[None]:
    """Turn what a damaged text file of a run leads to into a sentence that names it."""
    try:
        yield
    # Not UTF-8, not TOML and not JSON are all ValueErrors; the other two are for values of a strange type or depth.
    except (UserError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); {remedy}") from None


def _text(path: Path) -> str:
    return _read(path).decode("utf-8")


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, LARGEST)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
