"""The topic "parts": what is taken out is missed, and what is compared can be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from allyouneed import lectures
from allyouneed.lectures import parts
from allyouneed.lectures.base import Lecture
from commands import mistake


def quiet(out: Path, **options: Any) -> Lecture:
    return Lecture(out, lambda text: None, **options)


@pytest.mark.parametrize("rules", [parts.NEAR, parts.FAR])
def test_the_text_follows_its_rules(rules):
    lines, more = rules.lines(300, 1), rules.lines(300, 2)
    assert not torch.equal(lines, more)
    seen: dict[tuple[int, ...], list[int]] = {}
    for line in [*lines.tolist(), *more.tolist()]:  # one table for all texts
        for at in range(max(rules.lags), rules.length):
            seen.setdefault(tuple(line[at - lag] for lag in rules.lags), []).append(line[at])
    usual = [max(map(several.count, several)) for several in seen.values()]
    right = 1 - parts.RANDOM + parts.RANDOM / parts.LETTERS
    assert sum(usual) / sum(map(len, seen.values())) == pytest.approx(right, abs=0.02)


def test_the_other_models_have_as_many_parameters():
    def size(model: torch.nn.Module) -> int:
        return sum(p.numel() for p in model.parameters())

    whole = size(parts.gpt(1))
    *same, larger = (size(parts.others(name, 1)) for name in parts.OTHERS)
    assert all(abs(one - whole) < 0.05 * whole for one in same)
    assert larger > 4 * whole


def test_the_mlp_sees_its_window_and_no_future():
    torch.manual_seed(0)
    model, ids = parts.others("MLP over 8 letters", 1), parts.FAR.lines(1, 1)

    def losses(ids: torch.Tensor) -> list[float]:
        targets = torch.full_like(ids, -100)
        found = []
        for at in range(ids.size(1)):
            targets[0, at] = 1
            found.append(model.loss(ids, targets).item())
            targets[0, at] = -100
        return found

    other = ids.clone()
    other[0, 5] = (other[0, 5] + 1) % parts.LETTERS
    changed = [a != b for a, b in zip(losses(ids), losses(other))]
    assert changed == [5 <= at < 5 + parts.WINDOW for at in range(parts.FAR.length)]


def test_attention_is_even_before_training_and_chooses_afterwards(monkeypatch):
    monkeypatch.setattr(parts, "STEPS", 60)
    model = parts.gpt(1)
    before = parts.attention(model)
    after = parts.attention(parts.learn(model, parts.NEAR, 1, "cpu").model)
    even = sum(1 / n for n in range(2, parts.NEAR.length + 1)) / (parts.NEAR.length - 1)
    assert before[0] == pytest.approx(even, abs=0.02)
    assert before[1] > 0.98
    assert after[1] < before[1] - 0.05


@pytest.mark.slow
def test_a_part_that_is_missing_is_missed(tmp_path):
    lectures.show("parts", quiet(tmp_path))
    numbers = json.loads((tmp_path / "parts.json").read_text())["numbers"]
    for name in ("parts", "parts-training", "parts-models"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{name}.svg").is_file()
    losses = numbers["parts"]
    assert set(losses) == set(parts.PARTS)
    assert numbers["best"]["parts"] < min(losses["the whole model"])
    for name in ("no residual", "cosine as score"):
        assert min(losses[name]) > max(losses["the whole model"]), name
    for name in ("no norm", "no feed-forward", "1 head"):
        assert sum(losses[name]) > sum(losses["the whole model"]), name
    kinds = numbers["kinds"]
    for name in ("MLP over 8 letters", "CNN"):  # they cannot see 12 letters back
        assert min(kinds[name]) > 1.3 > max(kinds["GPT"]), name
    (_, before), (_, after) = (map(sum, zip(*numbers["attention"][when])) for when in ("before", "after"))
    assert after < before


def test_it_makes_its_own_models(tmp_path):
    assert "'parts' makes its own models" in mistake("lecture", "parts", "--out", tmp_path, "--run", tmp_path)
    assert "takes no text of your own" in mistake("lecture", "parts", "a text", "--out", tmp_path)
