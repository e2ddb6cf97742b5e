"""The real transformers as oracle: tiny random GPT-2, Llama and Marian models, imported, write the same in batches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

from allyouneed.decode import Request
from allyouneed.exchange.importing import import_run
from allyouneed.run import load
from generation import beam_search, generate

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
VOCAB, EOS = 61, 2


def imported(theirs: Any, path: Path) -> Any:
    """Our model with the weights of theirs; all its rows may be chosen."""
    theirs.save_pretrained(path / "theirs")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<pad>": 0, "<s>": 1, "</s>": EOS}, unk_token="<pad>"))
    made.save(str(path / "theirs" / "tokenizer.json"))
    import_run(path / "theirs", path / "run", say=lambda line: None)
    ours = load(path / "run", "cpu").model
    ours.known = 0
    return ours


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=40, n_embd=32, n_layer=3, n_head=4, initializer_range=0.3, eos_token_id=EOS,
        bos_token_id=EOS, pad_token_id=0,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    return theirs, imported(theirs, tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.3, rms_norm_eps=1e-6,
        eos_token_id=EOS, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config).eval()
    return theirs, imported(theirs, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=VOCAB, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, activation_function="swish",
        scale_embedding=True, pad_token_id=0, eos_token_id=EOS, decoder_start_token_id=1, bos_token_id=1,
        forced_eos_token_id=None, init_std=0.3, max_position_embeddings=64,
    )  # fmt: skip
    theirs = transformers.MarianMTModel(config).eval()
    torch.nn.init.normal_(theirs.final_logits_bias)
    return theirs, imported(theirs, tmp_path_factory.mktemp("marian"))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_language_model_logits_and_generated_ids(name, request):
    theirs, ours = request.getfixturevalue(name)
    torch.manual_seed(1)
    ids = torch.randint(3, VOCAB, (3, 17))
    with torch.inference_mode():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=1e-5, rtol=1e-5)
    prompts = [ids[0, :5].tolist(), ids[1, :12].tolist(), ids[2, :1].tolist()]
    mine = [row[1] for row in generate(ours, [Request(p, 20, stop={EOS}) for p in prompts], rows=2)]
    for prompt, got in zip(prompts, mine):
        out = theirs.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, len(prompt) :].tolist()
        assert got == (out[: out.index(EOS)] if EOS in out else out)


def test_translation_logits_ids_and_beams(marian):
    theirs, ours = marian
    torch.manual_seed(1)
    source, lengths = torch.randint(3, VOCAB, (4, 9)), torch.tensor([9, 6, 2, 8])
    keep = (torch.arange(9) < lengths[:, None]).long()
    target = torch.randint(3, VOCAB, (4, 7))
    with torch.inference_mode():
        expected = theirs(input_ids=source, attention_mask=keep, decoder_input_ids=target).logits
        torch.testing.assert_close(ours(source, lengths, target), expected, atol=1e-5, rtol=1e-5)
    sources = [row[:n].tolist() for row, n in zip(source, lengths.tolist())]
    for beams in (1, 4):
        out = theirs.generate(
            input_ids=source, attention_mask=keep, num_beams=beams, max_new_tokens=12, length_penalty=1.0,
            do_sample=False, early_stopping=False,
        )  # fmt: skip
        mine = beam_search(ours, sources, beam=beams, max_new=12, eos=EOS, alpha=1.0, length_penalty="power")
        for row, found in zip(out.tolist(), mine):
            row = row[1:]
            assert found[0].tokens == (row[: row.index(EOS)] if EOS in row else row)
