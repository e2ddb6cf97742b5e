"""Losses by name: weighed, logged, drawn and reported each for itself, and counted apart from the units shown."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from allyouneed import catalog
from allyouneed.data.batches.base import Size
from allyouneed.data.batches.windows import Windows
from allyouneed.figures import curves
from allyouneed.tasks.lm import LM
from allyouneed.training.evaluating import Evaluator, NamedLosses
from allyouneed.training.fit import fit
from allyouneed.training.starting import choose
from conftest import TINY_LM


def test_the_total_is_the_weighted_sum_of_the_means():
    losses = NamedLosses({"b": 2.0, "a": 0.5})
    means = losses.means({"a": torch.tensor(6.0), "b": torch.tensor(10.0)}, Size({"a": 3.0, "b": 2.5}, units=9))
    assert means.tolist() == [2.0, 4.0]
    assert losses.total(means) == 0.5 * 2 + 2 * 4
    assert losses.by_name([2.0, 4.0]) == {"loss": 9.0, "a loss": 2.0, "b loss": 4.0}
    assert NamedLosses({"tokens": 1.0}).by_name([3.0]) == {"loss": 3.0}


class Halves(Windows):
    """Its second loss counts half a unit per window."""

    def size(self, numbers, key):
        size = super().size(numbers, key)
        return replace(size, counts={**size.counts, "level": 0.5 * len(numbers)})


class TwoLosses(LM):
    """Next tokens, and how large the mean vector of a window is."""

    weights = {"tokens": 1.0, "level": 0.1}  # noqa: RUF012

    def examples(self, split):
        windows = super().examples(split)
        return Halves(windows.stream, windows.context)

    def losses(self, model, batch, at=None, carry=None):
        found = super().losses(model, batch, at, carry)
        level = model.body(batch.tensors["ids"]).mean(1).square().sum()
        return {**found, "level": level}


def test_two_losses_are_logged_drawn_and_reported_by_their_names(story, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(catalog.TASKS, "lm", "test_named_losses:TwoLosses")
    drawn: list[str] = []
    real = curves._draw_parts
    monkeypatch.setattr(
        curves, "_draw_parts", lambda axes, rows: (real(axes, rows), drawn.extend(axes.get_legend_handles_labels()[1]))
    )
    fit(choose("lm/gpt", TINY_LM, str(story)), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    kinds = {row["kind"] for row in rows if "level loss" in row}
    assert kinds == {"train", "valid"}
    for row in rows:
        assert row["loss"] == pytest.approx(row["tokens loss"] + 0.1 * row["level loss"], rel=1e-5)
    assert {"tokens loss", "level loss"} <= set(drawn)
    out = capsys.readouterr().out
    assert "level loss" in out
    state = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1] / "state.json"
    assert json.loads(state.read_text())["position"]["units"] == 12 * 64  # tokens alone, not tokens and levels


class ByLevel(TwoLosses):
    chooses_by = "level loss"


def test_the_best_weights_have_the_lowest_loss_of_the_name_that_the_task_says(story, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(catalog.TASKS, "lm", "test_named_losses:ByLevel")
    values = iter([[2.0, 3.0], [1.0, 9.0], [1.5, 1.0]])  # level, tokens
    monkeypatch.setattr(Evaluator, "loss", lambda self, part: next(values))
    fit(choose("lm/gpt", TINY_LM, str(story)), tmp_path / "run")
    assert "best validation level loss 1.0000 at step 8" in capsys.readouterr().out
