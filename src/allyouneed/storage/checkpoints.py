"""The checkpoints of a run: each is a folder that appears complete, and is used only if its checksums agree.

checkpoints/step-000800/  model.safetensors  train.safetensors  state.json  manifest.json
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allyouneed.errors import UserError
from allyouneed.storage.tensorfile import chunks, read_tensors
from allyouneed.storage.wholefile import open_to_read, put, read_bytes, refuse_link, remove, sync, writing
from allyouneed.terminal import say

if TYPE_CHECKING:
    from torch import Tensor

FILES = ("model.safetensors", "train.safetensors", "state.json")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose checksums agree."""

    step: int
    path: Path
    state: Any  # of state.json

    def model(self) -> dict[str, Tensor]:
        """The weights."""
        return read_tensors(self.path / "model.safetensors")

    def train(self) -> dict[str, Tensor]:
        """The tensors that only training needs: optimizer/…, ema/…, carry/…"""
        return read_tensors(self.path / "train.safetensors")


class Checkpoints:
    """The folder `checkpoints` of a run. Only the holder of the run's lock changes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(
        self, step: int, model: Mapping[str, Tensor], train: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> Path:
        """Write a checkpoint in place of any of this step. Later ones are removed: the run began again before them."""
        refuse_link(self.path)
        final = self._folder(step)
        temporary = final.with_name(f".tmp-{final.name}")
        # The state comes back as it was, so Infinity and NaN stay what they are.
        text = (json.dumps(state, indent=2) + "\n").encode()
        contents = dict(zip(FILES, (chunks(model), chunks(train), [text])))
        steps = self.steps()
        last = f"the last checkpoint is {self._folder(steps[-1])}" if steps else "there was no checkpoint yet"
        with writing(final, remaining=last):
            remove(temporary)
            try:
                temporary.mkdir(parents=True)
                files = {name: put(temporary / name, pieces) for name, pieces in contents.items()}
                put(temporary / "manifest.json", [json.dumps(files, indent=2).encode()])
                sync(temporary)
            except BaseException:
                remove(temporary)
                raise
            # Between these renames the step is only in `temporary`, complete, where `tidy` finds it.
            aside = [self._set_aside(step)] if final.exists() else []
            os.rename(temporary, final)
            aside += [self._set_aside(later) for later in self._found() if later > step]
            sync(self.path)
            sync(self.path.parent)
        for folder in aside:
            remove(folder)
        return final

    def steps(self) -> list[int]:
        """The steps of the checkpoints, ascending; `latest` says which of them are undamaged."""
        return [step for step in self._found() if (self._folder(step) / "manifest.json").is_file()]

    def latest(self, complain: Callable[[str], object] = say) -> Checkpoint | None:
        """The last undamaged checkpoint. `complain` gets a sentence about each later one."""
        damaged: list[str] = []
        for step in reversed(self._found()):
            folder = self._folder(step)
            damage = _damage(folder)
            if damage is None:
                for problem in damaged:
                    complain(f"{problem}; using step {step} instead")
                return Checkpoint(step, folder, _read_json(folder / "state.json"))
            if folder.exists():  # else it was pruned in the meantime
                damaged.append(f"checkpoints/{folder.name}/{damage}")
        if damaged:
            raise UserError(f"no checkpoint of {self.path.parent} can be used: {'; '.join(damaged)}")
        return None

    def weights(self, step: int) -> dict[str, Tensor]:
        """The model of one checkpoint."""
        return read_tensors(self._folder(step) / "model.safetensors")

    def prune(self, last: int, also: Collection[int] = ()) -> None:
        """Remove all checkpoints but the `last` ones and those of the steps in `also`."""
        self.drop([step for step in self.steps()[:-last] if step not in also])

    def drop(self, steps: Collection[int]) -> None:
        """Remove the checkpoints of these steps."""
        with writing(self.path):
            aside = [self._set_aside(step) for step in steps]
            if aside:
                sync(self.path)
        for folder in aside:
            remove(folder)

    def tidy(self) -> None:
        """Finish a checkpoint that only lacked its last rename; remove every other leftover."""
        refuse_link(self.path)
        with writing(self.path):
            for leftover in self.path.glob(".tmp-step-*"):
                final = self.path / leftover.name.removeprefix(".tmp-")
                if not final.exists() and _damage(leftover) is None:
                    os.rename(leftover, final)
                    sync(self.path)
                remove(leftover)
            for leftover in self.path.glob(".old-*"):
                remove(leftover)

    def _folder(self, step: int) -> Path:
        return self.path / f"step-{step:06d}"

    def _found(self) -> list[int]:
        names = [entry.name.removeprefix("step-") for entry in self.path.glob("step-*") if entry.is_dir()]
        return sorted(int(name) for name in names if name.isdecimal() and name == f"{int(name):06d}")

    def _set_aside(self, step: int) -> Path:
        """Rename a checkpoint that will be removed: half removed, it must not look like one."""
        folder = self._folder(step)
        aside = folder.with_name(f".old-{folder.name}")
        remove(aside)
        os.rename(folder, aside)
        return aside


def _read_json(path: Path) -> Any:
    return json.loads(read_bytes(path, 1 << 24))


def _damage(folder: Path) -> str | None:
    """What is wrong with the files of a checkpoint; None if nothing is."""
    name = "manifest.json"
    try:
        manifest = _read_json(folder / name)
        expected = [(manifest[name]["bytes"], manifest[name]["sha256"]) for name in FILES]
        for name, (size, digest) in zip(FILES, expected):
            with open_to_read(folder / name) as file:
                if os.fstat(file.fileno()).st_size != size:
                    return f"{name} is damaged (size differs)"
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    return f"{name} is damaged (sha256 differs)"
        _read_json(folder / name)  # state.json, the last of them
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{name} is damaged (not {'a manifest' if name == 'manifest.json' else 'JSON'})"
    return None
