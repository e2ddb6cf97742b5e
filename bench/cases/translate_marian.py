"""Translating with a Transformer of Marian's architecture: our decoding against transformers' generate."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from allyouneed.decode import Request
from allyouneed.decode.beam import BeamSearch
from allyouneed.exchange.families.translators import MARIAN
from allyouneed.exchange.maps import export_tensors
from allyouneed.models.transformer import Transformer, TransformerConfig
from allyouneed.predict.decoder import Decoder
from allyouneed.predict.processor import store_by_columns
from bench.harness import OURS, Case, Peer, Prepared, same

PAD, BOS, EOS = 0, 1, 2
SENTENCES, ROWS, MAX_NEW = 128, 32, 32
NEVER = -1e9
HF = "transformers"
STOPPING = ', early_stopping="never" because ours never stops early either'


@dataclass(frozen=True)
class Size:
    layers: int = 3
    heads: int = 8
    width: int = 256
    hidden: int = 1024
    vocab: int = 8000


SIZE = Size()


def our_model(size: Size, end_bias: float) -> Transformer:
    """Random weights, chosen so that answers do not repeat one word, and that no two words are so nearly equally likely
    that rounding decides."""
    torch.manual_seed(0)
    model = Transformer(
        TransformerConfig(
            vocab=size.vocab, target_vocab=size.vocab, width=size.width, layers=size.layers, heads=size.heads,
            hidden=size.hidden, activation="silu", prenorm=False, positions="sinusoidal_half", output_bias=True,
            dropout=0.0, bos=BOS,
        )
    ).eval()  # fmt: skip
    with torch.no_grad():
        nn.init.normal_(model.body.source.tokens.weight, std=0.2)
        # The output matrix is the embedding: without these signs the most likely next word is always the last one.
        last = model.body.decoder.blocks[-1].feed_forward_norm
        assert isinstance(last, nn.LayerNorm)
        last.weight[::2] = -1
        model.head.out.bias[EOS] = end_bias
        model.head.out.bias[PAD] = NEVER  # transformers forbids it
    return model


def their_model(ours: Transformer) -> Any:
    """The same weights in a MarianMTModel."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    c = ours.config
    config = transformers.MarianConfig(
        vocab_size=c.vocab, d_model=c.width, encoder_layers=c.layers, decoder_layers=c.layers,
        encoder_attention_heads=c.heads, decoder_attention_heads=c.heads, encoder_ffn_dim=c.hidden,
        decoder_ffn_dim=c.hidden, activation_function="swish",
        dropout=0.0, attention_dropout=0.0, scale_embedding=True, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=BOS,
        decoder_start_token_id=BOS, forced_eos_token_id=None, max_position_embeddings=512,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).eval()
    rows = MARIAN.table(MARIAN.heads["MarianMTModel"], vars(ours.config))
    missing, unexpected = model.load_state_dict(export_tensors(rows, ours.state_dict(), ours), strict=False)
    # The shared embedding again, and the fixed sinusoids.
    derived = ("embed_tokens.weight", "lm_head.weight", "embed_positions.weight")
    assert not unexpected
    assert all(name.endswith(derived) for name in missing), missing
    return model


def sentences(count: int, vocab: int) -> list[list[int]]:
    """Sentences of 4 to 32 random words and the end token."""
    chance = random.Random(0)
    return [[*chance.choices(range(3, vocab), k=chance.randint(4, 32)), EOS] for _ in range(count)]


def in_batches(sources: list[list[int]], translate: Callable[[list[list[int]]], list[list[int]]]) -> list[list[int]]:
    """Translate in batches of similar length; the answers come in the order of the sources."""
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    answers: dict[int, list[int]] = {}
    for start in range(0, len(order), ROWS):
        these = order[start : start + ROWS]
        answers |= zip(these, translate([sources[i] for i in these]))
    return [answers[i] for i in range(len(sources))]


def our_greedy(model: Any, sources: list[list[int]]) -> list[list[int]]:
    """Greedy decoding of all sentences in one Decoder."""
    decoder = Decoder(model, ROWS)
    answers: dict[int, list[int]] = {decoder.add(Request(source, MAX_NEW, stop={EOS})): [] for source in sources}
    left = len(sources)
    while left:
        for event in decoder.tick():
            answers[event.id] += [] if event.token is None else [event.token]
            left -= bool(event.done)
    return list(answers.values())


def our_translations(model: Any, sources: list[list[int]], beam: int) -> list[list[int]]:
    """As `ayn use` decodes: greedy in one Decoder, beam search in batches of similar length."""
    if beam == 1:
        return our_greedy(model, sources)

    def search(some: list[list[int]]) -> list[list[int]]:
        engine, answers = BeamSearch(model, len(some)), dict[int, list[int]]()
        for ids in some:
            engine.add(Request(ids, MAX_NEW, stop=[EOS], beam=beam, alpha=1.0, length_penalty="power"))
        while engine.busy:
            for event in engine.tick():
                answers[event.id] = event.hypotheses[0].tokens
        return [answers[id] for id in range(len(some))]

    return in_batches(sources, search)


def their_translations(model: Any, sources: list[list[int]], beam: int) -> list[list[int]]:
    """Padded batches of similar length through generate."""
    return in_batches(sources, partial(generate, model, beam, MAX_NEW))


def generate(model: Any, beam: int, max_new: int, sources: list[list[int]]) -> list[list[int]]:
    """One padded batch through generate of transformers."""
    width = max(map(len, sources))
    ids = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in sources], device=model.device)
    out = model.generate(
        input_ids=ids,
        attention_mask=(ids != PAD).long(),
        num_beams=beam,
        max_new_tokens=max_new,
        do_sample=False,
        # Its default stops while a longer answer could still be better, which is another search than ours.
        early_stopping="never" if beam > 1 else False,
    )
    rows = [row[1:] for row in out.tolist()]
    return [row[: row.index(EOS)] if EOS in row else row for row in rows]


def prepare(beam: int, end_bias: float, peers: set[str], folder: Path) -> Prepared:
    sources, ours = sentences(SENTENCES, SIZE.vocab), our_model(SIZE, end_bias)
    store_by_columns(ours)  # as `load` does on a CPU
    sides: dict[str, Callable[[], list[list[int]]]] = {OURS: partial(our_translations, ours, sources, beam)}
    if HF in peers:
        sides[HF] = partial(their_translations, their_model(ours), sources, beam)
    answers = [side() for side in sides.values()]
    sizes = [len(row) for row in answers[0]]
    checked = same("every side gives the same ids for every sentence", all(a == answers[0] for a in answers))
    return Prepared(sides, sum(sizes), f"{checked}, {min(sizes)} to {max(sizes)} of them")


def case(name: str, beam: int, end_bias: float) -> Case:
    ends = (
        f"no sentence may end: every answer has {MAX_NEW} words"
        if end_bias == NEVER
        else f"sentences end by themselves, or after {MAX_NEW} words"
    )
    search = f"beam search with {beam} hypotheses" if beam > 1 else "greedy search"
    work = (
        f"{SENTENCES} sentences of 4 to 32 random words through a Transformer of Marian's architecture "
        f"({SIZE.layers} + {SIZE.layers} layers, width {SIZE.width}, {SIZE.heads} heads, feed-forward {SIZE.hidden}, "
        f"vocabulary {SIZE.vocab}, random weights) by {search}, {ROWS} sentences at a time, fp32, CPU; "
        f"{ends}. Ours is `allyouneed.decode`, the peer `MarianMTModel.generate` with the same weights, on padded "
        f"batches sorted by length{STOPPING if beam > 1 else ''}."
    )
    return Case(name, work, "tokens", [Peer(HF, "transformers")], partial(prepare, beam, end_bias))


CASES = (
    case("translate-marian-greedy", 1, NEVER),
    case("translate-marian-beam5", 5, NEVER),
    case("translate-marian-ends-greedy", 1, 12.0),
    case("translate-marian-ends-beam5", 5, 12.0),
)
