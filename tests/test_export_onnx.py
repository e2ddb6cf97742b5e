"""What onnxruntime computes from an exported run is what the run computes: numbers, and the ids of its answers."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from allyouneed.errors import UserError
from allyouneed.exchange import to_onnx
from allyouneed.exchange.to_onnx import export_onnx
from allyouneed.run import Run, load, train
from conftest import RUNTIME
from exporting import LM_TEXTS, PAIR_TEXTS, SMALL, other, varied
from inputs import ids_of

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("one_thread")
GPTS: dict[str, dict[str, Any]] = {
    "as GPT-2": {},
    "sinusoidal, relu, norms afterwards": {"positions": "sinusoidal", "activation": "relu", "prenorm": False},
    "the other sinusoid, gelu, not tied": {"positions": "sinusoidal_half", "activation": "gelu", "tie": False},
    "as Llama": {
        "positions": "rotary", "kv_heads": 2, "norm": "rms", "norm_eps": 1e-3, "activation": "swiglu", "bias": False,
        "rotary_base": 100.0, "head_width": 6, "tie": False,
    },
    "slower turns": {"positions": "rotary", "rotary_stretch": 4.0, "rotary_context": 8},
    "no positions, silu, no bias": {"positions": "none", "activation": "silu", "bias": False, "norm_eps": 1e-2},
    "cosine, wide values, a larger table": {"score": "cosine", "value_width": 7, "vocab": 60},
    "no matrices, few positions": {"score": "parameter_free", "context": 7},
}  # fmt: skip
TRANSLATORS: dict[str, dict[str, Any]] = {
    "as in the paper": {"prenorm": False},
    "learned, nothing shared": {
        "positions": "learned", "context": 30, "share": False, "tie": False, "decoder_layers": 1, "output_bias": True,
    },
    "half, grouped heads": {"positions": "sinusoidal_half", "kv_heads": 2, "share": False, "activation": "gelu_tanh"},
    "rotary, swiglu": {"positions": "rotary", "activation": "swiglu", "norm": "rms", "bias": False, "layers": 1},
}  # fmt: skip


def exported(run: Run, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sessions by the name of their file, and config.json."""
    folder.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files = export_onnx(run, folder, lambda line: None)
    assert sorted(files) == sorted(folder.iterdir())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = {path.stem: onnxruntime.InferenceSession(str(path), options) for path in folder.glob("*.onnx")}
    for name, session in sessions.items():
        config = json.loads((folder / "config.json").read_text())
        assert [one.name for one in session.get_inputs()] == list(config["graphs"][f"{name}.onnx"]["inputs"])
        assert [one.name for one in session.get_outputs()] == list(config["graphs"][f"{name}.onnx"]["outputs"])
    return sessions, json.loads((folder / "config.json").read_text())


def weights(run: Run) -> int:
    return sum(4 * p.numel() for p in run.model.parameters())


def greedy(decoder: Any, config: dict[str, Any], read: list[int], most: int, memory: dict[str, Any]) -> list[int]:
    """As a user of the files would write it."""
    named, found = config["graphs"]["decoder.onnx"]["inputs"], []
    past = {
        name: np.zeros((1, *named[name][1:3], 0, named[name][4]), np.float32) for name in ("past_keys", "past_values")
    }
    while len(found) < most:
        logits, keys, values = decoder.run(None, {"ids": np.array([read]), **past, **memory})
        read, past = [int(logits[0, -1].argmax())], {"past_keys": keys, "past_values": values}
        if read[0] == config["tokens"]["eos"]:
            break
        found += read
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", GPTS)
def test_a_gpt_writes_the_same(name, lm, tmp_path):
    run, answers = varied(load(lm, "cpu"), LM_TEXTS, **{**SMALL, **GPTS[name]})
    sessions, config = exported(run, tmp_path / "onnx")
    for text, answer in zip(LM_TEXTS, answers):
        ids = run.task.tokenizer.encode(text)
        most = min(20, 1 + (run.model.limit or 40) - len(ids))
        assert greedy(sessions["decoder"], config, ids, most, {}) == answer
    assert config["model"]["positions"] == run.recipe.model.positions


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_translator_writes_the_same(name, translator, tmp_path):
    run, answers = varied(load(translator, "cpu"), PAIR_TEXTS, **{**SMALL, **TRANSLATORS[name]})
    sessions, config = exported(run, tmp_path / "onnx")
    for text, answer in zip(PAIR_TEXTS, answers):
        ids = ids_of(run, text)
        found = sessions["encoder"].run(None, {"source": np.array([ids]), "lengths": np.array([len(ids)])})
        memory = dict(zip(config["graphs"]["encoder.onnx"]["outputs"], found))
        most = min(20, 3 * len(ids) + 16)
        assert greedy(sessions["decoder"], config, [config["tokens"]["bos"]], most, memory) == answer


def test_a_barred_token_is_never_written(translator, tmp_path):
    run, answers = varied(load(translator, "cpu"), PAIR_TEXTS, **SMALL)
    barred = run.model.barred = answers[0][0]
    sessions, config = exported(run, tmp_path / "onnx")
    for text, answer in zip(PAIR_TEXTS, run.answers(PAIR_TEXTS, method="greedy", max_new=20)):
        ids = np.array([ids_of(run, text)])
        found = sessions["encoder"].run(None, {"source": ids, "lengths": np.array([ids.size])})
        memory = dict(zip(config["graphs"]["encoder.onnx"]["outputs"], found))
        assert barred not in answer.tokens
        assert greedy(sessions["decoder"], config, [config["tokens"]["bos"]], 20, memory) == answer.tokens


def test_rows_of_a_batch_do_not_change_each_other(translator, tmp_path):
    run = other(load(translator, "cpu"), **SMALL)
    sessions, _ = exported(run, tmp_path / "onnx")
    source, lengths, target = np.array([[4, 5, 6, 7], [8, 9, 0, 0]]), np.array([4, 2]), np.array([[1, 5], [1, 8]])
    memory = sessions["encoder"].run(None, {"source": source, "lengths": lengths})
    past = {name: np.zeros((2, 2, 4, 0, 4), np.float32) for name in ("past_keys", "past_values")}
    given = dict(zip(("memory_keys", "memory_values", "memory_real"), memory))
    logits = sessions["decoder"].run(None, {"ids": target, **past, **given})[0]
    alone = run.model(torch.tensor([[8, 9]]), torch.tensor([2]), torch.tensor([[1, 8]]))[0]
    np.testing.assert_allclose(logits[1], alone.detach().numpy(), atol=1e-4)


def test_a_tied_matrix_is_stored_once(lm, translator, tmp_path):
    big = {"vocab": 5000}
    run = other(load(lm, "cpu"), **SMALL, **big)
    exported(run, tmp_path / "gpt")
    assert (tmp_path / "gpt/decoder.onnx").stat().st_size < weights(run) + 150_000
    run = other(load(translator, "cpu"), **SMALL, **big, target_vocab=5000)
    exported(run, tmp_path / "translator")
    assert (tmp_path / "translator/decoder.onnx").stat().st_size < weights(run) + 150_000


def test_nothing_is_printed_or_logged(lm, tmp_path, capfd):
    exported(other(load(lm, "cpu"), **SMALL), tmp_path / "onnx")
    assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="module")
def bert(story, tmp_path_factory) -> Run:
    given = [*RUNTIME, *TRAINED, "model.heads=2", "model.layers=2", "model.context=32", "data.max_length=24"]
    return train("pretrain/bert", *given, data=story, out=tmp_path_factory.mktemp("bert") / "run", quiet=True)


def test_a_bert_fills_in_the_same_words(bert, tmp_path):
    run = other(bert)
    sessions, config = exported(run, tmp_path / "onnx")
    tokenizer, cls, sep = run.task.tokenizer, run.task.tokenizer.cls, run.task.tokenizer.sep
    ids = torch.tensor([[cls, *tokenizer.encode("anna [MASK] home", ("mask",)), sep, 7, 8, sep, 0, 0]])
    given = {
        "ids": ids,
        "lengths": torch.tensor([ids.size(1) - 2]),
        "segments": (torch.arange(ids.size(1)) > 4).long()[None],
    }
    words, follows = sessions["model"].run(None, {name: t.numpy() for name, t in given.items()})
    with torch.inference_mode():
        wanted = run.model(given)
    assert set(config["graphs"]["model.onnx"]["outputs"]) == {"words", "follows"}
    np.testing.assert_allclose(words[:, :-2], wanted[0][:, :-2], atol=1e-4)
    np.testing.assert_allclose(follows, wanted[1], atol=1e-4)
    without = {**given, "segments": torch.zeros_like(ids)}
    changed = sessions["model"].run(None, {name: t.numpy() for name, t in without.items()})[1]
    assert abs(changed - follows).max() > 1e-3


def test_a_bert_with_one_kind_of_text_and_no_pooler(bert, tmp_path):
    for segments in (0, 1):
        _, config = exported(other(bert, segments=segments, pooler="none"), tmp_path / str(segments))
        assert list(config["graphs"]["model.onnx"]["inputs"]) == ["ids", "lengths"]
        assert list(config["graphs"]["model.onnx"]["outputs"]) == ["words"]


TRAINED = ["train.steps=2", "train.eval_every=2", "train.batch_tokens=256", "train.epochs=0", "model.width=16"]
BLOCKS = ["model.heads=2", "model.layers=1"]
OTHERS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "classify, bert": ("classify/bert", BLOCKS, {}),
    "classify, gpt": ("classify/gpt", [*BLOCKS, "task.pool=mean"], {"positions": "rotary", "norm": "rms"}),
    "answer, bert": ("answer/bert", [*BLOCKS, "data.limit=60"], {"positions": "sinusoidal"}),
    "embed, bert": ("embed/bert", [*BLOCKS, "task.group=4"], {}),
    "tag, bert": ("tag/bert", BLOCKS, {"positions": "rotary"}),
    "recognize, vit": ("recognize/vit", [*BLOCKS, "model.patch=8", "data.limit=100"], {}),
}


@pytest.fixture(scope="module")
def read(tmp_path_factory, reviews, pairs):
    """A run of each task that reads, made once."""
    made: dict[str, Run] = {}
    tags = tmp_path_factory.mktemp("tags") / "tags.conll"
    rows = [line.split("\t")[0].split() for line in pairs.read_text().splitlines()]
    tags.write_text("\n".join("".join(f"{w}\t{'B-six' if w == 'six' else 'O'}\n" for w in row) for row in rows))
    data = {"classify": reviews, "embed": pairs, "tag": tags}

    def run(name: str) -> Run:
        recipe, given, _ = OTHERS[name]
        if name not in made:
            out = tmp_path_factory.mktemp("others") / "run"
            found = {"data": data[recipe.split("/")[0]]} if recipe.split("/")[0] in data else {}
            made[name] = train(recipe, *RUNTIME, *TRAINED, *given, out=out, quiet=True, **found)
        return made[name]

    return run


SLOW = ("answer, bert", "recognize, vit")  # their data is drawn and read for seconds


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in OTHERS])
def test_what_reads_gives_the_same(name, read, tmp_path):
    run = other(read(name), **OTHERS[name][2])
    sessions, config = exported(run, tmp_path / "onnx")
    session, inputs = sessions["model"], config["graphs"]["model.onnx"]["inputs"]
    assert (
        list(inputs)
        == {"vit": ["pixels"], "gpt": ["ids", "lengths"], "bert": ["ids", "lengths", "segments"]}[
            run.recipe.model_kind
        ][: 2 if "embed" in name else 3]
    )
    if "vit" in name:
        pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), np.uint8)
        found = session.run(None, {"pixels": pixels})[0]
        lengths = torch.full((3,), run.model.body.patches.config.tokens)
        wanted = run.model({"pixels": torch.tensor(pixels), "lengths": lengths})
    else:
        ids, lengths = torch.tensor([[2, 9, 8, 7, 6, 5, 3], [2, 8, 9, 6, 3, 0, 0]]), torch.tensor([7, 5])
        given = {"ids": ids, "lengths": lengths, "segments": (ids > 7).long()}
        found = session.run(None, {name: given[name].numpy() for name in inputs})[0]
        wanted = run.model({name: given[name] for name in inputs})
        if wanted.dim() == 3:
            found, wanted = found[:1], wanted[:1]
    np.testing.assert_allclose(found, wanted.detach(), atol=1e-4)
    parts = {path.name for path in (tmp_path / "onnx").iterdir()} - {"model.onnx", "config.json"}
    assert parts == set(run.task.parts())


@pytest.mark.parametrize("pooled", ["max", "last"])
def test_every_pooling_is_the_same(pooled, read, tmp_path):
    run = other(read("embed, bert"))
    run.model.pooling = pooled
    exported(run, tmp_path / "onnx")


def test_16_bit_weights_become_fp32(lm, tmp_path):
    run = load(lm, "cpu", "bf16")
    exported(run, tmp_path / "onnx")
    assert {p.dtype for p in run.model.parameters()} == {torch.bfloat16}


# What is refused: one sentence, and nothing is left.


def test_other_models_are_refused_by_name(pretrained, tmp_path):
    with pytest.raises(
        UserError, match="a run of the model elmo for the task lm cannot be written as ONNX; runs of gpt"
    ):
        export_onnx(load(pretrained, "cpu"), tmp_path, print)
    assert not list(tmp_path.iterdir())


def test_a_graph_that_differs_is_an_error(lm, tmp_path, monkeypatch):
    class Late(to_onnx.Past):
        def write(self, k, v):
            return super().write(k, v + 1e-2)

    monkeypatch.setattr(to_onnx, "Past", Late)
    with pytest.raises(UserError, match="ONNX gives other values than the model: they differ by 0"):
        other(load(lm, "cpu"), **SMALL).export(tmp_path / "out", "onnx")
    assert not list(tmp_path.iterdir())


def test_weights_that_are_not_numbers_are_an_error(lm, tmp_path):
    run = other(load(lm, "cpu"), **SMALL)
    run.model.body.embedding.tokens.weight.data.fill_(float("nan"))
    with pytest.raises(UserError, match="they differ by nan"):
        export_onnx(run, tmp_path, print)


def test_a_missing_package_is_named(lm, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match="pip install onnx onnxruntime"):
        export_onnx(load(lm, "cpu"), tmp_path, print)


def test_weights_that_one_file_cannot_hold(lm, tmp_path, monkeypatch):
    monkeypatch.setattr(to_onnx, "LARGEST", 1000)
    with pytest.raises(UserError, match="holds less than 2 GiB"):
        export_onnx(load(lm, "cpu"), tmp_path, print)
