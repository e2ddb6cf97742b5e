"""Tasks: scores, answers, tables and alignments say what the model says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from allyouneed.data.vectors import Vectors, write_vectors
from allyouneed.decode import Request
from allyouneed.errors import UserError
from allyouneed.predict.answers import Draft
from allyouneed.predict.writer import Session
from allyouneed.run import Run, train
from conftest import RUNTIME, TINY_LM, TINY_TRANSLATE
from generation import generate


@pytest.fixture(scope="module")
def translator(pairs, tmp_path_factory) -> Run:
    settings = [*TINY_TRANSLATE, "train.steps=150", "model.width=32", "train.lr=5e-3", "train.eval_every=150"]
    settings += ["data.valid_part=0.1", "data.test_part=0.1"]
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


def test_the_attention_of_every_head_by_its_place(translator, writer):
    found = translator.attention("one two three", method="greedy")
    (crossed,) = (name for name in found if name.endswith("cross"))
    aligned = translator.align("one two three", method="greedy")
    assert (found[crossed].source, found[crossed].target) == (aligned.source, aligned.target)
    torch.testing.assert_close(found[crossed].weights.mean(0), aligned.weights)  # one layer: the mean of its heads
    read = found["body.encoder.blocks.0.attention"]
    assert read.source == read.target == aligned.source
    written = found["body.decoder.blocks.0.attention"]
    assert written.source == written.target == ["<s>", *aligned.target[:-1]]
    (past,) = writer.attention("one two three").values()
    assert (
        past.source
        == past.target
        == [writer.task.tokenizer.token(id) for id in writer.task.tokenizer.encode("one two three")]
    )
    assert past.weights.triu(1).abs().max() == 0
    torch.testing.assert_close(past.weights.sum(-1), torch.ones_like(past.weights[..., 0]))


def test_several_texts_give_what_each_gives_alone(translator, writer):
    texts = ["one", "two three four five six one", "six six"]
    for method in ("greedy", "sample", "beam"):
        assert translator.predict(texts, method=method) == [translator.predict(t, method=method) for t in texts]
    for method in ("greedy", "sample"):
        assert writer.predict(texts, method=method) == [writer.predict(t, method=method) for t in texts]


@pytest.mark.parametrize("setting", [{"temperature": 0.3}, {"top_k": 2}, {"top_p": 0.2}])
def test_a_sample_is_drawn_as_its_settings_say(writer, setting):
    ids, tokenizer = writer.task.tokenizer.encode("one"), writer.task.tokenizer
    plain = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    wishes = [Request(ids, 20, **{**plain, **setting}, seed=seed, stop={tokenizer.eos}) for seed in range(5)]
    expected = [tokens for _, tokens, *_ in generate(writer.model, wishes, 5)]

    def drawn(**how: float) -> list[list[int]]:
        seeds = [writer.answers(["one"], method="sample", max_new=20, seed=seed, **how)[0] for seed in range(5)]
        return [answer.tokens for answer in seeds]

    assert drawn(**{**plain, **setting}) == expected
    assert drawn(**plain) != expected


@pytest.mark.parametrize("setting", [{"alpha": 0.0}, {"alpha": 2.5}, {"length_penalty": "power", "alpha": 2.5}])
def test_a_beam_is_scored_as_its_settings_say(translator, setting):
    answer = translator.answers(["one two three"], method="beam", beam=3, **setting)[0]
    n, alpha = len(answer.tokens) + 1, setting["alpha"]  # with the end
    divisor = n**alpha if "length_penalty" in setting else ((5 + n) / 6) ** alpha
    assert answer.reason == "stop"
    assert answer.score == pytest.approx(answer.logprob / divisor, rel=1e-4)


@pytest.mark.parametrize("method", ["greedy", "sample", "beam"])
def test_max_new_ends_an_answer_and_says_so(translator, method):
    answer = translator.answers(["one two three"], method=method, max_new=2)[0]
    assert (len(answer.tokens), answer.reason) == (2, "length")
    assert translator.answers(["one two three"])[0].reason == "stop"


def test_smoothing_is_for_learning_alone(writer, translator):
    for run in (writer, translator):
        recipe = run.recipe.with_(task=replace(run.recipe.task, smoothing=0.5))
        smooth = run.task.on(recipe)
        examples = run.task.examples("valid")
        batch = examples.collate(examples.cover(256)[0])
        assert torch.equal(smooth.losses(run.model, batch)["tokens"], run.task.losses(run.model, batch)["tokens"])
        run.model.train()
        try:
            assert smooth.losses(run.model, batch)["tokens"] > 1.2 * run.task.losses(run.model, batch)["tokens"]
        finally:
            run.model.eval()


def test_a_token_starts_from_the_vector_of_its_own_spelling(story, tmp_path):
    (tmp_path / "story.txt").write_text(story.read_text().replace("two", "One"))
    matrix = torch.randn(3, 16).numpy()
    write_vectors(tmp_path / "vectors.txt", Vectors(["one", "One", "three"], matrix))
    settings = [*TINY_LM, "text.kind=word", "train.lr=0", f"text.vectors={tmp_path / 'vectors.txt'}"]
    run = train("lm/gpt", *settings, data=tmp_path / "story.txt", out=tmp_path / "run", quiet=True)
    for row, word in enumerate(["one", "One", "three"]):
        id = next(i for i in range(len(run.task.tokenizer)) if run.task.tokenizer.token(i).strip() == word)
        torch.testing.assert_close(run.model.body.embedding.tokens.weight[id], torch.tensor(matrix[row]))


def test_n_best_are_distinct_and_in_order(translator):
    answer = translator.answers(["one two"], method="beam", beam=4, n_best=3)[0]
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
    answer = writer.answers(["one"], show=shown.append, stop=(stop,), **how)[0]
    assert "".join(shown) == answer.text == free[: free.index(stop)]
    assert len(shown) > 1
    shown.clear()
    answer = writer.answers(["one"], show=shown.append, method="sample", n_best=3, max_new=6)[0]
    assert "".join(shown) == answer.text  # and not the others
    draft = Draft(writer.task.tokenizer, ("abc",), shown.append)
    shown.clear()
    for piece in ("xa", "b", "a", "bc", "never"):
        if draft.add(piece):
            break
    assert "".join(shown) == draft.text == "xab"


def test_prompts_of_similar_length_start_together_but_the_first_one_if_it_is_shown(writer, monkeypatch):
    texts, sizes, add = ["one two three one two", "one", "one two three", "two"] * 9, [], Session.add

    def seen(session, request):
        sizes.append(len(request.input))
        return add(session, request)

    monkeypatch.setattr(Session, "add", seen)
    how = {"method": "sample", "seed": 3, "max_new": 9, "batch": 3, "stop": ()}
    alone = [writer.predict(text, **how) for text in texts[:4]]
    first = sizes.copy()
    sizes.clear()
    assert writer.predict(texts, **how) == alone * 9
    assert sizes[:12] == sorted(first * 3, reverse=True)  # the longest first
    sizes.clear()
    answers = writer.answers(texts[:4], show=[].append, **how)
    assert [answer.text for answer in answers] == alone
    assert sizes == first


@pytest.mark.parametrize("recipe", ["translate/transformer", "translate/conv"])
def test_an_answer_that_fills_the_learned_positions_can_be_looked_into(recipe, pairs, tmp_path):
    sizes = ["model.context=9", "model.width=16", "train.steps=2", "train.eval_every=2", "train.threads=1"]
    heads = ["model.heads=2", "model.hidden=16"] if recipe == "translate/transformer" else []
    run = train(recipe, "model.positions=learned", *sizes, *heads, data=str(pairs), out=tmp_path / "run", quiet=True)
    text = next(iter(run.task.data.splits["test"])).source.split()[0]
    end = run.task.tokenizer.eos
    run.model.head.register_forward_hook(lambda _, __, logits: logits.index_fill(-1, torch.tensor(end), -1e9))
    answer = run.answers([text], method="greedy")[0]
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


def test_answers_are_a_list_to_one_text_or_to_several(translator):
    found = translator.answers(["one two", "three"])
    assert isinstance(found, list)
    assert [answer.text for answer in found] == translator.predict(["one two", "three"])
    assert [answer.tokens for answer in translator.answers("one two")] == [found[0].tokens]
    assert repr(found).startswith("[Answer(text=")
    with pytest.raises(UserError, match="give a sentence, or several in a list; not int"):
        translator.answers(3)
    streamed = translator.answer_lines(text for text in ("one two", "three"))
    assert next(streamed).answer.text == found[0].text


def test_a_training_starts_from_a_run_by_its_keyword(story, tmp_path):
    first = train("lm/gpt", *TINY_LM, data=story, out=tmp_path / "first", quiet=True)
    second = train("lm/gpt", "train.steps=1", *RUNTIME, data=story, init=tmp_path / "first", out=tmp_path / "second")
    assert second.recipe.train.init == str(tmp_path / "first")
    assert second.recipe.model.width == first.recipe.model.width
