"""Attention by hand: each number equals arithmetic that is written out here."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from allyouneed import lectures
from allyouneed.figures.grids import Grid, number_text, plot_grids
from allyouneed.lectures import by_hand, hand_examples
from allyouneed.lectures.base import Lecture
from allyouneed.run import load
from commands import ayn, mistake, trained

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The topic with its defaults."""
    out = tmp_path_factory.mktemp("by-hand")
    lectures.show("by-hand", Lecture(out, lambda text: None))
    return out


@pytest.fixture
def numbers(shown: Path) -> dict[str, Any]:
    return json.loads((shown / "by-hand.json").read_text())["numbers"]


def tables(out: Path) -> list[dict[str, Any]]:
    return [block for block in json.loads((out / "by-hand.json").read_text())["shown"] if "head" in block]


def arrays(part: dict[str, Any], *names: str) -> list[np.ndarray]:
    """The arrays of an example; null is what is not finite, here always -∞."""
    return [np.nan_to_num(np.array(part[name], dtype=float), nan=-np.inf) for name in names]


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores)
    return powers / powers.sum(-1, keepdims=True)


def check_steps(part: dict[str, Any], hidden: np.ndarray | None = None) -> None:
    """Scores, weights and sums by the formula; `hidden` says which scores are -∞."""
    q, k, v = arrays(part, "q", "k", "v")
    dots = np.array([[sum(a * b for a, b in zip(query, key)) for key in k] for query in q])
    scores = dots / math.sqrt(q.shape[1])
    if hidden is not None:
        scores[hidden] = -np.inf
    weights = softmax(scores)
    for name, expected in (("dots", dots), ("scores", scores), ("weights", weights), ("out", weights @ v)):
        np.testing.assert_allclose(arrays(part, name)[0], expected, atol=1e-5, err_msg=name)


def test_the_examples_are_the_formula(numbers):
    for name in ("objects", "action", "thinking"):
        check_steps(numbers[name])
    later = np.triu(np.ones((4, 4), dtype=bool), 1)
    check_steps(numbers["festival"], later)
    assert np.isneginf(arrays(numbers["festival"], "j < i")[0]).tolist() == (later | np.eye(4, dtype=bool)).tolist()
    assert numbers["festival"]["rows without weights"] == 1
    assert len(numbers["action"]["q"][0]) == len(numbers["thinking"]["q"][0]) == 64


def test_the_weights_of_the_slides_come_from_their_scores_and_never_from_cosines(numbers, shown):
    three, four = (numbers["shares"][f"memory of {count}"] for count in (3, 4))
    np.testing.assert_allclose(three["weights"], [[0.93, 0.01, 0.06]], atol=1e-6)
    np.testing.assert_allclose(four["weights"], [[0.6, 0.1, 0.2, 0.1]], atol=1e-6)
    np.testing.assert_allclose(np.diff(three["scores"][0]), [math.log(1 / 93), math.log(6)], atol=1e-5)
    np.testing.assert_allclose(four["out"], [[0.7, 0.2, 0.3]], atol=1e-6)
    assert numbers["shares"]["cosines at best"] == pytest.approx(math.e**2 / (math.e**2 + 2), abs=1e-6)
    cells = np.linspace(-1, 1, 21)  # no three cosines do better
    best = max(softmax(np.array([a, b, c]))[0] for a in cells for b in cells for c in cells)
    assert best <= numbers["shares"]["cosines at best"] + 1e-6 < 0.93
    assert tables(shown)[0]["rows"][0][-3:] == ["0.930", "0.93 0 0", "0.93 0.01 0.06"]


def test_thinking_machines_has_the_numbers_of_the_slide(numbers):
    part = numbers["thinking"]
    assert part["dots"][0] == [112.0, 96.0]
    assert part["scores"][0] == [14.0, 12.0]
    assert part["weights"][0][0] == pytest.approx(1 / (1 + math.exp(-2)), abs=1e-6)


def test_the_three_objects_get_their_class_from_the_memory(numbers):
    assert numbers["objects"]["classes"] == ["fruit", "tool", "animal"]
    assert min(max(row) for row in numbers["objects"]["out"]) > 0.7


def test_bank_moves_towards_what_it_sees(numbers):
    def moved(name: str) -> tuple[float, float]:
        (river, after_river), (account, after_account) = numbers["bank"][name].values()
        return after_river - river, after_account - account

    river, account = moved("she sat by the river bank, j ≤ i")
    assert river > 0.2 > 0 > account
    river, account = moved("the captain has a bank account, all")
    assert account > 0.2 > 0 > river
    assert max(moved("the captain has a bank account, j ≤ i")) < 0  # it is still to come
    x = np.array([[0, 0, 1]] * 4 + [[3, 0, 0], [1, 1, 0]], dtype=float)  # she sat by the river bank
    y = softmax(x @ x[-1]) @ x
    cosine = y[0] / math.sqrt(sum(y**2))
    assert numbers["bank"]["she sat by the river bank, all"]["river"][1] == pytest.approx(cosine, abs=1e-5)


def check_choice(part: dict[str, Any]) -> None:
    logits, logs = arrays(part, "logits", "log_probs")
    np.testing.assert_allclose(logs, logits - math.log(sum(math.exp(logit) for logit in logits)), atol=1e-4)
    assert part["index"] == logits.tolist().index(max(logits))


def test_argmax_of_six_logits_is_am(numbers, shown):
    part = numbers["am"]
    np.testing.assert_allclose(part["logits"], np.array(part["table"]) @ part["hidden"], atol=1e-6)
    check_choice(part)
    assert (part["index"], part["words"][5]) == (5, "am")
    table = next(table for table in tables(shown) if table["head"][0] == "index")
    assert sum(float(row[-1]) for row in table["rows"]) == pytest.approx(1.0, abs=0.002)
    assert all(float(row[3]) < 0 for row in table["rows"])  # log_probs are never probabilities


def test_a_sentence_from_its_words_to_a_choice(tmp_path):
    done = ayn("lecture", "by-hand", "Attention is all you need", "--out", tmp_path)
    assert done.code == 0, done.err
    assert "festival" not in done.out
    part = json.loads((tmp_path / "by-hand.json").read_text())["numbers"]["sentence"]
    x, out, words = *arrays(part, "x", "out"), part["words"]
    for name, matrix in zip("qkv", "QKV"):
        np.testing.assert_allclose(part[name], x @ part[matrix])
    check_steps(part, np.triu(np.ones((len(words),) * 2, dtype=bool), 1))
    np.testing.assert_allclose(part["logits"], x @ (out[-1] @ np.array(part["W^O"])), atol=1e-4)
    check_choice(part)
    assert (tmp_path / "by-hand.png").read_bytes().startswith(PNG)
    assert "Attention" in (tmp_path / "by-hand.svg").read_text()


def test_a_word_has_the_same_vector_in_every_sentence():
    dog = hand_examples.whole_numbers("dog", 6)
    assert set(dog.tolist()) <= {-1.0, 0.0, 1.0}
    assert torch.equal(dog, hand_examples.whole_numbers("dog", 6))
    words = ["the", "dog", "sees", "a", "cat", "and", "runs", "from", "an", "old", "man", "in", "green"]
    assert len({tuple(hand_examples.whole_numbers(word, 6).tolist()) for word in words}) == len(words)


@pytest.mark.parametrize("task", ["lm", "translate"])
def test_a_run_shows_its_own_numbers(tmp_path, story, pairs, task, monkeypatch):
    monkeypatch.setattr(by_hand, "SENTENCES", {"lm": "one two three", "translate": "one two three"})
    run = trained(task, story if task == "lm" else pairs)
    lecture = Lecture(tmp_path, lambda text: None, run=str(run))
    lectures.show("by-hand", lecture)
    part = json.loads((tmp_path / "by-hand.json").read_text())["numbers"]
    size = len(part["words"])
    check_steps(part, np.triu(np.ones((size, size), dtype=bool), 1) if task == "lm" else None)
    assert part["apart"] < 1e-6
    check_choice(part)
    model = load(run, "cpu", precision="fp32").model
    block = (model.body.stack if task == "lm" else model.body.encoder).blocks[0]
    with torch.no_grad():
        q = block.attention.qkv(block.attention_norm(torch.tensor(part["x"])))[:, : len(part["q"][0])]
    np.testing.assert_allclose(part["q"], q, atol=1e-5)
    assert (tmp_path / "by-hand.png").read_bytes().startswith(PNG)


def test_sentences_that_cannot_be_shown_are_refused(tmp_path, pairs):
    run = trained("translate", pairs)
    for text in ("alone", "a b c d e f g h i j k"):
        assert "needs a sentence of 2 to 10 words" in mistake("lecture", "by-hand", text, "--out", tmp_path)
    own = ("--run", run, "--out", tmp_path)
    assert "not in the vocabulary of" in mistake("lecture", "by-hand", "one zebra three four", *own)
    assert "is empty" in mistake("lecture", "by-hand", " ", *own)
    assert "2 to 40 tokens" in mistake("lecture", "by-hand", " ".join(["one"] * 50), *own)


def test_grids_have_a_number_in_each_cell(tmp_path):
    grid = Grid("scores", np.array([[1.0, -math.inf], [-0.256, math.nan]]), ["a", "b"])
    plot_grids([[grid, Grid("x", np.zeros((2, 30)))]], ["a", "b"], tmp_path / "a.svg", "a title")
    drawn = (tmp_path / "a.svg").read_text()
    assert all(f">{text}<" in drawn for text in ("1", "−∞", "−0.26", "NaN", "a title", "scores"))
    assert [number_text(value) for value in (2.0, -0.001, 0.5, math.inf)] == ["2", "0", "0.50", "∞"]
