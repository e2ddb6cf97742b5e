"""GPT and the Transformer: equal to Hugging Face, causal, the same cached as whole, the same in a batch as alone."""

from __future__ import annotations

import random

import pytest
import torch

from allyouneed.batch import IGNORE
from allyouneed.decode import Request
from allyouneed.models.convnet import ConvNet, ConvNetConfig
from allyouneed.models.convseq2seq import ConvSeq2Seq, ConvSeq2SeqConfig
from allyouneed.models.elmo import ELMo, ELMoConfig
from allyouneed.models.gpt import GPT, GPTConfig
from allyouneed.models.labeller import Labeller
from allyouneed.models.rnn import RNN, RNNBody, RNNConfig
from allyouneed.models.seq2seq import Seq2Seq, Seq2SeqConfig
from allyouneed.models.transformer import Transformer, TransformerConfig
from allyouneed.models.word2vec import Word2Vec, Word2VecConfig
from allyouneed.nn.heads import TagHead
from allyouneed.nn.losses import cross_entropy
from allyouneed.nn.masks import Mask
from allyouneed.nn.trace import Trace
from allyouneed.predict.decoder import Decoder
from allyouneed.predict.processor import store_by_columns
from allyouneed.training.memory import flops
from generation import beam_search, generate

POSITIONS = ["learned", "rotary", "sinusoidal", "none"]


def gpt(**values) -> GPT:
    torch.manual_seed(0)
    model = GPT(
        GPTConfig(**{"vocab": 37, "context": 48, "width": 32, "heads": 4, "layers": 2, "dropout": 0.0, **values})
    )
    for p in model.parameters():  # livelier than at the start of training, so that differences show
        torch.nn.init.normal_(p, std=0.3) if p.dim() > 1 else None
    return model.eval()


def transformer(**values) -> Transformer:
    torch.manual_seed(0)
    base = {"vocab": 37, "target_vocab": 37, "width": 32, "heads": 4, "layers": 2, "hidden": 64, "dropout": 0.0}
    return Transformer(TransformerConfig(**{**base, **values})).eval()


def ragged(count: int, seed: int = 0, most: int = 12) -> list[list[int]]:
    torch.manual_seed(seed)
    return [torch.randint(4, 37, (int(torch.randint(1, most, ())),)).tolist() for _ in range(count)]


@pytest.mark.parametrize("positions", POSITIONS)
def test_nothing_before_a_changed_future_token_moves(positions):
    model = gpt(positions=positions)
    ids = torch.randint(0, 37, (3, 20))
    other = ids.clone()
    other[:, 11:] = torch.randint(0, 37, (3, 9))
    before, after = model(ids), model(other)
    torch.testing.assert_close(before[:, :11], after[:, :11], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(before[:, 11:], after[:, 11:])


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_the_decoder_sees_no_future_and_the_encoder_no_padding(positions):
    model = transformer(positions=positions)
    source, lengths = torch.randint(4, 37, (2, 9)), torch.tensor([9, 5])
    target = torch.randint(4, 37, (2, 8))
    out = model(source, lengths, target)
    later = target.clone()
    later[:, 5:] = 1
    torch.testing.assert_close(model(source, lengths, later)[:, :5], out[:, :5], atol=1e-6, rtol=1e-5)
    padded = source.clone()
    padded[1, 5:] = 7
    torch.testing.assert_close(model(padded, lengths, target), out, atol=1e-6, rtol=1e-5)
    seen = source.clone()
    seen[1, 4] = (seen[1, 4] - 3) % 33 + 4
    assert not torch.allclose(model(seen, lengths, target)[1], out[1])


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("kv_heads", [0, 1])
def test_cached_equals_uncached_whole_or_in_pieces(positions, kv_heads):
    model = gpt(positions=positions, kv_heads=kv_heads)
    ids = torch.randint(0, 37, (3, 30))
    whole = model(ids)
    for cuts in ([30], [1] * 30, [7, 1, 13, 9]):
        cache, outs, at = model.empty(3, 40), [], 0
        for size in cuts:
            outs.append(model.head(model.body(ids[:, at : at + size], state=cache)))
            at += size
        torch.testing.assert_close(torch.cat(outs, 1), whole, atol=2e-5, rtol=1e-4)
        assert cache.length.tolist() == [30] * 3


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "sinusoidal_half"])
def test_steps_beyond_the_first_table_of_positions_equal_the_whole(positions):
    """Tables begin with 512 positions and grow with what is asked of them."""
    length = 520
    ids = torch.randint(4, 37, (1, length))
    writer, translator = (make(positions=positions, layers=1, width=16) for make in (gpt, transformer))
    with torch.no_grad():
        whole = writer(ids)[0]
        writer = gpt(positions=positions, layers=1, width=16)  # its table is as short as at first
        cache = writer.empty(1, length)
        writer.body(ids[:, : length - 9], state=cache)
        steps = torch.cat([writer.step(ids[:, t], cache) for t in range(length - 9, length)])
        torch.testing.assert_close(steps, whole[-9:], atol=1e-4, rtol=1e-4)
        fresh = gpt(positions=positions, layers=1, width=16)
        torch.testing.assert_close(fresh.start([ids[0].tolist()], length)[0][0], whole[-1], atol=1e-4, rtol=1e-4)
        source, lengths = ids[:, :7], torch.tensor([7])
        whole = translator(source, lengths, torch.cat([torch.tensor([[1]]), ids[:, 1:]], 1))[0]
        translator = transformer(positions=positions, layers=1, width=16)
        first, state = translator.start(source.tolist(), length)
        steps = torch.cat([first, *(translator.step(ids[:, t], state) for t in range(1, length))])
    torch.testing.assert_close(steps, whole, atol=1e-4, rtol=1e-4)


def test_values_may_be_wider_than_keys_also_in_a_cache():
    model = gpt(head_width=6, value_width=12)
    ids = torch.randint(0, 37, (2, 9))
    cache = model.empty(2, 16)
    steps = torch.stack([model.step(ids[:, t], cache) for t in range(9)], 1)
    torch.testing.assert_close(steps, model(ids), atol=2e-5, rtol=1e-4)


def test_the_loss_smooths_as_it_is_asked_to():
    ids, targets = torch.randint(4, 37, (2, 6)), torch.randint(4, 37, (2, 6))
    targets[1, 4:] = IGNORE
    lengths = torch.tensor([6, 4])
    for model in (
        gpt(),
        rnn := RNN(RNNConfig(vocab=37, width=8)).eval(),
        ConvNet(ConvNetConfig(vocab=37, width=8)).eval(),
    ):
        expected = cross_entropy(model(ids).flatten(0, 1), targets.flatten(), 0.1)
        torch.testing.assert_close(model.loss(ids, targets, 0.1), expected)
        assert not torch.isclose(model.loss(ids, targets), expected, rtol=1e-3)
    torch.testing.assert_close(rnn.loss(ids, targets, 0.1, rnn.empty(2, 0)), rnn.loss(ids, targets, 0.1))
    both = {"vocab": 37, "target_vocab": 37, "width": 8}
    for model in (
        transformer(),
        Seq2Seq(Seq2SeqConfig(**both)).eval(),
        ConvSeq2Seq(ConvSeq2SeqConfig(**both)).eval(),
    ):
        expected = cross_entropy(model(ids, lengths, ids).flatten(0, 1), targets.flatten(), 0.1)
        torch.testing.assert_close(model.loss(ids, lengths, ids, targets, 0.1), expected)
    tagger = Labeller(RNNBody(RNNConfig(vocab=37, width=8)), TagHead(8, 40)).eval()
    tensors = {"ids": ids, "lengths": lengths}
    expected = cross_entropy(tagger(tensors).flatten(0, 1), targets.flatten(), 0.1)
    torch.testing.assert_close(tagger.loss(tensors, targets, 0.1), expected)


def test_the_alignment_is_the_mean_of_the_last_layers_heads():
    model, trace = transformer(), Trace("weights")
    source, lengths, target = torch.randint(4, 37, (2, 6)), torch.tensor([6, 3]), torch.randint(4, 37, (2, 5))
    weights, shown = model.alignment(source, lengths, target)
    assert shown == f"decoder layer {len(model.body.decoder.blocks)}, mean of {model.config.heads} heads"
    model(source, lengths, target, trace=trace)
    torch.testing.assert_close(weights, trace["body.decoder.blocks.1.cross.weights"].mean(1))
    assert not torch.allclose(weights, trace["body.decoder.blocks.0.cross.weights"].mean(1), atol=1e-3)


def test_what_ends_on_the_residual_stream_begins_smaller():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab=100, width=64, heads=4, layers=8))
    for block in model.body.stack.blocks:
        for layer, std in (
            (block.attention.qkv, 0.02),
            (block.feed_forward.into, 0.02),
            (block.attention.out, 0.005),
            (block.feed_forward.out, 0.005),
        ):
            assert layer.weight.std().item() == pytest.approx(std, rel=0.1)
    assert model.head.out.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_one_embedding_for_two_vocabularies_is_a_callers_bug():
    for target in (36, 38):
        with pytest.raises(ValueError, match="one vocabulary"):
            transformer(target_vocab=target, share=True)


def test_flops_are_two_for_each_weight_that_meets_a_token():
    lstm = RNN(RNNConfig(vocab=50, width=8, embedding=6))
    assert flops(lstm, 16) == 2 * (4 * 8 * (6 + 8) + 8 * 50)
    words = Word2Vec(Word2VecConfig(vocab=50, width=8, window=4, negatives=2))
    assert flops(words, 9) == 2 * 8 * 3 * 5
    soft = Word2Vec(Word2VecConfig(vocab=50, width=8, window=4, method="cbow", loss="softmax"))
    assert flops(soft, 9) == 8 * 5 + 2 * 8 * 50


def test_ragged_prefill_in_pieces_equals_each_alone():
    model = gpt(positions="rotary")
    ids = torch.randint(0, 37, (2, 12))
    cache = model.empty(2, 40)
    model.body(ids[:, :6], state=cache, count=torch.tensor([6, 2]))
    rest = torch.zeros(2, 6, dtype=torch.long)
    rest[0, :2], rest[1] = ids[0, 6:8], ids[1, 2:8]
    out = model.head(model.body(rest, state=cache, count=torch.tensor([2, 6])))
    torch.testing.assert_close(out[0, 1], model(ids[:1, :8])[0, 7], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(out[1, 5], model(ids[1:, :8])[0, 7], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_mask_and_a_cache_restrict_together(positions):
    """Two tokens are hidden from all queries: the same with a cache, whole and in steps, as without one."""
    model, room = gpt(positions=positions), 12
    ids, visible = torch.randint(0, 37, (2, 9)), torch.ones(2, 1, 1, room, dtype=torch.bool)
    visible[0, ..., 3] = visible[1, ..., 5] = False
    whole = model.head(model.body(ids, Mask(visible[..., :9], causal=True)))
    assert not torch.allclose(whole, model(ids), atol=1e-3)
    for cuts in ([9], [4, 5], [1] * 9):
        cache, outs, at = model.empty(2, room), [], 0
        for size in cuts:
            outs.append(model.head(model.body(ids[:, at : at + size], Mask(visible, causal=True), state=cache)))
            at += size
        torch.testing.assert_close(torch.cat(outs, 1), whole, atol=2e-5, rtol=1e-4)


def test_a_mask_that_does_not_fit_the_cache_is_refused():
    model, ids = gpt(), torch.randint(0, 37, (2, 9))
    with pytest.raises(ValueError, match="the mask is for 9 keys, the cache has room for 12"):
        model.body(ids, Mask.padding(torch.tensor([9, 4]), 9), state=model.empty(2, 12))


def test_rows_without_a_token_are_never_chosen():
    """model.vocab may be larger than the tokenizer: of the output only the tokens that there are count."""
    for model in (gpt(), transformer()):
        model.known = 30
        logits, state = model.start([[5, 6, 7], [8]], 16)
        assert logits.shape == model.step(torch.tensor([9, 9]), state).shape == (2, 30)
    letters = ELMo(ELMoConfig(vocab=5, width=8, layers=1, letters=6, filters=1, reader=4))
    letters.spell([" one", " two", " three"])
    assert [row.any().item() for row in letters.spelling] == [True] * 3 + [False] * 2


def stepper(kind: str):
    return gpt(positions="learned") if kind == "gpt" else transformer()


@pytest.mark.parametrize("kind", ["gpt", "transformer"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_ragged_batch_gives_the_ids_of_single_prompts(kind, temperature):
    model, inputs = stepper(kind), ragged(9)

    def request(ids):
        return Request(ids, max_new=15, temperature=temperature, top_p=0.9, seed=5, stop={2})

    together = [row[1] for row in generate(model, map(request, inputs), rows=4)]
    alone = [next(generate(model, [request(ids)], rows=1))[1] for ids in inputs]
    assert together == alone
    assert len({tuple(ids) for ids in together}) > 1


@pytest.mark.parametrize("kind", ["gpt", "transformer"])
def test_greedy_with_a_cache_is_argmax_over_the_whole_prefix(kind):
    model, inputs = stepper(kind), ragged(4, seed=3)
    for ids in inputs:
        fast = next(generate(model, [Request(ids, max_new=10)], rows=1))[1]
        slow: list[int] = []
        for _ in range(10):
            if kind == "gpt":
                logits = model(torch.tensor([ids + slow]))
            else:
                logits = model(torch.tensor([ids]), torch.tensor([len(ids)]), torch.tensor([[1, *slow]]))
            slow.append(int(logits[0, -1].argmax()))
        assert fast == slow


@pytest.mark.parametrize("kind", ["gpt", "transformer"])
@pytest.mark.parametrize("seed", range(5))
def test_rows_join_and_leave_while_others_go_on(kind, seed):
    chance = random.Random(seed)
    model, inputs = stepper(kind), ragged(6, seed=seed)

    def request(i):
        return Request(inputs[i], max_new=4 + 3 * i, temperature=0.7 * (i % 2), seed=i, stop={2})

    decoder, found, waiting, owner = Decoder(model, 3), {}, list(range(6)), {}
    cancelled = chance.randrange(6)
    while waiting or decoder.busy:
        if waiting and chance.random() < 0.5:
            i = waiting.pop(0)
            owner[decoder.add(request(i))] = i
            found[i] = []
        for event in decoder.tick():
            i = owner[event.id]
            if event.token is not None:
                found[i].append(event.token)
            if i == cancelled and len(found[i]) == 2:
                decoder.cancel(event.id)
    for i in range(6):
        alone = next(generate(model, [request(i)], rows=1))[1]
        assert found[i] == (alone[:2] if i == cancelled else alone)


@pytest.mark.parametrize("kind", ["gpt", "transformer"])
def test_beams_of_a_ragged_batch_are_those_of_single_sentences(kind):
    model, inputs = stepper(kind), ragged(5, seed=1)
    together = beam_search(model, inputs, beam=4, max_new=[5, 9, 3, 12, 7], eos=2, n_best=2)
    for ids, most, both in zip(inputs, [5, 9, 3, 12, 7], together):
        alone = beam_search(model, [ids], beam=4, max_new=most, eos=2, n_best=2)[0]
        assert [h.tokens for h in both] == [h.tokens for h in alone]
        assert [h.score for h in both] == pytest.approx([h.score for h in alone], abs=1e-4)
    greedy = [h[0].tokens for h in beam_search(model, inputs, beam=1, max_new=8, eos=2)]
    plain = [r[1] for r in generate(model, [Request(i, max_new=8, stop={2}) for i in inputs], rows=2)]
    assert greedy == plain


def test_beam_scores_are_the_models_own_probabilities():
    model, inputs = transformer(), ragged(3, seed=2)
    for ids, found in zip(inputs, beam_search(model, inputs, beam=3, max_new=6, eos=2, alpha=0.0)):
        best = found[0]
        written = [1, *best.tokens]
        logp = model(torch.tensor([ids]), torch.tensor([len(ids)]), torch.tensor([written])).log_softmax(-1)[0]
        ends = [*best.tokens, 2] if best.finished else best.tokens
        total = sum(logp[i, t].item() for i, t in enumerate(ends))
        assert best.logprob == pytest.approx(total, abs=1e-4)


def test_trace_keeps_every_layer_and_changes_nothing():
    model, trace = transformer(), Trace()
    source, lengths, target = torch.randint(4, 37, (2, 6)), torch.tensor([6, 3]), torch.randint(4, 37, (2, 5))
    torch.testing.assert_close(model(source, lengths, target, trace=trace), model(source, lengths, target))
    assert trace["body.encoder.blocks.1.attention.weights"].shape == (2, 4, 6, 6)
    assert trace["body.decoder.blocks.0.cross.weights"].shape == (2, 4, 5, 6)
    assert (trace["body.decoder.blocks.0.cross.weights"][1, :, :, 3:] == 0).all()
    for part in ("queries", "keys", "values"):
        assert trace[f"body.decoder.blocks.1.attention.{part}"].shape == (2, 4, 5, 8)
    last = trace["body.decoder.blocks.1.layers"]
    torch.testing.assert_close(model.body.decoder.norm(last), model.body(source, lengths, target))


def test_sizes_are_the_named_ones():
    nano = GPT(GPTConfig(vocab=10, **GPT.sizes["nano"]))
    assert (nano.config.layers, nano.config.heads, nano.config.width) == (3, 3, 48)
    with torch.device("meta"):
        counts = {
            name: sum(p.numel() for p in GPT(GPTConfig(vocab=50257, **GPT.sizes[name])).parameters())
            for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
        }
        base = Transformer(TransformerConfig(vocab=37000, target_vocab=37000, **Transformer.sizes["base"]))
    assert counts == {"gpt2": 124439808, "gpt2-medium": 354823168, "gpt2-large": 774030080, "gpt2-xl": 1557611200}
    assert 62e6 < sum(p.numel() for p in base.parameters()) < 66e6  # the paper says 65 million


@pytest.mark.parametrize(("share", "tie"), [(True, True), (False, True), (False, False)])
def test_weights_are_shared_as_asked(share, tie):
    model = transformer(share=share, tie=tie)
    assert (model.body.source.tokens.weight is model.body.target.tokens.weight) == share
    assert (model.head.out.weight is model.body.target.tokens.weight) == tie


@pytest.mark.parametrize("tie", [True, False])
def test_matrices_by_columns_have_the_same_values_and_embeddings_stay_rows(tie):
    model = transformer(tie=tie)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ids, lengths = torch.randint(4, 37, (2, 9)), torch.tensor([9, 5])
    logits = model(ids, lengths, ids)
    store_by_columns(model)
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    torch.testing.assert_close(model(ids, lengths, ids), logits, atol=1e-5, rtol=1e-5)
    assert model.body.source.tokens.weight.is_contiguous()
    matrices = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert sum(w.is_contiguous() for w in matrices) == int(tie)
    assert sum(w.t().is_contiguous() for w in matrices) == len(matrices) - int(tie)


@torch.inference_mode()
def test_a_block_without_a_part_is_its_formula():
    """Whole, and without residuals, feed-forward part or norms: each changes what it should, and nothing else."""
    x, whole = torch.randn(2, 7, 32), gpt(layers=1).body.stack.blocks[0]
    for change in ({}, {"residual": False}, {"feed_forward": False}, {"norm": "none"}, {"prenorm": False}):
        block = gpt(layers=1, **change).body.stack.blocks[0]
        block.load_state_dict({name: t for name, t in whole.state_dict().items() if name in block.state_dict()})
        expected = x
        for part, norm in ((whole.attention, whole.attention_norm), (whole.feed_forward, whole.feed_forward_norm)):
            if part is whole.feed_forward and "feed_forward" in change:
                continue
            first = norm if not change.keys() & {"norm", "prenorm"} else torch.nn.Identity()
            last = norm if "prenorm" in change else torch.nn.Identity()
            expected = last((0 if "residual" in change else expected) + part(first(expected)))
        torch.testing.assert_close(block(x, Mask()), expected)
        missing = {"feed_forward": "feed_forward", "norm": "norm"}.get(next(iter(change), ""), "-")
        assert {name for name in whole.state_dict() if missing not in name} == set(block.state_dict())


@pytest.mark.parametrize("change", [{"residual": False}, {"feed_forward": False}, {"norm": "none"}], ids=str)
def test_a_model_without_a_part_writes_the_same_with_a_cache(change):
    model, given = gpt(**change), ragged(1, seed=3)[0]
    slow: list[int] = []
    with torch.inference_mode():
        for _ in range(10):
            slow.append(int(model(torch.tensor([given + slow]))[0, -1].argmax()))
    assert next(generate(model, [Request(given, max_new=10)], rows=1))[1] == slow
