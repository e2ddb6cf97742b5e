"""Run: what `load` returns. A trained model with its tokenizers, ready to answer, be scored and be looked into."""

from __future__ import annotations

import math
import os
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import nn

from allyouneed.config import DecodeConfig, build
from allyouneed.errors import UserError
from allyouneed.metrics import Score
from allyouneed.nn.attention import Attention
from allyouneed.nn.layers import store_by_columns
from allyouneed.recipe import Recipe
from allyouneed.runfolder import RunFolder
from allyouneed.runtime import pick_device
from allyouneed.tasks.answers import Answer
from allyouneed.tasks.base import Alignment, Guess, Task
from allyouneed.tasks.saved import saved_task, saved_weights
from allyouneed.tasks.token_vectors import freeze_vectors
from allyouneed.training.fit import fit
from allyouneed.training.memory import lasting
from allyouneed.training.starting import Given, choose, resumed, with_data
from allyouneed.wholefile import write_json


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
        method="beam", beam=5, temperature=0.8, max_new=50, … `answers` has more: n_best, probabilities, tokens."""
        texts = [text] if isinstance(text, str) else text
        found = [answer.text for answer in self.answers(texts, **decode)]
        return found[0] if isinstance(text, str) else found

    def answers(
        self, texts: Iterable[str], show: Callable[[str], None] | None = None, **decode: Any
    ) -> Iterator[Answer]:
        """Answers with their tokens and probabilities, in order, streamed."""
        return self.task.predict(self.model, texts, self.decode(**decode), show)

    def lines(
        self, lines: Iterable[str], complain: Callable[[str], None], first: int = 1, **decode: Any
    ) -> Iterator[Answer | None]:
        """An answer a line, however many lines; None for a line that is empty or that the model cannot take.
        `first` is the number of the first line, for complaints."""
        settings = self.decode(**decode)
        waiting: deque[bool] = deque()  # of the lines not yet answered: whether an answer will come

        def good() -> Iterator[str]:
            for number, line in enumerate(lines, first):
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

    def test(
        self, split: str = "test", say: Callable[[str], None] = print, data: Given | None = None, **decode: Any
    ) -> list[Score]:
        """Scores on a split of the run's own data; or of other `data`, where a single file is taken whole. They are
        kept in scores.json."""
        settings, before, made_at = self.decode(**decode), self.folder.read_scores(), self.folder.made_at()
        task, name = self.task, split
        if data is None:
            self._same_data(say)
        else:
            task = self._on(data, say)
            split = "all" if split == "test" and not task.has(split) else split
            name = f"{task.data.name} {split}"
        if not task.has(split):
            whose = "this run" if data is None else task.data.name
            raise UserError(f"the data of {whose} has no split '{split}'; there is {', '.join(task.data.splits)}")
        if data is not None:
            examples = task.data.splits[split]
            left_out = f"; {examples.empty:,} without text left out" if examples.empty else ""
            say(f"{split}: {examples.examples:,} {'documents' if task.shape == 'text' else 'examples'}{left_out}")
        found = task.test(self.model, split, settings, say)
        scores = [score.signed(f"{task.origin}|{made_at}") for score in found]
        write_json(self.folder.scores, {**before, name: [vars(score) for score in scores]})
        pictures = task.draw(self.folder.path, split)
        self.folder.record(pictures)
        for picture in pictures:
            say(f"the picture is in {picture}")
        return scores

    def _on(self, data: Given, say: Callable[[str], None]) -> Task:
        """The task of this run on other data. Nothing is held out of own files; what is one split is called "all"."""
        whole = replace(self.recipe.data, valid_path=(), test_path=(), valid_part=0.0, test_part=0.0, limit=0)
        recipe = with_data(self.recipe.with_(data=whole), data)
        if not recipe.data.path:  # a public set has no columns to name
            recipe = recipe.with_(data=replace(recipe.data, source="", target="", second=""))
        task = self.task.on(recipe)
        if list(task.data.splits) == ["train"]:
            task.data.splits = {"all": task.data.splits["train"]}
        for line in task.data.understood:
            say(line)
        return task

    def _same_data(self, say: Callable[[str], None]) -> None:
        gone = [path for path in self.recipe.data.path if not Path(path).exists()]
        if gone:
            again = shlex.join(["ayn", "train", str(self.folder.recipe), "--out", str(self.folder.path), "--resume"])
            raise UserError(f"the data of this run, {gone[0]}, is not there; if it has moved: {again} --data NEW-PLACE")
        if self.task.data.fingerprint != self.config["data"].get("fingerprint"):
            say("the data is not what this run was trained on: its splits may have moved")

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
        for name, p in self.model.named_parameters():  # tied ones come once
            parts[_part(name)] = parts.get(_part(name), 0) + p.numel()
        total = sum(parts.values())
        adam = self.recipe.train.optimizer == "adamw"
        longest = getattr(self.task, "longest", self.recipe.data.max_length)  # of a sentence; a text has windows
        context = longest if self.task.shape != "text" else getattr(self.recipe.model, "context", longest)
        return {
            "run": str(self.folder.path),
            "task": self.recipe.task_kind,
            "model": self.recipe.model_kind,
            "parameters": {**parts, "total": total},
            "flops per token": flops_per_token(self.model, context),
            "context": context,
            "memory": {"weights": 4 * total, "training": sum(lasting(self.model, adam=adam))},
            "data": self.config["data"],
            "scores": self.folder.read_scores(),
            "runtime": self.config.get("runtime", {}),
            "versions": self.config["versions"],
        }

    def scores(self) -> dict[str, list[Score]]:
        """The scores in scores.json, by split."""
        # A number that JSON cannot hold, such as an infinite perplexity, is null in the file.
        return {
            split: [Score(**{**s, "value": math.nan if s["value"] is None else s["value"]}) for s in found]
            for split, found in self.folder.read_scores().items()
        }


def _part(name: str) -> str:
    """ "decoder.blocks.2.cross.q.weight" -> "decoder.cross" """
    pieces = [piece for piece in name.split(".") if piece != "blocks" and not piece.isdigit()]
    return ".".join(pieces[:2] if pieces[0] in ("stack", "encoder", "decoder") and len(pieces) > 2 else pieces[:1])


def flops_per_token(model: nn.Module, context: int) -> int:
    """Of a forward pass: two for each weight of each matrix, and the attention to `context` tokens; or what the model
    itself says."""
    own: Any = getattr(model, "flops", None)
    if own is not None:
        return int(own())
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.RNNBase | nn.Conv1d)]
    matrices = sum(2 * p.numel() for m in layers for p in m.parameters(recurse=False) if p.dim() > 1)
    looking = sum(
        2 * m.heads * (m.head_width + m.value_width) * context for m in model.modules() if isinstance(m, Attention)
    )
    return matrices + looking


def load(path: str | os.PathLike[str], device: str = "auto") -> Run:
    """A run folder -> a Run that answers. Nothing in the folder is ever executed."""
    folder = RunFolder(Path(path))
    if not folder.path.is_dir():
        if folder.path.exists():
            raise UserError(f"{folder.path} is a file; a run is a folder, as `ayn train` makes it")
        raise UserError(f"there is no run folder {folder.path}{folder.neighbours()}")
    folder.recover()
    for needed in (folder.recipe, folder.config):
        if not needed.is_file():
            raise UserError(f"{folder.path} is not a complete run: it has no {needed.name}")
    task = saved_task(folder)
    weights = saved_weights(folder, task)
    model: Any = task.build_model()
    model.load_state_dict(weights)
    recipe, config = task.recipe, folder.read_config()
    freeze_vectors(model, recipe.model, list(task.tokenizers.values()))
    model.to(torch.device(pick_device(device))).eval()
    if next(model.parameters()).device.type == "cpu":
        store_by_columns(model)
    return Run(folder, recipe, task, model, config)


def train(
    recipe: str | Recipe,
    *overrides: str,
    data: Given | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> Run:
    """Train a recipe (its name, a .toml file, or a Recipe), on own `data` if given, and load the result.

    >>> run = train("translate/transformer", "train.steps=500", data="pairs.tsv", out="runs/mine")
    """
    path = Path(out) if out is not None else default_out(recipe)
    chosen = resumed(path, recipe, overrides, data) if resume else choose(recipe, overrides, data)
    fit(chosen, path, resume=resume, overwrite=overwrite, quiet=quiet)
    return load(path, chosen.train.device)


def default_out(recipe: str | Recipe) -> Path:
    """runs/<recipe>"""
    name = Path(recipe).stem if isinstance(recipe, str) and recipe.endswith(".toml") else recipe
    return Path("runs") / (str(name).replace("/", "-") if isinstance(name, str) else "run")
