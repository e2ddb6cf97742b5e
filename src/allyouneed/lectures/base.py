"""What every experiment needs: a folder for its figure, a way to print, and a way to train a small model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from allyouneed.errors import UserError
from allyouneed.format import columns
from allyouneed.run import Run, load
from allyouneed.storage.wholefile import write_json
from allyouneed.terminal import say
from allyouneed.training.fit import fit
from allyouneed.training.starting import choose


@dataclass(frozen=True)
class Lecture:
    """The folder and the options of an experiment. `run` is a trained run to use instead of training one."""

    out: Path
    say: Callable[[str], None] = say
    run: str = ""
    mirror: str = ""

    def figure(self, name: str) -> Path:
        return self.out / f"{name}.png"

    def numbers(self, name: str) -> Path:
        return self.out / f"{name}.json"

    def write_numbers(self, name: str, numbers: dict[str, Any]) -> None:
        """The numbers of the figure, so that they can be drawn again."""
        self.out.mkdir(parents=True, exist_ok=True)
        write_json(self.numbers(name), numbers)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a small table."""
        self.say("\n".join(columns([tuple(map(str, row)) for row in (head, *rows)])))

    def trained(
        self, recipe: str, *settings: str, data: str | Path | None = None, name: str = "run", kind: str = ""
    ) -> Run:
        """The given run, one that an earlier call has trained here, or a new one. `kind` is the model that it must
        have."""
        if self.run:
            found, task = load(self.run, precision="fp32"), recipe.partition("/")[0]
            if found.recipe.task_kind != task:
                raise UserError(f"{self.run} is a run for {found.recipe.task_kind}, but this lecture needs {task}")
            if kind and found.recipe.model_kind != kind:
                raise UserError(f"{self.run} is a run of '{found.recipe.model_kind}', but this lecture needs '{kind}'")
            return found
        chosen = choose(recipe, ["data.follow=false", *settings], str(data) if data else None)
        if self.mirror:
            chosen = chosen.with_(data=replace(chosen.data, mirror=self.mirror))
        folder = self.out / name
        if (folder / "scores.json").is_file():
            before = load(folder, precision="fp32")
            if before.recipe == chosen:
                self.say(f"using the model that was trained before: {folder}")
                return before
        fit(chosen, folder, overwrite=True, say=self.say)
        return load(folder, precision="fp32")
