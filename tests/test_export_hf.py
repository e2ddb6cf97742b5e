"""What `ayn export --to hf` writes, the real transformers opens: the same numbers, ids and text."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from allyouneed.run import Run, train
from allyouneed.storage.tensorfile import read_tensors
from commands import mistake
from conftest import RUNTIME
from inputs import ids_of
from test_families import CASES, imported, make, save

transformers = pytest.importorskip("transformers")
OPENED_BY = {
    "lm": "AutoModelForCausalLM", "pretrain": "AutoModelForMaskedLM", "embed": "AutoModel",
    "classify": "AutoModelForSequenceClassification", "tag": "AutoModelForTokenClassification",
    "answer": "AutoModelForQuestionAnswering", "recognize": "AutoModelForImageClassification",
    "translate": "AutoModelForSeq2SeqLM",
}  # fmt: skip


def quiet(line: str) -> None:
    pass


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_an_imported_model_comes_back_as_it_was(name, tmp_path):
    theirs = make(*CASES[name], 1)
    save(theirs, tmp_path / "theirs")
    run = imported(tmp_path / "theirs", tmp_path / "run")
    run.export(tmp_path / "back", "hf", say=quiet)
    again = imported(tmp_path / "back", tmp_path / "again")
    first, second = (read_tensors(one.folder.model) for one in (run, again))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert again.recipe.model == run.recipe.model
    opened = type(theirs).from_pretrained(tmp_path / "back")
    state, before = opened.state_dict(), theirs.state_dict()
    for key, tensor in before.items():
        if ("pooler" in key and name.startswith("vit")) or ("nothing tied" in name and "shared" in key):
            continue  # nothing asks for it
        rows = 2 if name.startswith("roberta") and "position_embeddings" in key else 0
        assert torch.equal(state[key][rows:], tensor[rows:]) or "embed_positions" in key, key
    before, after = (json.loads((tmp_path / one / "config.json").read_text()) for one in ("theirs", "back"))
    assert after["architectures"] == before["architectures"]
    for key in before.keys() & after.keys() - {"bos_token_id", "eos_token_id", "pad_token_id", "dtype"}:
        untied = "nothing tied" in name and key == "share_encoder_decoder_embeddings"  # nothing is shared either way
        assert after[key] == before[key] or (before[key], after[key]) == ("swish", "silu") or untied, key


SMALL = ["model.width=16", "model.heads=2", "model.layers=2", "train.steps=2", "train.eval_every=2", *RUNTIME]
BODY = ["text.vocab=400", "train.batch_tokens=512"]
AS_BERT = ["model.prenorm=false", "model.positions=learned"]
# Runs that are trained here: a recipe, its settings, and what transformers opens them as.
TRAINED: dict[str, tuple[str, list[str], str]] = {
    "a GPT": ("lm/gpt", [], "GPT2LMHeadModel"),
    "a GPT, not tied, plain activation": ("lm/gpt", ["model.tie=false", "model.activation=relu"], "GPT2LMHeadModel"),
    "a Llama": (
        "lm/gpt",
        [
            "model.positions=rotary", "model.norm=rms", "model.activation=swiglu", "model.bias=false",
            "model.kv_heads=1", "model.rotary_stretch=4", "model.rotary_context=8",
        ],
        "LlamaForCausalLM",
    ),
    "a Transformer": ("translate/transformer", [], "PegasusForConditionalGeneration"),
    "a Transformer, as in the paper": ("translate/transformer", ["model.prenorm=false"], "MarianMTModel"),
    "a Transformer like Marian": (
        "translate/transformer",
        ["model.prenorm=false", "model.positions=sinusoidal_half", "model.tie=false", "model.output_bias=true"],
        "MarianMTModel",
    ),
    "a Transformer with two vocabularies": (
        "translate/transformer",
        ["model.prenorm=false", "text.joint=false", "model.share=false", "model.decoder_layers=1"],
        "MarianMTModel",
    ),
    "a BERT": ("pretrain/bert", [], "BertForPreTraining"),
    "a BERT without next sentences": ("pretrain/bert", ["task.next=false", "model.pooler=none"], "BertForMaskedLM"),
    "a classifier": ("classify/bert", AS_BERT, "BertForSequenceClassification"),
    "a tagger": ("tag/bert", [], "BertForTokenClassification"),
    "answers": ("answer/bert", AS_BERT, "BertForQuestionAnswering"),
    "vectors": ("embed/bert", ["task.specials=true"], "BertModel"),
    "images": ("recognize/vit", ["task.pool=first"], "ViTForImageClassification"),
}  # fmt: skip


@pytest.fixture(scope="module", params=TRAINED)
def both(request, tmp_path_factory) -> tuple[Run, Any, Path]:
    """A run with weights that vary, and what transformers makes of its export."""
    recipe, settings, architecture = TRAINED[request.param]
    path = tmp_path_factory.mktemp("export")
    sizes = [] if recipe.startswith("recognize") else BODY
    sizes = [*sizes, "text.kind=bpe"] if recipe.startswith(("lm", "translate")) else sizes
    few = [] if recipe.startswith(("lm", "pretrain")) else ["data.limit=60"]
    run = train(recipe, *SMALL, *sizes, *few, *settings, out=path / "run", quiet=True)
    torch.manual_seed(1)
    for p in run.model.parameters():
        p.data += 0.2 * torch.randn_like(p)
    run.export(path / "out", "hf", say=quiet)
    opener = architecture if "PreTraining" in architecture else OPENED_BY[run.recipe.task_kind]
    model = getattr(transformers, opener).from_pretrained(path / "out").eval()
    assert [type(model).__name__] == model.config.architectures == [architecture]
    return run, model, path / "out"


TEXT = "the little house is near the red tree"


@pytest.mark.slow
@torch.inference_mode()
def test_transformers_gives_the_numbers_of_a_run_trained_here(both):
    run, model, path = both
    kind = run.recipe.task_kind
    if kind == "recognize":
        pixels = torch.rand(2, 3, 32, 32)
        hidden = run.model.body(pixels)
        assert_close(model(pixels).logits, run.model.head(hidden, torch.tensor([hidden.size(1)] * 2)))
        processor = transformers.AutoImageProcessor.from_pretrained(path)
        image = torch.randint(0, 255, (32, 32, 3), dtype=torch.uint8).numpy()
        p = model(**processor(image, return_tensors="pt")).logits.softmax(-1)[0]
        (answer,) = run.answers([image])
        assert list(answer.details["probabilities"].values()) == pytest.approx(p.tolist(), abs=1e-4)
        return
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    if kind in ("lm", "translate"):
        texts = [TEXT, "a", "the tree"]
        for text in texts:
            given = tokenizer(text, return_tensors="pt")
            assert given.input_ids[0].tolist() == ids_of(run, text)
            wanted = model.generate(**given, max_new_tokens=9, do_sample=False, num_beams=1)[0].tolist()
            wanted = wanted[1:] if kind == "translate" else wanted[given.input_ids.size(1) :]
            answer = run.answers([text], max_new=9, method="greedy")[0]
            end = run.task.tokenizer.eos
            assert answer.tokens == (wanted[: wanted.index(end)] if end in wanted else wanted)
        return
    two = tokenizer(TEXT, "a dog", return_tensors="pt")
    out = model(**two)
    ids, segments = two.input_ids, two.token_type_ids
    ours = run.model({"ids": ids, "segments": segments, "lengths": torch.tensor([ids.size(1)])})
    if kind == "pretrain":
        words = out.prediction_logits if "prediction_logits" in out else out.logits
        assert_close(words, ours[0])
        filled = tokenizer("the [MASK] house", return_tensors="pt")
        assert filled.input_ids[0].tolist() == ids_of(run, "the [MASK] house")
    elif kind == "answer":
        assert_close(torch.stack([out.start_logits, out.end_logits], -1), ours)
    elif kind == "embed":
        given = tokenizer(TEXT, return_tensors="pt")
        assert_close(model(**given).last_hidden_state.mean(1), torch.from_numpy(run.embed([TEXT])))
        assert (path / "1_Pooling" / "config.json").is_file()
    else:
        assert_close(out.logits, ours)
        assert list(model.config.id2label.values()) == run.task.labels


def assert_close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["translate/transformer", "lm/gpt"])
def test_own_data_with_the_setting_that_is_named_can_be_exported(recipe, tmp_path, capsys):
    """The plan and the error name the same setting, and with it transformers writes what the run writes."""
    draw = random.Random(1)
    texts = [" ".join("".join(draw.choices("aeilnorst", k=5)) for _ in range(6)) for _ in range(200)]
    data = tmp_path / "mine.tsv"
    data.write_text(
        "".join(f"{text}\t{text[::-1]}\n" if recipe.startswith("translate") else f"{text}\n" for text in texts)
    )
    given = {"data": data, "out": tmp_path / "run"}
    train(recipe, "train.steps=2", "train.test_limit=4", *RUNTIME, **given)
    (plan,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("positions: ")]
    (setting,) = re.findall(r"model\.positions=rotary, .* \(ayn export --to hf needs (model\.positions=\w+)\)", plan)
    refused = mistake("export", tmp_path / "run", tmp_path / "out", "--to", "hf")
    assert f"with {setting.replace('=', ' = ')}: a training with that can be exported" in refused
    run = train(recipe, "train.steps=2", "train.test_limit=4", *RUNTIME, setting, **given, overwrite=True, quiet=True)
    torch.manual_seed(1)
    for p in run.model.parameters():
        p.data += 0.1 * torch.randn_like(p)
    run.export(tmp_path / "out", "hf", say=quiet)
    model = getattr(transformers, OPENED_BY[run.recipe.task_kind]).from_pretrained(tmp_path / "out").eval()
    tokenizer, different = transformers.AutoTokenizer.from_pretrained(tmp_path / "out"), set()
    for text in texts[:5]:
        read = tokenizer(text, return_tensors="pt")
        wanted = model.generate(**read, max_new_tokens=9, do_sample=False, num_beams=1)[0].tolist()
        wanted = wanted[1:] if recipe.startswith("translate") else wanted[read.input_ids.size(1) :]
        end, tokens = run.task.tokenizer.eos, run.answers(text, max_new=9, method="greedy", stop=())[0].tokens
        assert tokens == (wanted[: wanted.index(end)] if end in wanted else wanted)
        different.add(tuple(tokens))
    assert len(different) > 1
