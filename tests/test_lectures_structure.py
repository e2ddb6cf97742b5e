"""Pictures of structure have the parts and the shapes of the model, and what they say of shapes is true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from allyouneed import lectures
from allyouneed.figures.diagram import plot_heads, plot_unrolled
from allyouneed.lectures import structure
from allyouneed.lectures.base import Lecture
from allyouneed.models.bert import Bert, BertConfig
from allyouneed.models.gpt import GPT, GPTConfig
from allyouneed.models.rnn import RNN, RNNConfig
from allyouneed.nn.attention import Attention
from allyouneed.run import load
from commands import trained

PNG = b"\x89PNG"
SMALL = {"width": 16, "heads": 2, "layers": 2, "vocab": 30, "context": 8}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("structure")
    lectures.show("structure", Lecture(out, lambda text: None))
    return out


@pytest.fixture
def numbers(shown: Path) -> dict[str, Any]:
    return json.loads((shown / "structure.json").read_text())["numbers"]


def quiet(out: Path) -> Lecture:
    return Lecture(out, lambda text: None, name="structure")


def test_without_a_run_the_named_sizes_are_drawn(shown, numbers):
    (nano,) = numbers["parts"]
    names = ["embedding", "norm", "self-attention, 3 heads of 16", "norm", "feed forward", "norm", "head"]
    assert [part["name"] for part in nano] == names
    assert nano[2]["weights"] == "qkv 144 × 48, out 48 × 48"
    assert [part["group"] for part in nano] == ["", *["× 3"] * 4, "", ""]
    assert nano[-1]["out"] == "n × 1,000"
    encoder, decoder = numbers["base"]
    assert [part["name"] for part in encoder][2] == "self-attention, 8 heads of 64"
    assert [part["reads"] for part in decoder if part["reads"]] == ["m × 512"]
    assert decoder[-1]["weights"] == "out 37,000 × 512"
    for part in ("parts", "base", "heads", "unrolled"):
        assert (shown / f"structure-{part}.png").read_bytes().startswith(PNG)
    drawn = (shown / "structure-base.svg").read_text()
    assert all(text in drawn for text in ("qkv 1,536 × 512", "× 6", "n × 37,000", "residual added"))


def test_eight_heads_are_drawn_one_by_one_and_more_are_shortened(shown, numbers, tmp_path):
    assert numbers["heads"] == {
        "count": 8, "X": "n × 512", "W": "512 × 64", "Q": "n × 64", "Z": "n × 64", "concat": "n × 512",
        "W^O": "512 × 512", "out": "n × 512",
    }  # fmt: skip
    drawn = (shown / "structure-heads.svg").read_text()
    assert all(f"Z{head}<" in drawn for head in range(8))
    plot_heads(25, dict.fromkeys(("X", "W", "Q", "Z", "concat", "W^O", "out"), "1"), tmp_path / "a.svg", "many")
    drawn = (tmp_path / "a.svg").read_text()
    assert "Z24<" in drawn
    assert "Z20<" not in drawn


def test_heads_wider_than_their_share_make_w_o_longer(tmp_path):
    found = structure.show_heads(quiet(tmp_path), Attention(48, 3, head_width=48))["heads"]
    assert (found["W"], found["concat"], found["W^O"]) == ("48 × 48", "n × 144", "144 × 48")


def test_the_walk_through_a_block_has_the_shapes_that_it_computes(numbers):
    assert numbers["block"]["queries"] == numbers["block"]["heads"] == "3 × 8 × 16"
    assert numbers["block"]["weights"] == "3 × 8 × 8"
    assert numbers["block"]["layers"] == "8 × 48"


def test_w_q_is_a_kernel_of_width_one(numbers, tmp_path):
    assert numbers["kernel"] < 1e-5
    assert numbers["queries"] == "10 × 48"
    layer = Attention(16, 2)
    with torch.no_grad():
        layer.qkv.bias[:16] = 3.0
    assert structure.show_kernel(quiet(tmp_path), layer)["kernel"] < 1e-5


def test_one_hot_times_e_is_a_row_of_e(numbers, tmp_path):
    assert numbers["one-hot"] == {"N": 1000, "D": 48, "apart": 0.0}
    lecture, model = quiet(tmp_path), GPT(GPTConfig(**SMALL))
    structure.show_one_hot(lecture, model)
    assert f"{model.body.embedding.tokens.weight[5, 0]:.3f}, " in lecture.shown[0]["text"]


def test_a_recurrent_network_is_unrolled_with_its_own_widths(tmp_path):
    model = RNN(RNNConfig(cell="rnn", width=24, embedding=12, layers=1, vocab=30))
    assert structure.show_unrolled(quiet(tmp_path), model)["unrolled"] == {"x": "12", "h": "24", "o": "V"}
    (parts,) = structure.show_parts(quiet(tmp_path), model, "an RNN", "parts")
    assert [part["out"] for part in parts] == ["n × 12", "n × 24", "n × 30"]
    plot_unrolled(2, {"x": "12", "h": "24", "o": "V"}, tmp_path / "a.svg", "unrolled")
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.count(">W_hh<") == 2  # the edge, and one step
    assert ">24<" in drawn


def test_the_heads_of_bert_stand_side_by_side(tmp_path):
    model = Bert(BertConfig(**SMALL))
    (parts,) = structure.show_parts(quiet(tmp_path), model, "BERT", "parts")
    words, pooler, after = parts[-3:]
    assert [part["name"] for part in (words, pooler, after)] == ["words", "pooler", "next"]
    assert (words["out"], pooler["out"], after["out"]) == ("n × 30", "1 × 16", "1 × 2")
    assert pooler["enters"] == "of the body: [CLS]"
    assert not words["enters"] + after["enters"]
    assert "of the body: [CLS]" in (tmp_path / "structure-parts.svg").read_text()


@pytest.mark.parametrize("task", ["translate", "elmo"])
def test_any_run_is_drawn_with_its_own_shapes(tmp_path, pairs, story, task):
    run = trained(task, pairs if task == "translate" else story)
    lectures.show("structure", Lecture(tmp_path, lambda text: None, run=str(run)))
    columns = json.loads((tmp_path / "structure.json").read_text())["numbers"]["parts"]
    assert len(columns) == (2 if task == "translate" else 1)
    model = load(run, "cpu", precision="fp32").model
    head = columns[-1][-1]
    assert head["name"] == "head"
    assert head["weights"] == "out " + structure.times(*model.head.out.weight.shape)
    assert (tmp_path / "structure-parts.png").read_bytes().startswith(PNG)
    assert (tmp_path / "structure-heads.png").exists() == (task == "translate")
