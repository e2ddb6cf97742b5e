"""The layout of a run on disk. Every write is whole or not there, and a checkpoint is used only if it verifies.

RUN/  recipe.toml  config.json  model.safetensors  tokenizer.json  metrics.jsonl  scores.json
      checkpoints/step-000800/  model.safetensors  train.safetensors  state.json  manifest.json
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allyouneed.errors import UserError, nearest
from allyouneed.tensorfile import CHECK, checksum, chunks, read_tensors

if TYPE_CHECKING:
    from torch import Tensor

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# All that a run consists of. The recipe is what makes a folder a run: written first, removed last.
PARTS = (
    *("checkpoints", "tensorboard", "metrics.jsonl", "scores.json", "loss.png", "confusion.png", "vectors.txt"),
    *("words.png", "model.safetensors", "tokenizer.json", "tokenizer.target.json", "labels.json"),
    *("config.json", "recipe.toml"),
)
FILES = ("model.safetensors", "train.safetensors", "state.json")


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file: afterwards it holds all of `data`, or what it held before."""
    _store(Path(path), [data])


def write_text(path: str | Path, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """`write_bytes` of strict JSON; a number that is not finite becomes null."""
    write_text(path, json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_pieces(path: str | Path, pieces: Iterable[bytes]) -> None:
    """`write_bytes` of a file that is made piece by piece."""
    _store(Path(path), pieces)


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write a safetensors file with its checksum, whole or not at all; returns the SHA-256 of what was written."""
    return _store(Path(path), chunks(tensors, {**(metadata or {}), CHECK: checksum(tensors)}))["sha256"]


@contextmanager
def _writing(path: Path, kept: str = "nothing that was there is lost") -> Iterator[None]:
    """An OSError inside becomes a sentence that names `path`, and what is `kept` when the disk is full."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in FULL:
            full = f"the disk is full: could not write {path} ({reason})"
            raise UserError(f"{full}; {kept}; free space and resume") from error
        raise UserError(f"could not write {path}: {reason}") from error


def _put(path: Path, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write and fsync one file; returns its row of the manifest."""
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _store(path: Path, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """`_put` into a temporary file beside `path`, then rename."""
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    with _writing(path):
        try:
            row = _put(temporary, pieces)
            os.replace(temporary, path)
        except BaseException:
            _remove(temporary)
            raise
        _sync(path.parent)
    return row


def _sync(folder: Path) -> None:
    """Make the renames inside a folder durable, where the file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it is there; what resists is left for the next `lock`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


class Metrics:
    """metrics.jsonl: one strict JSON object a line, appended with one write each."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with _writing(self.path):
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line; a number that is not finite becomes null."""
        line = (json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")
        with _writing(self.path):
            before = os.fstat(self._file.fileno()).st_size
            if self._file.write(line) != len(line):
                self._file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def offset(self) -> int:
        """How many bytes were written. They are on the disk: a checkpoint may rely on them."""
        with _writing(self.path):
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size

    def truncate(self, offset: int) -> None:
        """Forget what was written after `offset`, and any line that a crash has torn."""
        with _writing(self.path):
            self._file.truncate(self.path.read_bytes()[:offset].rfind(b"\n") + 1)

    def close(self) -> None:
        """No more lines."""
        self._file.close()


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

        Overwriting removes the parts of a run and nothing else; a folder of anything else is refused.
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
        with _writing(run.path):
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
        with run.lock():
            for part in PARTS:
                _remove(run.path / part)
                if os.path.lexists(run.path / part):
                    raise UserError(f"could not remove {run.path / part}; remove it, or choose another folder")
        return run

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
        with _writing(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        _locks.add(handle)
        try:
            with _writing(path):
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
        with _writing(self.path):
            for leftover in self.path.glob(".tmp-*"):
                _remove(leftover)
            for leftover in self._checkpoints.glob(".tmp-step-*"):
                final = self._checkpoints / leftover.name.removeprefix(".tmp-")
                if not final.exists() and _damage(leftover) is None:
                    os.rename(leftover, final)
                    _sync(self._checkpoints)
                _remove(leftover)
            for leftover in self._checkpoints.glob(".old-*"):
                _remove(leftover)

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
        with _writing(final, kept=last):
            _remove(temporary)
            try:
                temporary.mkdir(parents=True)
                files = {name: _put(temporary / name, pieces) for name, pieces in contents.items()}
                _put(temporary / "manifest.json", [json.dumps(files, indent=2).encode()])
                _sync(temporary)
            except BaseException:
                _remove(temporary)
                raise
            # Between these renames the step is only in `temporary`, whole, where `_tidy` finds it.
            aside = [self._set_aside(final)] if final.exists() else []
            os.rename(temporary, final)
            aside += [self._set_aside(self._folder(later)) for later in self._steps() if later > step]
            _sync(self._checkpoints)
            _sync(self.path)
        for folder in aside:
            _remove(folder)
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
        with _writing(self._checkpoints):
            aside = [self._set_aside(self._folder(step)) for step in steps[:-keep] if step not in also]
            if aside:
                _sync(self._checkpoints)
        for folder in aside:
            _remove(folder)

    def _folder(self, step: int) -> Path:
        return self._checkpoints / f"step-{step:06d}"

    def _steps(self) -> list[int]:
        names = [entry.name.removeprefix("step-") for entry in self._checkpoints.glob("step-*") if entry.is_dir()]
        return sorted(int(name) for name in names if name.isdecimal() and name == f"{int(name):06d}")

    def _set_aside(self, folder: Path) -> Path:
        """Rename what will be removed: half removed, it must not look like a checkpoint."""
        aside = folder.with_name(f".old-{folder.name}")
        _remove(aside)
        os.rename(folder, aside)
        return aside


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
