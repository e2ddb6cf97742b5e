"""The real transformers as oracle: tiny random GPT-2, Llama and Marian models give the same logits, ids and beams."""

from __future__ import annotations

import os

import pytest
import torch

from allyouneed.decode import Request, beam_search
from allyouneed.models.gpt import GPT, GPTConfig
from allyouneed.models.transformer import Transformer, TransformerConfig
from generation import generate

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
VOCAB, EOS = 61, 2


def copy(ours: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Every one of our tensors must be given, and nothing else."""
    missing, unexpected = ours.load_state_dict(weights, strict=False)
    assert not unexpected
    tied = {"head.out.weight", "body.target.tokens.weight"}
    assert {name for name in missing if name not in tied} == set()


@pytest.fixture(scope="module")
def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=40, n_embd=32, n_layer=3, n_head=4, initializer_range=0.3, eos_token_id=EOS,
        bos_token_id=EOS, pad_token_id=0, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    t = theirs.transformer
    weights = {
        "body.embedding.tokens.weight": t.wte.weight,
        "body.embedding.positions.table.weight": t.wpe.weight,
        "head.out.weight": t.wte.weight,
        "body.stack.norm.weight": t.ln_f.weight,
        "body.stack.norm.bias": t.ln_f.bias,
    }
    for i, block in enumerate(t.h):
        rows = {
            "attention_norm": block.ln_1,
            "attention.qkv": block.attn.c_attn,
            "attention.out": block.attn.c_proj,
            "feed_forward_norm": block.ln_2,
            "feed_forward.into": block.mlp.c_fc,
            "feed_forward.out": block.mlp.c_proj,
        }
        for name, layer in rows.items():
            turned = layer.weight.T if layer.weight.dim() == 2 else layer.weight
            weights |= {
                f"body.stack.blocks.{i}.{name}.weight": turned,
                f"body.stack.blocks.{i}.{name}.bias": layer.bias,
            }
    ours = GPT(GPTConfig(vocab=VOCAB, context=40, width=32, layers=3, heads=4, dropout=0.0)).eval()
    copy(ours, weights)
    return theirs, ours


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.3, rms_norm_eps=1e-6,
        eos_token_id=EOS, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config).eval()
    weights = {
        "body.embedding.tokens.weight": theirs.model.embed_tokens.weight,
        "head.out.weight": theirs.lm_head.weight,
        "body.stack.norm.weight": theirs.model.norm.weight,
    }
    for i, block in enumerate(theirs.model.layers):
        a, m = block.self_attn, block.mlp
        weights |= {
            f"body.stack.blocks.{i}.{name}.weight": tensor
            for name, tensor in {
                "attention_norm": block.input_layernorm.weight,
                "attention.qkv": torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight]),
                "attention.out": a.o_proj.weight,
                "feed_forward_norm": block.post_attention_layernorm.weight,
                "feed_forward.into": torch.cat([m.gate_proj.weight, m.up_proj.weight]),
                "feed_forward.out": m.down_proj.weight,
            }.items()
        }
    ours = GPT(
        GPTConfig(
            vocab=VOCAB, width=32, layers=2, heads=4, kv_heads=2, hidden=48, activation="swiglu", norm="rms",
            norm_eps=1e-6, bias=False, positions="rotary", tie=False, dropout=0.0,
        )
    ).eval()  # fmt: skip
    copy(ours, weights)
    return theirs, ours


@pytest.fixture(scope="module")
def marian():
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=VOCAB, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, activation_function="swish", dropout=0.0,
        attention_dropout=0.0, scale_embedding=True, pad_token_id=0, eos_token_id=EOS, decoder_start_token_id=1,
        bos_token_id=1, forced_eos_token_id=None, init_std=0.3, max_position_embeddings=64,
    )  # fmt: skip
    theirs = transformers.MarianMTModel(config).eval()
    torch.nn.init.normal_(theirs.final_logits_bias)
    weights = {
        "body.source.tokens.weight": theirs.model.shared.weight,
        "head.out.weight": theirs.lm_head.weight,
        "head.out.bias": theirs.final_logits_bias[0],
    }

    def attention(name, layer, cross):
        q, k, v = layer.q_proj, layer.k_proj, layer.v_proj
        parts = {"q": [q], "kv": [k, v]} if cross else {"qkv": [q, k, v]}
        parts["out"] = [layer.out_proj]
        return {
            f"{name}.{part}.{what}": torch.cat([getattr(linear, what) for linear in linears])
            for part, linears in parts.items()
            for what in ("weight", "bias")
        }

    for side, stack in (("encoder", theirs.model.encoder), ("decoder", theirs.model.decoder)):
        for i, block in enumerate(stack.layers):
            at = f"body.{side}.blocks.{i}"
            weights |= attention(f"{at}.attention", block.self_attn, cross=False)
            rows = {
                "attention_norm": block.self_attn_layer_norm,
                "feed_forward.into": block.fc1,
                "feed_forward.out": block.fc2,
                "feed_forward_norm": block.final_layer_norm,
            }
            if side == "decoder":
                weights |= attention(f"{at}.cross", block.encoder_attn, cross=True)
                rows["cross_norm"] = block.encoder_attn_layer_norm
            for name, layer in rows.items():
                weights |= {f"{at}.{name}.weight": layer.weight, f"{at}.{name}.bias": layer.bias}
    ours = Transformer(
        TransformerConfig(
            vocab=VOCAB, target_vocab=VOCAB, width=32, layers=2, heads=4, hidden=48, activation="silu", prenorm=False,
            positions="sinusoidal_half", output_bias=True, dropout=0.0, bos=1,
        )
    ).eval()  # fmt: skip
    copy(ours, weights)
    return theirs, ours


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
