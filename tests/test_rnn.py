"""The recurrent language model: causal, the same cached as whole and in a batch as alone; and training in which the
state goes on from window to window."""

from __future__ import annotations

import math
import os
import random
import signal

import pytest
import torch

from allyouneed.decode import Request
from allyouneed.errors import UserError
from allyouneed.models.rnn import RNN, RNNBody, RNNConfig
from allyouneed.nn.recurrent import CELLS
from allyouneed.predict.decoder import Decoder
from allyouneed.recipe import read_recipe
from allyouneed.run import load
from allyouneed.storage.checkpoints import Checkpoint
from allyouneed.storage.tensorfile import read_tensors
from allyouneed.tasks.base import Carry
from allyouneed.tasks.lm import LM
from allyouneed.training import trainer as trainer_module
from allyouneed.training.fit import fit
from allyouneed.training.starting import choose
from commands import ayn
from conftest import TINY_LM
from generation import beam_search, generate
from test_training import close, rows, same, torchrun

SMALL = [setting for setting in TINY_LM if "heads" not in setting]


def rnn(cell: str = "lstm", **values) -> RNN:
    torch.manual_seed(0)
    model = RNN(RNNConfig(**{"vocab": 37, "width": 24, "layers": 2, "cell": cell, "dropout": 0.0, **values}))
    for p in model.parameters():  # livelier than at the start of training, so that differences show
        torch.nn.init.normal_(p, std=0.4) if p.dim() > 1 else None
    return model.eval()


def ragged(count: int, seed: int = 0, most: int = 12) -> list[list[int]]:
    torch.manual_seed(seed)
    return [torch.randint(4, 37, (int(torch.randint(1, most, ())),)).tolist() for _ in range(count)]


@pytest.mark.parametrize("cell", CELLS)
def test_nothing_before_a_changed_future_token_moves(cell):
    model, ids = rnn(cell), torch.randint(0, 37, (3, 20))
    other = ids.clone()
    other[:, 11:] = (ids[:, 11:] + 5) % 37
    before, after = model(ids), model(other)
    assert torch.equal(before[:, :11], after[:, :11])
    assert not torch.allclose(before[:, 11:], after[:, 11:])


@pytest.mark.parametrize("cell", CELLS)
def test_step_by_step_equals_whole(cell):
    model, ids = rnn(cell), torch.randint(0, 37, (3, 15))
    whole = model(ids)
    logits, state = model.start(ids[:, :4].tolist(), room=1)
    torch.testing.assert_close(logits, whole[:, 3], atol=1e-5, rtol=0)
    for t in range(4, 15):
        torch.testing.assert_close(model.step(ids[:, t], state), whole[:, t], atol=1e-5, rtol=0)
    assert state.length.tolist() == [15] * 3


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_ragged_batch_gives_the_ids_of_single_prompts(cell, temperature):
    model, prompts = rnn(cell), ragged(9)

    def request(ids):
        return Request(ids, max_new=15, temperature=temperature, top_p=0.9, seed=5, stop={2})

    together = [row[1] for row in generate(model, map(request, prompts), rows=4)]
    assert together == [next(generate(model, [request(ids)], rows=1))[1] for ids in prompts]
    assert len({tuple(ids) for ids in together}) > 1


@pytest.mark.parametrize("cell", CELLS)
def test_greedy_is_argmax_over_the_whole_prefix_and_a_beam_of_one(cell):
    model, prompts = rnn(cell, tie=True), ragged(4, seed=3)
    ones = beam_search(model, prompts, beam=1, max_new=10, eos=2)
    for ids, one in zip(prompts, ones):
        fast = next(generate(model, [Request(ids, max_new=10, stop={2})], rows=1))[1]
        slow: list[int] = []
        for _ in range(10):
            token = int(model(torch.tensor([ids + slow]))[0, -1].argmax())
            if token == 2:
                break
            slow.append(token)
        assert fast == slow == one[0].tokens


def test_beams_of_a_ragged_batch_are_those_of_each_prompt_alone():
    model, prompts = rnn(), ragged(5, seed=2)
    how = {"beam": 4, "max_new": 8, "eos": 2, "n_best": 2}
    together = beam_search(model, prompts, **how)
    for ids, found in zip(prompts, together):
        alone = beam_search(model, [ids], **how)[0]
        assert [h.tokens for h in found] == [h.tokens for h in alone]
        whole = model(torch.tensor([ids + found[0].tokens]))[0].detach().log_softmax(-1)
        ends = [2] if found[0].finished else []
        written = [*found[0].tokens, *ends]
        logprob = sum(float(whole[len(ids) - 1 + i, token]) for i, token in enumerate(written))
        assert found[0].logprob == pytest.approx(logprob, abs=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_rows_join_and_leave_while_others_go_on(seed):
    chance, model, prompts = random.Random(seed), rnn("gru"), ragged(6, seed=seed)

    def request(i):
        return Request(prompts[i], 4 + 3 * i, temperature=0.7 * (i % 2), seed=i, stop={2})

    decoder, waiting, found, ids = Decoder(model, 2), list(range(6)), {}, {}
    while waiting or decoder.busy:
        if waiting and chance.random() < 0.4:
            i = waiting.pop(0)
            ids[decoder.add(request(i))] = i
        for event in decoder.tick():
            found.setdefault(event.id, []).append(event.token)
    for id, i in ids.items():
        assert [t for t in found[id] if t is not None] == next(generate(model, [request(i)], rows=1))[1]


def test_a_body_reads_both_ways_but_no_padding_and_is_that_of_a_language_model():
    config = RNNConfig(vocab=37, width=12, layers=2, bidirectional=True, embedding=7, dropout=0.0)
    body = RNNBody(config).eval()
    ids, lengths = torch.randint(4, 37, (3, 9)), torch.tensor([9, 2, 5])
    out = body.read({"ids": ids, "lengths": lengths})
    assert out.shape == (3, 9, body.width) == (3, 9, 24)
    other = ids.clone()
    other[1, 2:] = other[2, 5:] = 1
    assert torch.equal(body.read({"ids": other, "lengths": lengths}), out)
    later = ids.clone()
    later[:, 1] = (later[:, 1] + 1) % 37
    assert (body.read({"ids": later, "lengths": lengths})[:, 0] != out[:, 0]).any(dim=-1).all()
    forward = RNNConfig(vocab=37, width=12, layers=2)
    RNNBody(forward).load_state_dict(RNN(forward).body.state_dict())


def test_the_vectors_of_words_begin_small():
    """At a standard deviation of 1 a rare word stays what chance made of it: ten points less on SST-2."""
    assert 0.05 < RNN(RNNConfig(vocab=500, width=64)).body.embedding.weight.std() < 0.2
    tied = RNN(RNNConfig(vocab=500, width=64, tie=True)).head.out.weight.std()
    assert float(tied.detach()) == pytest.approx(1 / 8, rel=0.1)


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r"model.embedding = 8"):
        RNNConfig(tie=True, embedding=8)


def test_a_language_model_in_both_directions_is_refused_before_anything_is_written(story, tmp_path):
    done = ayn("train", "lm/rnn", "--data", story, "--out", tmp_path / "run", *SMALL, "model.bidirectional=true")
    assert done.code == 2
    assert "model.bidirectional = true" in done.err
    assert not list((tmp_path / "run").glob("*"))
    with pytest.raises(UserError, match="predict"):
        RNN(RNNConfig(vocab=9, bidirectional=True))


# Truncated backpropagation through time


@pytest.fixture(scope="module")
def task(story) -> LM:
    task = LM(choose("lm/lstm", [*SMALL, "model.context=8", "train.batch_tokens=32"], str(story)))
    task.prepare(lambda text: None)
    return task


def lively(task: LM) -> RNN:
    torch.manual_seed(0)
    model = task.build_model().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return model


def test_windows_with_a_carried_state_are_one_long_window(task):
    model, streams, carry = lively(task), task.examples("train"), Carry()
    batches = [streams.collate(numbers) for numbers in streams.plan(1, 0, 32)[:6]]
    with torch.no_grad():
        pieces = [float(task.losses(model, batch, None, carry)["tokens"]) for batch in batches]
        ids, targets = (torch.cat([b.tensors[name] for b in batches], dim=1) for name in ("ids", "targets"))
        assert ids.shape == (4, 48)
        assert sum(pieces) == pytest.approx(float(model.loss(ids, targets)), rel=1e-5)
        forgetful = sum(float(task.losses(model, batch)["tokens"]) for batch in batches)
    assert abs(forgetful - sum(pieces)) > 1


def test_a_new_epoch_begins_at_zero(task):
    model, streams, carry = lively(task), task.examples("train"), Carry()
    first = streams.collate(streams.plan(1, 0, 32)[0])
    with torch.no_grad():
        begun = float(task.losses(model, first, None, carry)["tokens"])
        assert float(task.losses(model, first, None, carry)["tokens"]) == begun
        first.tensors["fresh"][:] = False
        assert float(task.losses(model, first, None, carry)["tokens"]) != begun


def test_the_gradient_ends_at_the_border_of_the_window(task):
    model, streams, carry = lively(task), task.examples("train"), Carry()
    first, second = (streams.collate(numbers) for numbers in streams.plan(1, 0, 32)[:2])
    task.losses(model, first, None, carry)
    assert sorted(carry) == ["c", "h"]
    assert not any(t.requires_grad for t in carry.values())
    task.losses(model, second, None, carry)["tokens"].backward()
    read = model.body.embedding.weight.grad.abs().sum(1) > 0
    assert set(read.nonzero().flatten().tolist()) <= set(second.tensors["ids"].flatten().tolist())


def test_micro_batches_and_ranks_touch_their_own_lanes_only_and_never_in_place(task):
    model, streams = lively(task), task.examples("train")
    plan, whole, parts = streams.plan(1, 0, 32)[:4], Carry(), Carry()
    with torch.no_grad():
        for numbers in plan:
            together = float(task.losses(model, streams.collate(numbers), None, whole)["tokens"])
            before = {name: (t, t.clone()) for name, t in parts.items()}
            pieces = sum(
                float(task.losses(model, streams.collate(piece), None, parts)["tokens"])
                for piece in (numbers[1::2], numbers[::2])
            )
            assert pieces == pytest.approx(together, rel=1e-5)
            assert all(torch.equal(old, copy) for old, copy in before.values())
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], atol=1e-5, rtol=0)
    one = Carry()
    task.losses(model, streams.collate(plan[0][2:3]), None, one)
    assert one["h"].abs().sum((1, 2)).nonzero().flatten().tolist() == [2]


def test_a_model_without_a_state_carries_nothing(story):
    task = LM(choose("lm/gpt", TINY_LM, str(story)))
    task.prepare(lambda text: None)
    examples, carry = task.examples("train"), Carry()
    task.losses(task.build_model(), examples.collate(examples.plan(1, 0, 64)[0]), None, carry)
    assert not carry


def run(data, out, *more, recipe="lm/lstm", **options):
    fit(choose(recipe, [*SMALL, *more], str(data)), out, quiet=True, **options)
    return read_tensors(out / "model.safetensors")


def test_four_micro_batches_are_one_large_batch(story, tmp_path):
    how = ["model.dropout=0", "train.optimizer=sgd", "train.lr=0.5"]
    one = run(story, tmp_path / "one", *how)
    close(one, run(story, tmp_path / "four", *how, "train.accumulate=4"))
    assert rows(tmp_path / "one", "valid")[-1]["loss"] < rows(tmp_path / "one", "valid")[0]["loss"]


@pytest.mark.slow
def test_two_processes_give_one_processs_weights(story, tmp_path):
    how = ["model.dropout=0", "train.optimizer=sgd", "train.lr=0.5"]
    one = run(story, tmp_path / "one", *how)
    torchrun(2, "lm/lstm", "--data", story, "--out", tmp_path / "two", *SMALL, *how)
    close(one, read_tensors(tmp_path / "two" / "model.safetensors"))
    losses = [[row["loss"] for row in rows(tmp_path / name, "valid")] for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


@pytest.mark.parametrize("stop", [2, 7])
def test_interrupted_and_resumed_equals_never_interrupted_bit_for_bit(stop, story, tmp_path, monkeypatch):
    how = ["model.dropout=0.3", "train.accumulate=2"]
    whole = run(story, tmp_path / "whole", *how)
    step = trainer_module.Trainer._step

    def interrupted(self, work):
        step(self, work)
        if self.at.step == stop:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(trainer_module.Trainer, "_step", interrupted)
        with pytest.raises(trainer_module.Interrupted):
            run(story, tmp_path / "cut", *how)
    kept = read_tensors(tmp_path / "cut" / f"checkpoints/step-{stop:06d}/train.safetensors")
    assert kept["carry/0/h"].any()
    assert kept["carry/0/c"].any()
    assert same(whole, run(story, tmp_path / "cut", *how, resume=True))
    for file in ("model", "train"):
        last = f"checkpoints/step-000012/{file}.safetensors"
        assert (tmp_path / "whole" / last).read_bytes() == (tmp_path / "cut" / last).read_bytes()
    for kind in ("train", "valid"):
        values = [[(r["step"], r["loss"]) for r in rows(tmp_path / name, kind)] for name in ("whole", "cut")]
        assert values[0] == values[1]


def test_another_number_of_processes_begins_at_zero_and_says_so(story, tmp_path, monkeypatch):
    run(story, tmp_path / "run", "train.steps=4")
    train = Checkpoint.train
    said: list[str] = []
    for saved, expected in ((("0",), True), (("0", "1"), False)):

        def of_so_many(self, saved=saved):
            tensors = train(self)
            state = {name: t for name, t in tensors.items() if name.startswith("carry/0/")}
            return tensors | {name.replace("/0/", f"/{rank}/"): t for rank in saved for name, t in state.items()}

        begun: list[bool] = []
        resume = trainer_module.Trainer.resume

        def resumed(self, checkpoint, state, resume=resume, begun=begun):
            self.say = said.append
            resume(self, checkpoint, state)
            begun.append(bool(self.carry) and all(t.any() for t in self.carry.values()))

        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "train", of_so_many)
            patch.setattr(trainer_module.Trainer, "resume", resumed)
            run(story, tmp_path / "run", "train.steps=4", resume=True)
        assert begun == [expected]
        assert any("another number of processes" in line for line in said) != expected


def test_scores_carry_the_state_and_say_so(story, tmp_path):
    run(story, tmp_path / "run")
    loaded = load(tmp_path / "run")
    score = next(score for score in loaded.test("test") if score.name == "loss")
    assert "|window:16|stride:16|state:carried|lanes:" in score.signature
    lanes = int(score.signature.split("lanes:")[1].split("|")[0])
    tokens = torch.tensor(loaded.task.stream("test").tokens.astype("int64"))
    size = math.ceil(math.ceil((len(tokens) - 1) / 16) / lanes) * 16  # targets a lane
    total = 0.0
    for start in range(0, len(tokens) - 1, size):
        lane = tokens[start : start + size + 1]
        logits = loaded.model(lane[None, :-1])[0]
        total += torch.nn.functional.cross_entropy(logits, lane[1:], reduction="sum").item()
    assert score.value == pytest.approx(total / (len(tokens) - 1), rel=1e-5)


@pytest.mark.parametrize("recipe", ["lm/rnn", "lm/lstm"])
def test_a_run_answers_by_every_method(recipe, story, tmp_path):
    out = tmp_path / "run"
    assert ayn("train", recipe, "--data", story, "--out", out, *SMALL).code == 0
    run = load(out)
    texts = ["one", "two three four five six one", "six six"]
    for method in ("greedy", "sample", "beam"):
        found = run.predict(texts, method=method)
        assert found == [run.predict(text, method=method) for text in texts]
    assert len(run.table("one two")) == 7
    assert read_recipe(recipe).model.cell == recipe.split("/")[1]
