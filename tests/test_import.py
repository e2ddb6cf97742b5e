"""Models that the real transformers has saved become runs that give the same numbers, ids and text."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from allyouneed.errors import UserError
from allyouneed.exchange.importing import import_run
from allyouneed.run import Run, load
from allyouneed.storage.tensorfile import read_tensors
from commands import ayn, mistake
from inputs import ids_of

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
VOCAB = 300
TEXT = "Once upon a time there was a small house in the forest, and nobody lived in it. "
GPT2 = {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "eos_token_id": 0}
LLAMA = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "eos_token_id": 0, "bos_token_id": 0,
}  # fmt: skip
# Every option that is accepted, with a value that is not the usual one.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "gpt2 with other activations and sizes": (
        "GPT2",
        {**GPT2, "activation_function": "gelu", "n_inner": 40, "layer_norm_epsilon": 1e-3, "n_head": 2, "n_layer": 1},
    ),
    "gpt2 with relu, not tied": ("GPT2", {**GPT2, "activation_function": "relu", "tie_word_embeddings": False}),
    "llama": ("Llama", LLAMA),
    "llama, grouped heads, another base": (
        "Llama",
        {**LLAMA, "num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    ),
    "llama, tied, wider heads": ("Llama", {**LLAMA, "tie_word_embeddings": True, "head_dim": 16, "rms_norm_eps": 1e-3}),
    "llama, stretched": (
        "Llama",
        {**LLAMA, "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}},
    ),
    "llama, stretched as Llama 3": (
        "Llama",
        {
            **LLAMA,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "llama with biases": ("Llama", {**LLAMA, "attention_bias": True, "mlp_bias": True}),
    "mistral, no window": ("Mistral", {**LLAMA, "num_key_value_heads": 2, "sliding_window": None}),
    "mistral, a window as long as the context": (
        "Mistral",
        {**LLAMA, "num_key_value_heads": 4, "sliding_window": 64, "head_dim": 16, "tie_word_embeddings": True},
    ),
    "qwen2": ("Qwen2", {**LLAMA, "num_key_value_heads": 2}),
    "qwen2, tied, a window that no layer has": (
        "Qwen2",
        {
            **LLAMA, "num_key_value_heads": 4, "tie_word_embeddings": True, "use_sliding_window": True,
            "sliding_window": 8, "max_window_layers": 2,
        },
    ),
}  # fmt: skip


def make(kind: str, config: dict[str, Any], seed: int) -> Any:
    torch.manual_seed(seed)
    model = getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(
        getattr(transformers, f"{kind}Config")(**config)
    )
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2) if p.dim() > 1 else p.data.add_(0.1 * torch.randn_like(p))
    return model.eval()


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"])
    )
    return made


@pytest.fixture
def saved(tokenizer, tmp_path) -> tuple[Any, Path]:
    """A small GPT-2 and its folder."""
    model = make("GPT2", GPT2, 1)
    model.save_pretrained(tmp_path / "gpt2")
    tokenizer.save(str(tmp_path / "gpt2/tokenizer.json"))
    return model, tmp_path / "gpt2"


def imported(path: Path, out: Path) -> Run:
    import_run(path, out, say=lambda line: None)
    return load(out, device="cpu")


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_it_equals_transformers(name, seed, tokenizer, tmp_path):
    kind, config = CASES[name]
    theirs = make(kind, config, seed)
    theirs.save_pretrained(tmp_path / "theirs")
    if kind != "GPT2":
        tokenizer = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
    tokenizer.save(str(tmp_path / "theirs/tokenizer.json"))
    run = imported(tmp_path / "theirs", tmp_path / "run")
    ids = torch.randint(1, VOCAB, (3, 50))
    with torch.inference_mode():
        torch.testing.assert_close(run.model(ids), theirs(ids).logits, atol=1e-5, rtol=1e-5)
    text = "there was a house, é 家"
    given = tokenizer.encode(text).ids
    assert ids_of(run, text) == given
    wanted = theirs.generate(torch.tensor([given]), max_new_tokens=12, do_sample=False, pad_token_id=0)[0].tolist()
    answer = run.answers([text], max_new=12)[0]
    new = wanted[len(given) :]
    assert answer.tokens == (new[: new.index(0)] if 0 in new else new)
    assert answer.text == tokenizer.decode(answer.tokens)


@pytest.mark.parametrize("name", CASES)
def test_back_it_is_the_same_to_the_bit(name, tokenizer, tmp_path):
    kind, config = CASES[name]
    theirs = make(kind, config, 1)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer.save(str(tmp_path / "theirs/tokenizer.json"))
    run = imported(tmp_path / "theirs", tmp_path / "run")
    run.export(tmp_path / "back", "hf", say=lambda line: None)
    stored, back = (read_tensors(tmp_path / place / "model.safetensors") for place in ("theirs", "back"))
    assert stored.keys() == back.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in stored.items())
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    ids = torch.randint(1, VOCAB, (2, 50))
    with torch.inference_mode():
        assert torch.equal(opened(ids).logits, theirs(ids).logits)


def test_other_files_give_the_same_run(saved, tmp_path):
    """In several files, in the older formats, without the prefix, and as 16-bit numbers."""
    model, path = saved
    whole = read_tensors(imported(path, tmp_path / "whole").folder.model)
    weights = model.state_dict()
    for how in ("shards", "bin", "old", "bare", "half"):
        other = tmp_path / how
        model.save_pretrained(other, max_shard_size="20KB")
        (other / "tokenizer.json").write_bytes((path / "tokenizer.json").read_bytes())
        if how != "shards":
            for file in other.glob("model*"):
                file.unlink()
            tensors = {
                "bin": weights,
                "old": weights,
                "bare": {name.removeprefix("transformer."): t for name, t in weights.items() if "lm_head" not in name},
                "half": {name: t.bfloat16() for name, t in weights.items()},
            }[how]
            torch.save(tensors, other / "pytorch_model.bin", _use_new_zipfile_serialization=how != "old")
        else:
            assert len(list(other.glob("*.safetensors"))) > 1
        found = read_tensors(imported(other, tmp_path / f"{how}-run").folder.model)
        for name, tensor in whole.items():
            assert torch.equal(found[name], tensor.bfloat16().float() if how == "half" else tensor), (how, name)


def test_an_imported_run_is_a_run(saved, story, tmp_path):
    _, path = saved
    out = tmp_path / "run"
    done = ayn("import", path, "--out", out)
    assert done.code == 0, done.err
    assert "ayn use" in done.out
    assert ayn("use", out, "Once upon").code == 0
    assert "gpt" in ayn("info", out).out
    tested = ayn("test", out, "--data", story)
    assert tested.code == 0, tested.err
    assert "perplexity" in tested.out
    settings = ["train.steps=2", "train.threads=1", "train.batch_tokens=256"]
    tuned = ayn("train", "lm/gpt", "--data", story, "--init", out, "--out", tmp_path / "tuned", *settings)
    assert tuned.code == 0, tuned.err
    assert f"{out} already holds a run" in mistake("import", path, "--out", out)
    assert ayn("import", path, "--out", out, "--overwrite").code == 0
    assert "was not trained here, so there is no data to test it on" in mistake("test", out)


# What is refused: one sentence, exit code 2, and nothing is left behind.


def spoil_number(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    tensors["transformer.h.1.ln_2.weight"][3] = float("nan")
    save_file(tensors, path / "model.safetensors")


def change(path: Path, **options: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **options}))


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda p: (p / "config.json").unlink(), "has no config.json"),
        (lambda p: (p / "config.json").write_text("{"), "config.json is damaged"),
        (lambda p: (p / "config.json").write_text("{}"), "config.json is of a model of type 'None'"),
        (lambda p: (p / "config.json").write_text('{"a": ' * 5000), "config.json is damaged"),
        (lambda p: change(p, model_type="t5"), "of a model of type 't5'; this library reads gpt2, llama, bert"),
        (lambda p: change(p, architectures=["GPT2ForThings"]), "architecture ['GPT2ForThings']"),
        (lambda p: change(p, activation_function="mish"), "activation_function = mish is not supported; this library"),
        (lambda p: change(p, add_cross_attention=True), "add_cross_attention = True is not supported"),
        (lambda p: change(p, sliding_window=7), "the option sliding_window = 7 is not supported"),
        (lambda p: change(p, n_embd="wide"), "'n_embd' is 'wide', which it cannot be"),
        (lambda p: change(p, n_layer=3), "missing: transformer.h.2.attn.c_attn.weight, transformer.h.2.attn.c"),
        (lambda p: change(p, n_layer=1), "settings: unknown: transformer.h.1.attn.c_attn.bias"),
        (lambda p: change(p, n_positions=65), "transformer.wpe.weight has (64, 32) instead of (65, 32)"),
        (lambda p: change(p, vocab_size=10**7, n_embd=10**6, n_head=1), "do not fit its settings: of another shape: "),
        (lambda p: change(p, n_layer=10**9), "config.json: n_layer = 1000000000 is too large"),
        (lambda p: change(p, n_head=5), "config.json: n_head = 5 does not divide n_embd = 32"),
        (spoil_number, "the tensor transformer.h.1.ln_2.weight holds numbers that are not finite"),
        (lambda p: (p / "model.safetensors").unlink(), "has no weights"),
        (lambda p: os.truncate(p / "model.safetensors", 5000), "model.safetensors is damaged"),
        (lambda p: os.truncate(p / "model.safetensors", 90000), "incomplete metadata, file not fully covered)"),
        (lambda p: (p / "model.safetensors").write_bytes(b""), "model.safetensors is damaged"),
        (lambda p: (p / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda p: (p / "tokenizer.json").write_text("{}"), "tokenizer.json"),
        (lambda p: (p / "generation_config.json").write_text("[]"), "generation_config.json is damaged"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told(spoil, told, saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, path = saved
    spoil(path)
    assert told in mistake("import", path, "--out", tmp_path / "runs/run")
    assert not (tmp_path / "runs").exists()


def test_all_tensors_that_do_not_fit_are_in_one_message(saved, tmp_path):
    _, path = saved
    tensors = load_file(path / "model.safetensors")
    for name in ("transformer.h.0.ln_1.weight", "transformer.h.1.mlp.c_fc.bias"):
        del tensors[name]
    tensors |= {"transformer.h.0.adapter.weight": torch.zeros(2), "transformer.ln_f.bias": torch.zeros(31)}
    tensors["transformer.wpe.weight"] = torch.zeros(63, 32)
    save_file(tensors, path / "model.safetensors")
    assert mistake("import", path, "--out", tmp_path / "run").endswith(
        "do not fit its settings: missing: transformer.h.0.ln_1.weight, transformer.h.1.mlp.c_fc.bias; "
        "unknown: transformer.h.0.adapter.weight; "
        "of another shape: transformer.wpe.weight has (63, 32) instead of (64, 32), "
        "transformer.ln_f.bias has (31,) instead of (32,)"
    )
    change(path, n_layer=100)
    assert "and 1,158 more" in mistake("import", path, "--out", tmp_path / "run")


def test_a_model_that_is_not_supported_is_named_before_its_tokenizer(saved, tmp_path):
    _, path = saved
    (path / "tokenizer.json").unlink()
    change(path, model_type="deit", architectures=["DeiTModel"])
    assert "config.json is of a model of type 'deit'" in mistake("import", path, "--out", tmp_path / "run")


@pytest.mark.parametrize(
    ("kind", "options", "window"),
    [
        ("Mistral", {"sliding_window": 63}, 63),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, 8),
    ],
)
def test_a_sliding_window_that_would_matter_is_refused(kind, options, window, tokenizer, tmp_path):
    make(kind, {**LLAMA, "num_key_value_heads": 4, **options}, 1).save_pretrained(tmp_path / "theirs")
    tokenizer.save(str(tmp_path / "theirs/tokenizer.json"))
    told = mistake("import", tmp_path / "theirs", "--out", tmp_path / "run")
    assert f"sliding_window = {window} is shorter than max_position_embeddings = 64" in told


def test_biases_that_a_qwen2_has_no_place_for_make_it_a_llama(tokenizer, tmp_path):
    make("Qwen2", {**LLAMA, "num_key_value_heads": 2}, 1).save_pretrained(tmp_path / "theirs")
    tokenizer.save(str(tmp_path / "theirs/tokenizer.json"))
    run = imported(tmp_path / "theirs", tmp_path / "run")
    run.model.body.stack.blocks[1].feed_forward.out.bias.data.fill_(0.5)
    lines: list[str] = []
    run.export(tmp_path / "back", "hf", say=lines.append)
    assert "a LlamaForCausalLM for transformers" in lines
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    ids = torch.randint(1, VOCAB, (2, 50))
    with torch.inference_mode():
        torch.testing.assert_close(opened(ids).logits, run.model(ids), atol=1e-5, rtol=1e-5)


def test_more_tokens_than_rows(saved, tmp_path):
    _, path = saved
    small = make("GPT2", {**GPT2, "vocab_size": 100}, 1)
    small.save_pretrained(path)
    with pytest.raises(UserError, match=r"the tokenizer has 300 ids, but the model only 100 rows"):
        import_run(path, tmp_path / "run")


def test_a_file_that_wants_to_run_code_does_not(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, path = saved
    (path / "model.safetensors").unlink()
    for data in (pickle.dumps({"a": Evil()}), b"", b"\x80\x02garbage", b"junk"):
        (path / "pytorch_model.bin").write_bytes(data)
        told = mistake("import", path)
        assert "pytorch_model.bin is damaged, or not a file of tensors only" in told
    assert "it may be cut off after its 4 bytes" in told
    torch.save({"a": Evil()}, path / "pytorch_model.bin")
    assert "it wants to run code" in mistake("import", path)
    torch.save({"a": 3}, path / "pytorch_model.bin")
    assert "something else than tensors" in mistake("import", path)
    assert not Path("executed").exists()
    index = path / "pytorch_model.bin.index.json"
    (path / "pytorch_model.bin").unlink()
    index.write_text('{"weight_map": {"a": "../secret.bin"}}')
    assert "names the file ../secret.bin, which is not there" in mistake("import", path)
    index.write_text('{"weight_map": 3}')
    assert "is damaged" in mistake("import", path)
