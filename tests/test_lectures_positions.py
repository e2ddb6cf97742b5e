"""What is seen of the order of words: by layers, in sinusoids, and beyond the trained length."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from allyouneed import lectures
from allyouneed.data.builtin.corpus import corpus
from allyouneed.figures.heatmaps import position_tables
from allyouneed.lectures import positions
from allyouneed.lectures.base import Lecture
from allyouneed.nn.positions import sinusoid
from allyouneed.run import load
from commands import mistake

PNG = b"\x89PNG"
QUICK = (
    "model.context=8", "model.layers=1", "model.heads=2", "model.width=16", "train.steps=3", "train.eval_every=3",
    "train.batch_tokens=64", "train.warmup=1", "train.threads=1",
)  # fmt: skip


def quiet(out: Path) -> Lecture:
    return Lecture(out, lambda text: None, name="positions")


def test_without_positions_only_a_causal_stack_of_two_blocks_sees_order(tmp_path):
    """The tokens had no concept of order: true of one block, and of blocks without a mask."""
    lecture = quiet(tmp_path)
    changes = positions.show_order(lecture)["order"]
    for name in ("one block, sees all", "two blocks, see all", "one block, causal"):
        assert max(changes[name]) < 1e-5
    assert min(changes["two blocks, causal"]) > 0.01
    assert lecture.shown[-1]["text"].startswith("Order is seen by: two blocks, causal.")


def test_one_word_at_two_places_is_two_vectors_and_a_place_is_no_role(tmp_path):
    found = positions.show_places(quiet(tmp_path))
    assert found["the at two places"]["none"] == pytest.approx(1.0)
    assert found["the at two places"]["sinusoidal"] < 0.99
    shares = found["places of is"]
    assert sum(shares.values()) == pytest.approx(1.0)
    assert len([share for share in shares.values() if share > 0.05]) >= 3
    lines = [words for words in map(str.split, corpus()["train"].splitlines()) if "is" in words]
    assert shares[3] == sum(words.index("is") == 2 for words in lines) / len(lines)


def test_sinusoids_are_near_unique_and_rotate(tmp_path):
    lecture = quiet(tmp_path)
    found = positions.show_sinusoids(lecture)
    for width in (4, 64, 512):
        assert found["factors"][width] == pytest.approx(10000 ** (-(width - 2) / width), rel=1e-4)
        assert found["factors"][width] > 1e-4 * 0.99  # it never becomes 0
        assert found["apart"][width] > 0.05
    turns = np.arange(64)[:, None] / 10000 ** (np.arange(32) / 32)
    rows = np.concatenate([np.sin(turns), np.cos(turns)], axis=1)
    distances = np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(-1)) + 1e9 * np.eye(64)
    assert found["apart"][64] <= distances.min() + 1e-4
    cosines = rows @ rows.T / 32
    np.testing.assert_allclose(found["near"][64][:60], cosines[3, 3:63], atol=1e-5)  # at 3 as at 0
    assert found["near"][512][1] > found["near"][512][10] > found["near"][512][100]
    assert max(found["rotation error"].values()) < 2e-5
    for part in ("tables", "near", "rotation"):
        assert (tmp_path / f"positions-{part}.png").read_bytes().startswith(PNG)
        assert (tmp_path / f"positions-{part}.svg").is_file()


def test_the_rotation_keeps_lengths_and_is_the_same_at_every_position():
    turned = positions.rotation(16, 7)
    torch.testing.assert_close(turned @ turned.T, torch.eye(16), atol=1e-6, rtol=0)
    for at in (0, 3, 40):
        pair = sinusoid(torch.tensor([at, at + 7]), 16)
        torch.testing.assert_close(turned @ pair[0], pair[1], atol=1e-5, rtol=0)


def test_all_parts_are_shown_and_the_loss_is_counted_at_each_place(tmp_path, monkeypatch):
    monkeypatch.setattr(positions, "KINDS", ("sinusoidal", "learned"))
    monkeypatch.setattr(positions, "SEEDS", (1,))
    monkeypatch.setattr(positions, "WINDOW", 8)
    monkeypatch.setattr(positions, "SETTINGS", QUICK)
    monkeypatch.setattr(positions.show, "__defaults__", (QUICK,))
    lectures.show("positions", Lecture(tmp_path, lambda text: None))
    record: dict[str, Any] = json.loads((tmp_path / "positions.json").read_text())
    beyond = record["numbers"]["beyond"]
    assert beyond["places"] == [2.5, 6.5, 10.5, 14.5]
    (learned,), (sinusoidal,) = beyond["learned"], beyond["sinusoidal"]
    assert learned[2:] == [None, None]
    assert all(value > 0 for value in learned[:2] + sinusoidal)
    assert any("the table ends" in str(block.get("rows")) for block in record["shown"])
    run = load(tmp_path / "models" / "positions-sinusoidal-1", "cpu", precision="fp32")
    tokens = np.concatenate([run.task.stream(split).tokens for split in ("valid", "test")])
    total, rows = np.zeros(16), range(0, len(tokens) - 16, 4)
    for at in rows[:40]:
        logs = run.model(torch.tensor(tokens[None, at : at + 16].astype(np.int64)))[0].log_softmax(-1)
        total += [-float(logs[i, tokens[at + i + 1]].detach()) for i in range(16)]
    parts = {"valid": tokens[:173], "test": tokens[:0]}  # 40 rows of 17, one every 4 tokens
    monkeypatch.setattr(run.task, "stream", lambda split: SimpleNamespace(tokens=parts[split]))
    np.testing.assert_allclose(positions.losses_by_place(run), total.reshape(4, 4).mean(1) / 40, rtol=1e-4)


@pytest.mark.slow
def test_beyond_the_window_sinusoids_cost_most_and_learned_positions_end(tmp_path, monkeypatch):
    monkeypatch.setattr(positions, "SEEDS", (1,))
    beyond = positions.show_beyond(quiet(tmp_path), positions.SETTINGS)
    cost = {kind: np.mean(beyond[kind][0][8:]) - np.mean(beyond[kind][0][2:8]) for kind in ("sinusoidal", "rotary")}
    assert beyond["learned"][0][8:] == [None] * 8
    assert cost["sinusoidal"] > cost["rotary"]
    assert cost["sinusoidal"] > 0.5


def test_a_topic_without_runs_or_texts_refuses_them(tmp_path):
    assert "makes its own models" in mistake("lecture", "positions", "--run", tmp_path, "--out", tmp_path)
    assert "takes no text of your own" in mistake("lecture", "positions", "The dog", "--out", tmp_path)


def test_the_tables_of_both_layouts_have_their_names(tmp_path):
    position_tables([("a", np.zeros((3, 4))), ("b", np.ones((3, 4)))], tmp_path / "a.svg", "both")
    drawn = (tmp_path / "a.svg").read_text()
    assert all(f">{text}<" in drawn for text in ("a", "b", "both", "dimension", "position"))
