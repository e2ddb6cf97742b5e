"""Tasks: scores, answers, tables and alignments say what the model says."""

from __future__ import annotations

import math

import pytest
import torch

from allyouneed.run import Run, train
from allyouneed.tasks.answers import _Draft
from conftest import TINY_LM, TINY_TRANSLATE


@pytest.fixture(scope="module")
def translator(pairs, tmp_path_factory) -> Run:
    settings = [*TINY_TRANSLATE, "train.steps=150", "model.width=32", "train.lr=5e-3", "train.eval_every=150"]
    out = tmp_path_factory.mktemp("runs") / "run"
    return train("translate/transformer", *settings, data=str(pairs), out=out, quiet=True)


@pytest.fixture(scope="module")
def writer(story, tmp_path_factory) -> Run:
    settings = [*TINY_LM, "model.positions=rotary", "train.steps=60", "train.lr=5e-3", "train.eval_every=60"]
    return train("lm/gpt", *settings, data=str(story), out=tmp_path_factory.mktemp("runs") / "run", quiet=True)


def test_language_scores_are_those_of_the_whole_split(writer):
    scores = {score.name: score for score in writer.test("test")}
    tokens = torch.tensor(writer.task.stream("test").tokens.astype("int64"))
    total = 0.0
    for start in range(0, len(tokens) - 1, 16):
        window = tokens[start : start + 17]
        logp = writer.model(window[None, :-1])[0].log_softmax(-1)
        total -= logp[torch.arange(len(window) - 1), window[1:]].sum().item()
    text = "".join(writer.task.data.splits["test"])
    assert scores["perplexity"].value == pytest.approx(math.exp(total / (len(tokens) - 1)), rel=1e-4)
    assert scores["bits per byte"].value == pytest.approx(total / math.log(2) / len(text.encode()), rel=1e-4)
    assert "split:test" in scores["loss"].signature


def test_the_table_is_the_models_distribution(writer):
    rows = writer.table("one two")
    ids = writer.task.tokenizer.encode("one two")
    assert [row.token for row in rows] == list("one two")
    p = writer.model(torch.tensor([ids]))[0, -1].softmax(-1)
    likely = rows[-1].likely
    assert len(likely) == 5
    assert [round(q, 5) for _, q in likely] == [round(q, 5) for q in p.topk(5).values.tolist()]
    assert likely[0][0] == writer.task.tokenizer.token(int(p.argmax()))


def test_the_alignment_lies_along_the_winning_path(translator):
    """A model that translates word by word looks at the word it translates."""
    found = translator.align("one two three", method="beam", beam=3)
    assert found.source[:3] == ["one", "two", "three"]
    assert found.target == [*translator.predict("one two three", method="beam", beam=3).split(), "</s>"]
    assert found.weights.shape == (len(found.target), len(found.source))
    assert torch.allclose(found.weights.sum(-1), torch.ones(len(found.target)), atol=1e-5)
    assert found.weights.argmax(-1).tolist()[:3] == [0, 1, 2]


def test_several_texts_give_what_each_gives_alone(translator, writer):
    texts = ["one", "two three four five six one", "six six"]
    for method in ("greedy", "sample", "beam"):
        assert translator.predict(texts, method=method) == [translator.predict(t, method=method) for t in texts]
    for method in ("greedy", "sample"):
        assert writer.predict(texts, method=method) == [writer.predict(t, method=method) for t in texts]


def test_n_best_are_distinct_and_in_order(translator):
    answer = next(translator.answers(["one two"], method="beam", beam=4, n_best=3))
    scores = [answer.score, *(other.score for other in answer.others)]
    assert scores == sorted(scores, reverse=True)
    assert len({tuple(a.tokens) for a in (answer, *answer.others)}) == 3


def test_several_samples_of_a_text_are_those_of_the_next_seeds(writer):
    how = {"method": "sample", "max_new": 12, "batch": 2}
    for answer, text in zip(writer.answers(["one", "two"], n_best=9, seed=5, **how), ["one", "two"], strict=True):
        alone = [writer.predict(text, seed=5 + i, **how) for i in range(9)]
        assert [answer.text, *(other.text for other in answer.others)] == alone
        assert len(set(alone)) > 5


@pytest.mark.parametrize("method", ["greedy", "sample", "beam"])
def test_stop_strings_end_an_answer_and_are_not_in_it(writer, method):
    how = {"method": method, "max_new": 30, "top_k": 3}  # so that the end token is never drawn
    free = writer.predict("one", stop=(), **how)
    stop = free[7:9]
    cut = writer.predict("one", stop=(stop,), **how)
    assert len(free) >= 20
    assert cut == free[: free.index(stop)]


def test_shown_pieces_are_the_answer_and_hold_back_what_may_become_a_stop(writer):
    shown: list[str] = []
    how = {"method": "sample", "top_k": 3, "max_new": 30}
    free = writer.predict("one", stop=(), **how)
    stop = free[10:14]
    answer = next(writer.answers(["one"], show=shown.append, stop=(stop,), **how))
    assert "".join(shown) == answer.text == free[: free.index(stop)]
    assert len(shown) > 1
    shown.clear()
    answer = next(writer.answers(["one"], show=shown.append, method="sample", n_best=3, max_new=6))
    assert "".join(shown) == answer.text  # and not the others
    draft = _Draft(writer.task.tokenizer, ("abc",), shown.append)
    shown.clear()
    for piece in ("xa", "b", "a", "bc", "never"):
        if draft.add(piece):
            break
    assert "".join(shown) == draft.text == "xab"


@pytest.mark.parametrize("recipe", ["translate/transformer", "translate/conv"])
def test_an_answer_that_fills_the_learned_positions_can_be_looked_into(recipe, pairs, tmp_path):
    sizes = ["model.context=9", "model.width=16", "train.steps=2", "train.eval_every=2", "train.threads=1"]
    heads = ["model.heads=2", "model.hidden=16"] if recipe == "translate/transformer" else []
    run = train(recipe, "model.positions=learned", *sizes, *heads, data=str(pairs), out=tmp_path / "run", quiet=True)
    text = next(iter(run.task.data.splits["test"]))[0].split()[0]
    answer = next(run.answers([text], method="greedy"))
    assert (len(answer.tokens), answer.reason) == (9, "length")
    guesses = run.table(text, method="greedy")
    assert [guess.token for guess in guesses[1:]] == [run.task.tokenizer.token(t) for t in answer.tokens[:8]]
    alignment = run.align(text, method="greedy")
    assert len(alignment.target) == len(alignment.weights) == 9


def test_seeds_are_a_requests_own(writer):
    texts = ["one"] * 3
    first = writer.predict(texts, method="sample", seed=3, stop=())
    assert len(set(first)) == 1
    assert writer.predict("one", method="sample", seed=3, stop=()) == first[0]
    assert len({writer.predict("one", method="sample", seed=s, max_new=12, stop=()) for s in range(5)}) > 1


def test_separate_vocabularies(pairs, tmp_path):
    settings = [*TINY_TRANSLATE, "text.joint=false", "model.share=false", "train.steps=3"]
    run = train("translate/transformer", *settings, data=str(pairs), out=tmp_path / "run", quiet=True)
    assert run.model.config.vocab == len(run.task.reader)
    assert (tmp_path / "run" / "tokenizer.target.json").exists()
    assert run.task.reader.unknown(" uno") == [" uno"]
    assert not run.task.tokenizer.unknown(" uno")
    run.predict("one two")
