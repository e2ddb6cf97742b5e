"""Translating with a Transformer of Marian's architecture: our decoding against transformers' generate."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
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
from allyouneed.predict.loading import store_by_columns
from bench.harness import OURS, Case, Peer, Prepared, same

LAYERS, HEADS, WIDTH, HIDDEN, VOCAB = 3, 8, 256, 1024, 8000
PAD, BOS, EOS = 0, 1, 2
SENTENCES, ROWS, MAX_NEW = 128, 32, 32
NEVER = -1e9
HF = "transformers"
STOPPING = ', early_stopping="never" because ours never stops early either'


def our_model(end_bias: float) -> Transformer:
    """Random weights, chosen so that answers do not repeat one word, and that no two words are so nearly equally likely
    that rounding decides."""
    torch.manual_seed(0)
    model = Transformer(
        TransformerConfig(
            vocab=VOCAB, target_vocab=VOCAB, width=WIDTH, layers=LAYERS, heads=HEADS, hidden=HIDDEN, activation="silu",
            prenorm=False, positions="sinusoidal_half", output_bias=True, dropout=0.0, bos=BOS,
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
    store_by_columns(model)  # as `load` does on a CPU
    return model


def their_model(ours: Transformer) -> Any:
    """The same weights in a MarianMTModel."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    config = transformers.MarianConfig(
        vocab_size=VOCAB, d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=HIDDEN, decoder_ffn_dim=HIDDEN, activation_function="swish",
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


def sentences() -> list[list[int]]:
    """Sentences of 4 to 32 random words and the end token."""
    chance = random.Random(0)
    return [[*chance.choices(range(3, VOCAB), k=chance.randint(4, 32)), EOS] for _ in range(SENTENCES)]


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

    def search(some: list[list[int]]) -> list[list[int]]:
        width = max(map(len, some))
        ids = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in some])
        out = model.generate(
            input_ids=ids,
            attention_mask=(ids != PAD).long(),
            num_beams=beam,
            max_new_tokens=MAX_NEW,
            do_sample=False,
            # Its default stops while a longer answer could still be better, which is another search than ours.
            early_stopping="never" if beam > 1 else False,
        )
        rows = [row[1:] for row in out.tolist()]
        return [row[: row.index(EOS)] if EOS in row else row for row in rows]

    return in_batches(sources, search)


def prepare(beam: int, end_bias: float, peers: set[str], folder: Path) -> Prepared:
    sources, ours = sentences(), our_model(end_bias)
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
        f"{SENTENCES} sentences of 4 to 32 random words through a Transformer of Marian's architecture ({LAYERS} + "
        f"{LAYERS} layers, width {WIDTH}, {HEADS} heads, feed-forward {HIDDEN}, vocabulary {VOCAB}, random weights) by "
        f"{search}, {ROWS} sentences at a time, fp32, CPU; {ends}. Ours is `allyouneed.decode`, the peer "
        "`MarianMTModel.generate` with the same weights, on padded batches sorted by length"
        f"{STOPPING if beam > 1 else ''}."
    )
    return Case(name, work, "tokens", [Peer(HF, "transformers")], partial(prepare, beam, end_bias))


CASES = (
    case("translate-marian-greedy", 1, NEVER),
    case("translate-marian-beam5", 5, NEVER),
    case("translate-marian-ends-greedy", 1, 12.0),
    case("translate-marian-ends-beam5", 5, 12.0),
)
