"""Run: what `load` returns. A trained model with its tokenizers, ready to answer, be scored and be looked into."""

from __future__ import annotations

import json
import os
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import nn

from allyouneed import catalog
from allyouneed.config import DecodeConfig, Recipe, build, override, read_recipe
from allyouneed.errors import UserError
from allyouneed.metrics import Score
from allyouneed.nn.attention import Attention
from allyouneed.runfolder import RunFolder, write_json
from allyouneed.runtime import pick_device
from allyouneed.tasks.answers import Answer
from allyouneed.tasks.base import Alignment, Guess, Task
from allyouneed.tensorfile import read_tensors
from allyouneed.train.fit import fit, load_tokenizers


class Run:
    """A trained run.

    >>> run = load("runs/en-it")
    >>> run.predict("I am Italian.")
    'Io sono italiano.'
    """

    def __init__(self, folder: RunFolder, recipe: Recipe, task: Task, model: Any, config: dict[str, Any]) -> None:
        self.folder, self.recipe, self.task, self.model, self.config = folder, recipe, task, model, config

    @overload
    def predict(self, text: str, **decode: Any) -> str: ...
    @overload
    def predict(self, text: Sequence[str], **decode: Any) -> list[str]: ...
    def predict(self, text: str | Sequence[str], **decode: Any) -> str | list[str]:
        """The answer to one text, or to each of several. `decode` are keys of the recipe's [decode]:
        method="beam", beam=5, temperature=0.8, max_new=50, …"""
        texts = [text] if isinstance(text, str) else text
        found = [answer.text for answer in self.answers(texts, **decode)]
        return found[0] if isinstance(text, str) else found

    def answers(
        self, texts: Iterable[str], show: Callable[[str], None] | None = None, **decode: Any
    ) -> Iterator[Answer]:
        """Answers with their tokens and probabilities, in order, streamed."""
        return self.task.predict(self.model, texts, self.decode(**decode), show)

    def lines(self, lines: Iterable[str], complain: Callable[[str], None], **decode: Any) -> Iterator[Answer | None]:
        """An answer a line, however many lines; None for a line that is empty or that the model cannot take."""
        settings = self.decode(**decode)
        waiting: deque[bool] = deque()  # of the lines not yet answered: whether an answer will come

        def good() -> Iterator[str]:
            for number, line in enumerate(lines, 1):
                try:
                    fine = bool(line.strip())
                    if fine:
                        self.task.prompt(self.model, line, settings)
                except UserError as error:
                    fine = False
                    complain(f"line {number}: {error}")
                waiting.append(fine)
                if fine:
                    yield line

        for answer in self.task.predict(self.model, good(), settings):
            while not waiting.popleft():
                yield None
            yield answer
        for _ in waiting:
            yield None

    def decode(self, **changes: Any) -> DecodeConfig:
        """The run's [decode] with some keys changed."""
        values = {**vars(self.recipe.decode), **changes}
        checked: DecodeConfig = build(DecodeConfig, values, "decode")
        return checked

    def test(self, split: str = "test", say: Callable[[str], None] = print, **decode: Any) -> list[Score]:
        """Scores on a split, kept in scores.json."""
        if not self.task.has(split):
            there = ", ".join(self.task.data.splits)
            raise UserError(f"the data of this run has no split '{split}'; there is {there}")
        scores = self.task.test(self.model, split, self.decode(**decode), say)
        before = json.loads(self.folder.scores.read_text()) if self.folder.scores.exists() else {}
        write_json(self.folder.scores, {**before, split: [vars(score) for score in scores]})
        return scores

    def table(self, text: str, most: int = 5, **decode: Any) -> list[Guess]:
        """At each position, the most likely next tokens with their probabilities."""
        return self.task.table(self.model, text, self.decode(**decode), most)

    def align(self, text: str, **decode: Any) -> Alignment:
        """Which words of the source each word of the answer looked at, along the winning path."""
        answer = next(self.answers([text], **decode))
        return self.task.align(self.model, text, answer.tokens)

    def info(self) -> dict[str, Any]:
        """Parameters by part, work a token, memory, data, scores and versions."""
        parts: dict[str, int] = {}
        seen: set[int] = set()
        for name, p in self.model.named_parameters():
            if id(p) not in seen:
                seen.add(id(p))
                parts[_part(name)] = parts.get(_part(name), 0) + p.numel()
        total = sum(parts.values())
        scores = json.loads(self.folder.scores.read_text()) if self.folder.scores.exists() else {}
        context = self.recipe.model.context
        return {
            "run": str(self.folder.path),
            "task": self.recipe.task_kind,
            "model": self.recipe.model_kind,
            "parameters": {**parts, "total": total},
            "flops per token": flops_per_token(self.model, context),
            "memory": {"weights": 4 * total, "training": 16 * total},
            "data": self.config["data"],
            "scores": scores,
            "runtime": self.config.get("runtime", {}),
            "versions": self.config["versions"],
        }


def _part(name: str) -> str:
    """ "decoder.blocks.2.cross.q.weight" -> "decoder.cross" """
    pieces = [piece for piece in name.split(".") if piece != "blocks" and not piece.isdigit()]
    return ".".join(pieces[:2] if pieces[0] in ("stack", "encoder", "decoder") and len(pieces) > 2 else pieces[:1])


def flops_per_token(model: nn.Module, context: int) -> int:
    """Of a forward pass: two for each weight of each matrix, and the attention to `context` tokens."""
    matrices = sum(2 * m.in_features * m.out_features for m in model.modules() if isinstance(m, nn.Linear))
    looking = sum(
        2 * m.heads * (m.head_width + m.value_width) * context for m in model.modules() if isinstance(m, Attention)
    )
    return matrices + looking


def load(path: str | os.PathLike[str], device: str = "auto") -> Run:
    """A run folder -> a Run that answers. Nothing in it is ever executed."""
    folder = RunFolder(Path(path))
    if not folder.path.is_dir():
        raise UserError(f"there is no run folder {folder.path}")
    for needed in (folder.recipe, folder.config):
        if not needed.is_file():
            raise UserError(f"{folder.path} is not a run: it has no {needed.name}")
    if not folder.model.is_file():
        raise UserError(f"{folder.path} has no model yet: its training has not come to its first evaluation")
    try:
        recipe = Recipe.parse(tomllib.loads(folder.recipe.read_text(encoding="utf-8")))
        config = json.loads(folder.config.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{folder.path} is damaged: {error}") from None
    task: Task = catalog.task(recipe.task_kind)(recipe, load_tokenizers(folder))
    model = task.build_model()
    model.load_state_dict(read_tensors(folder.model))
    return Run(folder, recipe, task, model.to(torch.device(pick_device(device))).eval(), config)


def train(
    recipe: str | Recipe,
    *overrides: str,
    data: str | Sequence[str] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> Run:
    """Train a recipe (its name, a .toml file, or a Recipe), on own `data` if given, and load the result.

    >>> run = train("translate/transformer", "train.steps=500", data="pairs.tsv", out="runs/mine")
    """
    path = Path(out) if out is not None else default_out(recipe)
    chosen = resumed(path, overrides) if resume else choose(recipe, overrides, data)
    fit(chosen, path, resume=resume, overwrite=overwrite, quiet=quiet)
    return load(path, chosen.train.device)


def choose(recipe: str | Recipe, overrides: Sequence[str], data: str | Sequence[str] | None) -> Recipe:
    """The recipe with everything laid over it; own data stands in for its named set."""
    found = (
        read_recipe(recipe, overrides)
        if isinstance(recipe, str)
        else Recipe.parse(override(recipe.to_dict(), overrides))
    )
    if data:
        paths = (data,) if isinstance(data, str) else tuple(data)
        found = found.with_(data=replace(found.data, name="", path=paths))
    return found


def resumed(out: Path, overrides: Sequence[str]) -> Recipe:
    """The recipe a run was started with; its own copy counts."""
    stored = out / "recipe.toml"
    if not stored.is_file():
        raise UserError(f"there is no run in {out} to resume; start one without --resume")
    try:
        return Recipe.parse(override(tomllib.loads(stored.read_text(encoding="utf-8")), overrides))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{stored} is damaged: {error}") from None


def default_out(recipe: str | Recipe) -> Path:
    """runs/<recipe>"""
    name = Path(recipe).stem if isinstance(recipe, str) and recipe.endswith(".toml") else recipe
    return Path("runs") / (str(name).replace("/", "-") if isinstance(name, str) else "run")
