"""Sequence to sequence: scores are their formulas, padding is never seen, steps equal the whole, teacher forcing feeds
what it says."""

from __future__ import annotations

import math

import pytest
import torch

from allyouneed.decode import Request
from allyouneed.errors import UserError
from allyouneed.models.seq2seq import SCORES, Seq2Seq, Seq2SeqConfig
from allyouneed.nn.losses import cross_entropy
from allyouneed.nn.recurrent import CELLS, Recurrent
from allyouneed.nn.scores import make_score
from allyouneed.nn.trace import Trace
from allyouneed.run import Run, load, train
from allyouneed.tasks.base import Moment
from allyouneed.tasks.translate import Translate
from allyouneed.training.starting import choose
from commands import ayn
from generation import beam_search, generate

LOOKING = [score for score in SCORES if score != "none"]
KINDS = [*((score, "gru") for score in SCORES), ("additive", "lstm"), ("none", "lstm"), ("dot", "rnn")]


def seq2seq(**values) -> Seq2Seq:
    torch.manual_seed(0)
    base = {"vocab": 37, "target_vocab": 37, "width": 16, "embedding": 12, "layers": 2, "dropout": 0.0}
    model = Seq2Seq(Seq2SeqConfig(**{**base, **values}))
    for p in model.parameters():  # livelier than at the start of training, so that differences show
        torch.nn.init.normal_(p, std=0.5)
    return model.eval()


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return torch.randint(4, 37, (3, 9)), torch.tensor([9, 4, 1]), torch.randint(4, 37, (3, 7))


def ragged(count: int, seed: int = 0) -> list[list[int]]:
    torch.manual_seed(seed)
    return [torch.randint(4, 37, (int(torch.randint(1, 12, ())),)).tolist() for _ in range(count)]


@pytest.mark.parametrize("kind", LOOKING)
@torch.no_grad()
def test_scores_are_their_formulas(kind):
    torch.manual_seed(0)
    match = make_score(kind, 6, 6)
    q, h = torch.randn(2, 3, 6), torch.randn(2, 4, 6)
    found = match(q, match.keys(h))
    assert found.shape == (2, 3, 4)
    for b in range(2):
        for i in range(3):
            for j in range(4):
                s, m = q[b, i], h[b, j]
                if kind == "additive":
                    inside = match.q.weight @ s + match.k.weight @ m + match.k.bias
                    score = sum(v * math.tanh(x) for v, x in zip(match.v.weight[0].tolist(), inside.tolist()))
                elif kind == "general":
                    score = float(s @ (match.k.weight @ m))
                else:
                    score = sum(x * y for x, y in zip(s.tolist(), m.tolist()))
                    if kind == "cosine":
                        score /= math.sqrt(float(s @ s)) * math.sqrt(float(m @ m))
                assert found[b, i, j].item() == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("kind", LOOKING)
@torch.no_grad()
def test_the_context_is_the_sum_that_the_lecture_writes(kind):
    model = seq2seq(score=kind)
    source, lengths, _ = batch()
    memory, first = model.body.encode(source, lengths)
    s = first[0][-1]
    trace = Trace("weights").at(model)
    c, a = model.body.context_for(s[:, None], memory, trace)[:, 0], trace.get(model.body.score, "weights")[:, 0, 0]
    h = model.body.encoder(model.body.source(source), lengths)[0]
    for b in range(3):
        real = range(int(lengths[b]))
        scores = [float(model.body.score(s[b, None], model.body.score.keys(h[b, j, None]))) for j in real]
        total = sum(math.exp(x) for x in scores)
        weights = [math.exp(x) / total for x in scores]
        assert a[b, : len(weights)].tolist() == pytest.approx(weights, abs=1e-5)
        torch.testing.assert_close(c[b], sum(w * h[b, j] for j, w in zip(real, weights)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("cell", CELLS)
def test_a_single_step_of_the_cells_is_the_sequences(cell):
    torch.manual_seed(0)
    recurrent, x = Recurrent(cell, 5, 6, 2), torch.randn(3, 4, 5)
    whole, end = recurrent(x)
    state, outs = recurrent.zeros(3, x), []
    for t in range(4):
        out, state = recurrent.step(x[:, t], state)
        outs.append(out)
    torch.testing.assert_close(torch.stack(outs, 1), whole, atol=1e-6, rtol=1e-5)
    for a, b in zip(state, end):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("score", "cell"), KINDS)
def test_steps_equal_the_whole_and_a_batch_each_alone(score, cell):
    model = seq2seq(score=score, cell=cell)
    source, lengths, target = batch()
    target[:, 0] = model.config.bos
    whole = model(source, lengths, target)
    inputs = [row[:n].tolist() for row, n in zip(source, lengths.tolist())]
    logits, state = model.start(inputs, 64)
    steps = [logits, *(model.step(target[:, t], state) for t in range(1, 7))]
    torch.testing.assert_close(torch.stack(steps, 1), whole, atol=1e-5, rtol=1e-4)
    assert state.length.tolist() == [7] * 3
    for b, n in enumerate(lengths.tolist()):
        alone = model(source[b : b + 1, :n], lengths[b : b + 1], target[b : b + 1])
        torch.testing.assert_close(alone[0], whole[b], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("score", "cell"), KINDS)
def test_the_decoder_sees_no_future_and_no_padding(score, cell):
    model = seq2seq(score=score, cell=cell, memory="mix")
    source, lengths, target = batch()
    out = model(source, lengths, target)
    later = target.clone()
    later[:, 4:] = 1
    after = model(source, lengths, later)
    torch.testing.assert_close(after[:, :4], out[:, :4])
    assert not torch.allclose(after[:, 4:], out[:, 4:])
    padded = source.clone()
    padded[1, 4:], padded[2, 1:] = 7, 8
    assert torch.equal(model(padded, lengths, target), out)
    seen = source.clone()
    seen[:, 0] = (seen[:, 0] - 3) % 33 + 4
    assert not any(torch.allclose(a, b) for a, b in zip(model(seen, lengths, target), out))


@pytest.mark.parametrize("kind", LOOKING)
def test_alignment_rows_are_distributions_over_real_tokens(kind):
    model = seq2seq(score=kind)
    source, lengths, target = batch()
    weights, shown = model.alignment(source, lengths, target)
    assert shown == f"{kind} attention"
    assert weights.shape == (3, 7, 9)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 7))
    assert (weights[1, :, 4:] == 0).all()
    assert (weights[2, :, 1:] == 0).all()
    assert (weights[0] > 0).all()
    assert not torch.allclose(weights[0, 0], weights[0, 6])


def test_without_attention_there_is_no_alignment():
    with pytest.raises(UserError, match="no attention"):
        seq2seq(score="none").alignment(*batch())


@pytest.mark.parametrize(("score", "cell"), KINDS)
def test_a_ragged_batch_gives_the_ids_of_single_sentences(score, cell):
    model, inputs = seq2seq(score=score, cell=cell), ragged(7)
    for temperature in (0.0, 1.0):
        wishes = [Request(ids, max_new=12, temperature=temperature, seed=5, stop={2}) for ids in inputs]
        together = [row[1] for row in generate(model, wishes, rows=3)]
        assert together == [next(generate(model, [wish], rows=1))[1] for wish in wishes]
        assert len({tuple(ids) for ids in together}) > 1


@pytest.mark.parametrize(("score", "cell"), KINDS)
def test_beams_of_a_batch_are_those_of_single_sentences_and_one_beam_is_greedy(score, cell):
    model, inputs, most = seq2seq(score=score, cell=cell), ragged(4, seed=1), [5, 9, 3, 12]
    together = beam_search(model, inputs, beam=3, max_new=most, eos=2, n_best=2, alpha=0.0)
    for ids, m, both in zip(inputs, most, together):
        alone = beam_search(model, [ids], beam=3, max_new=m, eos=2, n_best=2, alpha=0.0)[0]
        assert [h.tokens for h in both] == [h.tokens for h in alone]
        written = torch.tensor([[model.config.bos, *both[0].tokens]])
        logp = model(torch.tensor([ids]), torch.tensor([len(ids)]), written).log_softmax(-1)[0]
        ends = [*both[0].tokens, 2] if both[0].finished else both[0].tokens
        assert both[0].logprob == pytest.approx(sum(logp[i, t].item() for i, t in enumerate(ends)), abs=1e-4)
    greedy = [h[0].tokens for h in beam_search(model, inputs, beam=1, max_new=8, eos=2)]
    assert greedy == [row[1] for row in generate(model, [Request(ids, max_new=8, stop={2}) for ids in inputs], rows=2)]


@pytest.mark.parametrize("score", ["additive", "none"])
def test_with_p_0_the_true_target_is_never_seen_and_with_p_1_nothing_else(score):
    model = seq2seq(score=score)
    source, lengths, target = batch()

    def untaught(target: torch.Tensor) -> torch.Tensor:
        return model.head(model.body(source, lengths, target, p=0.0, choose=lambda h: model.head(h).argmax(-1)))

    logits = untaught(target)
    assert torch.equal(untaught(torch.zeros_like(target)), logits)
    expected = cross_entropy(logits.flatten(0, 1), target.flatten())
    torch.testing.assert_close(model.loss(source, lengths, target, target, p=0.0), expected)
    own = torch.cat([torch.full((3, 1), model.config.bos), logits.argmax(-1)[:, :-1]], dim=1)
    torch.testing.assert_close(model(source, lengths, own), logits, atol=1e-5, rtol=1e-4)  # its own choices are fed
    taught = model(source, lengths, target)
    assert not torch.allclose(taught, logits)
    model.head.out.weight = torch.nn.Parameter(-model.head.out.weight)  # other choices
    assert torch.equal(model.head(model.body(source, lengths, target)), -taught)


def test_each_row_and_step_draws_for_itself():
    model = seq2seq(score="dot", width=4, embedding=4)
    source, lengths, target = torch.randint(4, 37, (40, 3)), torch.full((40,), 3), torch.randint(4, 37, (40, 25))
    fed, step = [], model.body.decoder.step

    def listen(x, state):
        fed.append(x[:, :4])
        return step(x, state)

    model.body.decoder.step = listen
    model.loss(source, lengths, target, target, p=0.7)
    true = (torch.stack(fed, 1) == model.body.target(target)).all(-1).float()
    own = 1 / 33  # how often its own word is the true one
    assert true.mean().item() == pytest.approx(0.7 + 0.3 * own, abs=0.06)
    for mean in (true.mean(0), true.mean(1)):  # neither whole rows nor whole steps
        assert 0 < mean.min() < mean.max() < 1.0001
        assert mean.std() < 0.15


def test_gradients_flow_through_words_of_its_own():
    model = seq2seq().train()
    source, lengths, target = batch()
    model.loss(source, lengths, target, target, p=0.0).backward()
    for name, p in model.named_parameters():
        assert torch.isfinite(p.grad).all(), name
        assert p.grad.abs().sum() > 0, name


@pytest.mark.parametrize("cell", CELLS)
def test_the_decoders_first_state_is_bounded_as_every_other(cell):
    source, lengths, _ = batch()
    model = seq2seq(cell=cell)
    torch.nn.init.normal_(model.body.first.weight, std=9.0)
    _, first = model.body.encode(source, lengths)
    assert 0.99 < max(part.abs().max().item() for part in first) <= 1.0


def test_a_mix_of_the_layers_is_their_weighted_sum():
    model, last = seq2seq(memory="mix"), seq2seq(memory="last")
    last.load_state_dict({name: t for name, t in model.state_dict().items() if name != "body.mix"})
    source, lengths, target = batch()
    low, high = model.body.encoder.layer_outputs(model.body.source(source), lengths)
    model.body.mix.data = torch.tensor([0.3, -2.0])
    torch.testing.assert_close(model.body.encode(source, lengths)[0]["values"], 0.3 * low - 2.0 * high)
    model.body.mix.data = torch.tensor([0.0, 1.0])
    torch.testing.assert_close(model(source, lengths, target), last(source, lengths, target))
    model.loss(source, lengths, target, target).backward()
    assert (model.body.mix.grad.abs() > 0).all()
    assert Seq2Seq(Seq2SeqConfig(vocab=9, target_vocab=9, layers=4, memory="mix")).body.mix.tolist() == [0.25] * 4


@pytest.mark.parametrize(("share", "tie"), [(True, True), (False, True), (False, False)])
def test_weights_are_shared_as_asked(share, tie):
    model = seq2seq(share=share, tie=tie)
    assert (model.body.source.tokens.weight is model.body.target.tokens.weight) == share
    assert (model.head.out.weight is model.body.target.tokens.weight) == tie


def test_an_odd_width_cannot_be_shared_by_two_directions():
    with pytest.raises(UserError, match=r"model.width = 15 .* even"):
        Seq2SeqConfig(width=15)


# Through the commands

TINY = [
    "model.width=16", "train.threads=1", "train.compile=off", "train.precision=fp32", "train.device=cpu",
    "train.epochs=0", "train.steps=8", "train.eval_every=4", "train.batch_tokens=128", "train.warmup=2",
    "decode.max_new=8",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(pairs, tmp_path_factory) -> Run:
    settings = [*TINY, "train.steps=60", "model.layers=2", "model.memory=mix", "task.teacher_forcing=0.5"]
    out = tmp_path_factory.mktemp("runs") / "run"
    return train("translate/attention", *settings, data=str(pairs), out=out, quiet=True)


def test_p_over_time(pairs):
    def p(at: Moment | None, *settings: str) -> float:
        return Translate(choose("translate/attention", settings, str(pairs))).teacher_forcing(at)

    moments = [Moment(step, step / 100) for step in (0, 25, 50, 75, 100)]
    assert [p(at) for at in moments] == [1.0] * 5
    assert [p(at, "task.teacher_forcing=0.3") for at in moments] == pytest.approx([0.3] * 5)
    falling = [p(at, "task.teacher_forcing=0.2", "task.teacher_schedule=linear") for at in moments]
    assert falling == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    curved = [p(at, "task.teacher_forcing=0.2", "task.teacher_schedule=sigmoid") for at in moments]
    assert curved == pytest.approx([1.0, 0.96, 0.6, 0.24, 0.2], abs=0.005)
    assert p(None, "task.teacher_forcing=0") == 1.0


def test_training_feeds_its_own_words_and_evaluation_never(run):
    batch = run.task.examples("train").collate(torch.arange(4).numpy())
    taught = float(run.task.losses(run.model, batch)["tokens"].detach())
    again = [run.task.losses(run.model, batch, Moment(0, 0.0))["tokens"].detach().item() for _ in range(4)]
    assert len({*again}) > 1  # drawn anew
    assert float(run.task.losses(run.model, batch)["tokens"].detach()) == taught


def test_what_is_fed_is_a_function_of_seed_and_step(pairs, tmp_path):
    """Stopped after four steps and resumed, a run is what it would have been."""
    settings = [*TINY, "task.teacher_forcing=0.5", "model.dropout=0.2", "train.schedule=constant"]
    whole = train("translate/attention", *settings, data=str(pairs), out=tmp_path / "whole", quiet=True)
    cut = [*settings, "train.steps=4"]
    train("translate/attention", *cut, data=str(pairs), out=tmp_path / "cut", quiet=True)
    train("translate/attention", "train.steps=8", data=str(pairs), out=tmp_path / "cut", resume=True, quiet=True)
    resumed = load(tmp_path / "cut")
    for (name, a), b in zip(whole.model.state_dict().items(), resumed.model.state_dict().values()):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("p", ["-0.1", "1.5"])
def test_p_outside_0_to_1_is_refused(p, pairs, tmp_path):
    done = ayn("train", "translate/attention", "--data", pairs, "--out", tmp_path / "run", f"task.teacher_forcing={p}")
    assert done.code == 2
    assert f"task.teacher_forcing = {p} is too" in done.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("schedule", ["linear", "sigmoid"])
def test_p_that_would_fall_from_1_to_1_is_refused_before_the_data_is_read(schedule, tmp_path):
    falling = f"task.teacher_schedule={schedule}"
    done = ayn("train", "translate/attention", "--data", tmp_path / "none.tsv", "--out", tmp_path / "run", falling)
    assert done.code == 2
    assert f"task.teacher_schedule = {schedule} lowers p from 1 to task.teacher_forcing, which is 1" in done.err
    assert "set a lower value, for example task.teacher_forcing=0.5" in done.err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_training_says_from_where_to_where_p_runs(pairs, tmp_path):
    for (p, schedule), told in {
        ("1", "constant"): [],
        ("0.3", "constant"): ["teacher forcing: p is 0.30 throughout"],
        ("0.3", "linear"): ["teacher forcing: p runs from 1.00 to 0.30, linear"],
        ("0", "sigmoid"): ["teacher forcing: p runs from 1.00 to 0.00, sigmoid"],
    }.items():
        settings = [*TINY, f"task.teacher_forcing={p}", f"task.teacher_schedule={schedule}"]
        done = ayn("train", "translate/attention", "--data", pairs, "--out", tmp_path / (p + schedule), *settings)
        assert done.code == 0, done.err
        assert [line for line in done.out.splitlines() if "teacher" in line] == told


@pytest.mark.parametrize("recipe", ["translate/transformer", "translate/multi30k"])
def test_a_model_that_does_not_write_step_by_step_refuses_p_below_1(recipe, pairs, tmp_path):
    done = ayn("train", recipe, "--data", pairs, "--out", tmp_path / "run", "task.teacher_forcing=0.5")
    assert done.code == 2
    assert "needs a model that decodes step by step" in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_a_run_translates_aligns_and_tells_its_guesses(run, tmp_path):
    image = tmp_path / "a.png"
    done = ayn("use", run.folder.path, "one two three", "--alignment", image)
    assert done.code == 0, done.err
    assert image.stat().st_size > 1000
    for method in ("greedy", "sample", "beam"):
        texts = ["one", "two three four five six one", "six six"]
        assert run.predict(texts, method=method) == [run.predict(text, method=method) for text in texts]
    found = run.align("one two three")
    assert found.source == ["one", "two", "three", "</s>"]
    assert found.weights.shape == (len(found.target), 4)
    assert run.table("one two")[0].token == "<s>"


def test_a_run_without_attention_says_that_it_has_none(pairs, tmp_path):
    train("translate/rnn", *TINY, data=str(pairs), out=tmp_path / "run", quiet=True)
    assert ayn("use", tmp_path / "run", "one two").code == 0
    done = ayn("use", tmp_path / "run", "one two", "--alignment", tmp_path / "a.png")
    assert done.code == 2
    assert "has no attention" in done.err
    assert not (tmp_path / "a.png").exists()
