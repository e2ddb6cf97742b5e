"""embed: vectors of texts and words from any run that reads, and runs that learn them from pairs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from allyouneed.data.batches.pairs import GroupedPairs
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.metrics import find_nearest, retrieval_scores, unit
from allyouneed.models.bert import Bert
from allyouneed.models.embedder import Embedder
from allyouneed.models.gpt import GPTBody, GPTConfig
from allyouneed.models.rnn import RNNBody, RNNConfig
from allyouneed.nn.heads import POOLS, pool
from allyouneed.nn.trace import Trace
from allyouneed.predict.embed import choose_layers
from allyouneed.run import Run, load, train
from allyouneed.text.layout import Layout
from allyouneed.training.distributed import Ranks
from allyouneed.training.feed import Feed
from commands import ayn, mistake
from conftest import RUNTIME, TINY_LM
from test_bert import SMALL, batch, theirs
from test_rules import followed

STEPS = ["train.epochs=0", "train.steps=5", "train.eval_every=5", "train.warmup=1", "train.batch_tokens=256"]
BERT = [*RUNTIME, *STEPS, "model.width=16", "model.heads=2", "model.layers=2", "model.hidden=32"]
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
TEXTS = ["one two three.", "six", "four four five six one two", "two, one", "well-known 3.5 six's"]


@pytest.fixture(scope="module")
def trained(pairs, story, tmp_path_factory) -> dict[str, Path]:
    """A small run of each kind that reads."""
    home = tmp_path_factory.mktemp("embed")
    labels, tags = home / "labels.tsv", home / "tags.conll"
    rows = [line.split("\t")[0].split() for line in pairs.read_text().splitlines()[:60]]
    labels.write_text("".join(f"{' '.join(row)}\t{'odd' if len(row) % 2 else 'even'}\n" for row in rows))
    tags.write_text("\n".join("".join(f"{w}\t{'B-six' if w == 'six' else 'O'}\n" for w in [*row, "."]) for row in rows))
    recurrent = [*RUNTIME, *STEPS, "model.width=16"]
    wanted = {
        "embed": ("embed/bert", pairs, [*BERT, "task.group=4"]),
        "pretrain": ("pretrain/bert", story, [*BERT, "model.context=32", "data.max_length=24"]),
        "gpt": ("lm/gpt", story, [*TINY_LM, "model.layers=2", "model.context=64"]),
        "classify": ("classify/rnn", labels, [*recurrent, "model.layers=2"]),
        "tag": ("tag/lstm", tags, [*recurrent, "model.bidirectional=true"]),
        "conv": ("lm/conv", story, [*recurrent, "model.context=16", "model.layers=2"]),
        "elmo": ("lm/elmo", story, [*recurrent, "model.context=16", "model.filters=2", "model.layers=2"]),
    }
    for name, (recipe, data, more) in wanted.items():
        train(recipe, *more, data=data, out=home / name, quiet=True)
    return {name: home / name for name in wanted}


KINDS = ("embed", "pretrain", "gpt", "classify", "tag", "conv", "elmo")


@pytest.fixture
def run(request, trained) -> Run:
    return load(trained[request.param])


each_run = pytest.mark.parametrize("run", KINDS, indirect=True)


@torch.inference_mode()
def test_the_layers_are_those_of_transformers():
    torch.manual_seed(3)
    ours = Bert(SMALL).eval()
    for p in ours.parameters():
        p.data.add_(0.1 * torch.randn_like(p))
    tensors, trace = batch(), Trace("embeddings", "layers")
    real = torch.arange(12) < tensors["lengths"][:, None]
    segments, mask = tensors["segments"], real.long()
    output = theirs(ours)(tensors["ids"], mask, segments, output_hidden_states=True)
    layers = ours.body.layers(trace, ours.body.read(tensors, trace))
    assert len(layers) == len(output.hidden_states) == 3
    for mine, right in zip(layers, output.hidden_states):
        torch.testing.assert_close(mine[real], right[real], **CLOSE)


@pytest.mark.slow
@each_run
@torch.inference_mode()
def test_a_trace_has_the_embeddings_each_layer_and_the_output(run):
    made = run.embedding(words=True)
    tensors, trace = made.tensors([made.row(text) for text in TEXTS]), Trace("embeddings", "layers")
    hidden = run.model.body.read(tensors, trace)
    layers = run.model.body.layers(trace, hidden)
    assert len(layers) == len(run.model.body.stages())
    torch.testing.assert_close(layers[-1], hidden)
    torch.testing.assert_close(run.model.body.read(tensors), hidden)  # and nothing changes
    for below, above in pairwise(layers):
        assert below.shape != above.shape or not torch.allclose(below, above)


def test_one_token_has_its_layers_too():
    body, trace = RNNBody(RNNConfig(vocab=9, width=8, layers=2)).eval(), Trace("embeddings", "layers")
    hidden = body.read({"ids": torch.tensor([[3]]), "lengths": torch.tensor([1])}, trace)
    assert [layer.shape for layer in body.layers(trace, hidden)] == [(1, 1, 8)] * 3
    torch.testing.assert_close(trace["recurrent.layers.1.layers"], hidden)


@each_run
@pytest.mark.parametrize("pooling", POOLS)
def test_many_texts_are_as_one_by_one(run, pooling):
    texts = TEXTS * 3
    for layers in ("last", "1"):
        together = run.embed(texts, layers=layers, pool=pooling)
        assert together.shape == (len(texts), together.shape[1])
        assert together.dtype == np.float32
        alone = [run.embed(text, layers=layers, pool=pooling) for text in texts]
        np.testing.assert_allclose(together, alone, **CLOSE)
    assert not np.allclose(together[0], together[1], atol=1e-4)


@each_run
def test_a_word_is_the_mean_of_its_tokens(run):
    text = "Mr. well-known left"
    words, vectors = run.embed(text, words=True)
    places = run.predictor.word_spans(text)
    assert words == [text[start:end] for start, end in places]
    assert len(vectors) == len(words)
    if run.task.kind.BodyClass.spelled:
        return
    tokens, (before, _) = run.predictor.tokenize_words(text, places), run.embedding().around
    laid = run.embedding().layout.lay(tokens.ids)
    ids = torch.tensor([laid.ids])
    with torch.inference_mode():
        hidden = run.model.body.read({"ids": ids, "lengths": torch.tensor([ids.size(1)])})[0]
    for number, vector in enumerate(vectors):
        at = [before + i for i, word in enumerate(tokens.words) if word == number]
        np.testing.assert_allclose(vector, hidden[at].mean(0).numpy(), **CLOSE)
    several = run.embed([text, "six", text], words=True)
    np.testing.assert_allclose(several[2].vectors, vectors, **CLOSE)


def test_pooling_leaves_out_padding_and_special_tokens():
    hidden, lengths = torch.randn(2, 6, 4), torch.tensor([6, 4])
    for row, length in enumerate(lengths.tolist()):
        own = hidden[row, 1 : length - 2]
        torch.testing.assert_close(pool(hidden, lengths, "mean", (1, 2))[row], own.mean(0))
        torch.testing.assert_close(pool(hidden, lengths, "max", (1, 2))[row], own.amax(0))
        assert torch.equal(pool(hidden, lengths, "first", (1, 2))[row], hidden[row, 0])
        assert torch.equal(pool(hidden, lengths, "last", (1, 2))[row], hidden[row, length - 1])


@pytest.mark.parametrize("run", ["embed"], indirect=True)
def test_several_layers_are_their_mean(run):
    each = [run.embed(TEXTS, layers=number) for number in range(3)]
    np.testing.assert_allclose(run.embed(TEXTS, layers="mix"), np.mean(each, axis=0), **CLOSE)
    np.testing.assert_allclose(run.embed(TEXTS, layers="0, 2"), (each[0] + each[2]) / 2, **CLOSE)
    np.testing.assert_allclose(run.embed(TEXTS, layers=[0, 2]), (each[0] + each[2]) / 2, **CLOSE)
    np.testing.assert_allclose(run.embed(TEXTS), each[2], **CLOSE)
    assert not np.allclose(each[1], each[2])


@pytest.mark.parametrize("given", ["3", "-1", "", "first", "1,", "0,9", "²", "9" * 5000, "1.5"])
def test_layers_that_are_not_there(given):
    with pytest.raises(UserError, match=r"layers 0 \(the embeddings\) to 2") as told:
        choose_layers(given, 2)
    assert len(str(told.value)) < 300


@pytest.mark.parametrize("run", ["tag"], indirect=True)
def test_layers_of_different_widths_have_no_mean(run):
    assert run.embed("six", layers="0").shape != run.embed("six", layers="1").shape
    with pytest.raises(UserError, match="layers of different widths have no mean"):
        run.embed("six", layers="mix")


def test_a_tagger_reads_a_text_as_it_tags_it(trained):
    run = load(trained["tag"])
    row = run.embedding(words=True).row("one two.")
    assert row.ids == run.predictor.read("one two.", run.decode()).tokens[0] == run.task.tokenizer.encode(" one two .")
    assert run.task.tokenizer.unk not in row.ids
    assert row.names == ["one", "two", "."]


def test_the_words_of_a_tagger_may_be_given_one_by_one(trained):
    run = load(trained["tag"])
    (found,) = run.embed([["Mr.", "six left"]], words=True)
    assert found.words == ["Mr.", "six\N{NO-BREAK SPACE}left"]
    with pytest.raises(UserError, match="reads a text as one string"):
        load(trained["gpt"]).embed([["one", "two"]])


rows = st.lists(st.tuples(*[st.lists(st.integers(4, 9), min_size=1, max_size=12)] * 2), min_size=2, max_size=50)


def grouped(rows: list[tuple[list[int], list[int]]], group: int = 4, longest: int = 10) -> GroupedPairs:
    sources, targets = (Ragged.of(side) for side in zip(*rows))
    return GroupedPairs(sources, targets, Layout((1,), (2,), (2,)), longest, group)


@settings(max_examples=60, deadline=None)
@given(rows=rows, group=st.integers(2, 9), budget=st.integers(1, 400), seed=st.integers(0, 5))
def test_every_pair_is_in_one_group_and_the_plan_is_a_function(rows, group, budget, seed):
    examples = grouped(rows, group)
    for plan in (examples.plan(seed, 3, budget), examples.cover(budget)):
        assert sorted(np.concatenate([numbers.ravel() for numbers in plan]).tolist()) == list(range(len(rows)))
        sizes = {numbers.shape[1] for numbers in plan}
        assert max(sizes) <= group
        assert max(sizes) - min(sizes) <= 1
        for numbers in plan:
            tokens = examples.collate(numbers).tensors
            assert len(numbers) == 1 or tokens["source"].numel() + tokens["target"].numel() <= 2 * budget
    again = grouped(rows, group).plan(seed, 3, budget)
    assert [numbers.tolist() for numbers in again] == [numbers.tolist() for numbers in examples.plan(seed, 3, budget)]


def test_groups_change_from_epoch_to_epoch():
    examples = grouped([([4 + i % 6] * (1 + i % 5), [4]) for i in range(40)])
    plans = [{frozenset(row.tolist()) for n in examples.plan(1, epoch, 100) for row in n} for epoch in range(2)]
    assert plans[0] != plans[1]


def test_a_batch_has_the_texts_and_knows_which_pairs_are_no_wrong_answers():
    examples = grouped([([4, 5], [6]), ([7], [6]), ([4, 5], [8, 8]), ([9], [9] * 20)])
    made = examples.collate(np.array([[3, 2, 1, 0]]))
    t = made.tensors
    assert made.size.counts == {"pairs": 4}
    assert t["source"][0].tolist() == [[1, 9, 2, 0], [1, 4, 5, 2], [1, 7, 2, 0], [1, 4, 5, 2]]
    assert t["lengths"].tolist() == [[3, 4, 3, 4]]
    assert t["target"][0, 0].tolist() == [1, *[9] * 8, 2]  # cut
    assert t["target_lengths"].tolist() == [[10, 4, 3, 3]]
    assert t["same"][0].nonzero().tolist() == [[1, 3], [2, 3], [3, 1], [3, 2]]


def embedder() -> Embedder:
    torch.manual_seed(1)
    return Embedder(GPTBody(GPTConfig(vocab=12, width=8, heads=2, layers=1, context=16, dropout=0.0)), "mean", (1, 1))


PAIRS = [([4 + i % 6, 4 + i % 5, 4 + i % 7 % 6], [4 + i % 6] * (1 + i % 3)) for i in range(29)]


@torch.no_grad()
def test_the_loss_is_the_cross_entropy_of_cosines_both_ways():
    model, tensors = embedder(), grouped(PAIRS).collate(np.array([[0, 1, 2], [7, 3, 8]])).tensors
    total = 0.0
    for g in range(2):
        sides = []
        for ids, lengths in ((tensors["source"], tensors["lengths"]), (tensors["target"], tensors["target_lengths"])):
            vectors = [model({"ids": ids[g, i : i + 1], "lengths": lengths[g, i : i + 1]})[0] for i in range(3)]
            sides.append([v / v.norm() for v in vectors])
        for i in range(3):
            for one, other in (sides, sides[::-1]):
                scores = [float(one[i] @ v) / 0.1 if i == j or not tensors["same"][g, i, j] else -np.inf
                          for j, v in enumerate(other)]  # fmt: skip
                total -= 0.5 * (scores[i] - np.log(np.exp(scores).sum()))
    assert float(model.loss(tensors, 0.1)) == pytest.approx(total, rel=1e-4)


@torch.no_grad()
def test_pairs_with_the_same_text_are_no_wrong_answers():
    model = embedder()
    same = grouped([([4, 5], [6]), ([7, 8], [6])]).collate(np.array([[0, 1]]))
    assert float(model.loss(same.tensors, 0.05)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize("world", [1, 2])
def test_micro_batches_and_processes_give_the_gradient_of_the_whole_batch(pieces, world, monkeypatch):
    examples = grouped(PAIRS)
    numbers = max(examples.plan(1, 0, 200), key=len)
    assert len(numbers) > 3

    def gradient(pieces: int, world: int) -> torch.Tensor:
        model = embedder()
        for rank in range(world):
            ranks = Ranks()
            monkeypatch.setattr(ranks, "rank", rank)
            monkeypatch.setattr(ranks, "world", world)
            step = Feed(examples, ranks, torch.device("cpu"), seed=1, batch_tokens=200).step(
                0, 0, False, numbers, pieces
            )
            assert step.size.counts == {"pairs": numbers.size}
            for piece in step.pieces:
                (model.loss(piece.tensors, 0.05) / step.size.counts["pairs"]).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    torch.testing.assert_close(gradient(pieces, world), gradient(1, 1), atol=1e-6, rtol=1e-4)


def test_ranks_count_ties_against_the_right_text():
    texts = unit(np.array([[1.0, 0], [0, 1], [1, 1], [0, 1]], dtype=np.float32))
    nearest, ranks = find_nearest(texts[:3], texts, [[0], [1], [1, 3]])
    assert nearest.tolist() == [0, 1, 2]
    assert ranks.tolist() == [1, 2, 3]
    top, mrr = retrieval_scores(ranks, 4, "|split:test")
    assert (top.value, mrr.value) == (pytest.approx(100 / 3), pytest.approx(100 * (1 + 1 / 2 + 1 / 3) / 3))
    assert "among:4|split:test|n:3" in top.signature
    alike = np.ones((50, 3), dtype=np.float32)
    assert retrieval_scores(find_nearest(alike, alike, [[i] for i in range(50)])[1], 50)[0].value == 0


@pytest.mark.parametrize("run", ["embed"], indirect=True)
def test_scores_are_those_of_the_vectors_and_the_predictions_are_written(run, tmp_path):
    scores = run.test(say=lambda line: None, out=tmp_path / "out.jsonl")
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    pairs = list(run.task.data.splits["test"])
    assert [(row["source"], row["reference"]) for row in found] == pairs
    targets = list(dict.fromkeys(pair.target for pair in pairs))
    cosines = unit(run.embed([pair.source for pair in pairs])) @ unit(run.embed(targets)).T
    assert [row["prediction"] for row in found] == [targets[i] for i in cosines.argmax(1)]
    top = np.mean([row["prediction"] == row["reference"] for row in found])
    assert [score.name for score in scores] == ["top-1", "MRR"]
    assert scores[0].value == pytest.approx(100 * top)
    assert f"among:{len(targets)}" in scores[0].signature
    assert scores[1].value == pytest.approx(100 * np.mean([1 / row["rank"] for row in found]))


def test_a_part_of_the_sources_is_scored_among_all_targets(trained, pairs, tmp_path):
    given = [*BERT, "task.group=4", "train.test_limit=7", "--init", trained["embed"]]
    done = ayn("train", "embed/bert", "--data", pairs, "--out", tmp_path / "run", *given)
    assert done.code == 0, done.err
    whole = load(trained["embed"]).scores()["test"][0].signature.partition("among:")[2].partition("|")[0]
    (top, _) = load(tmp_path / "run").scores()["test"]
    assert f"among:{whole}|" in top.signature
    assert "|n:7|ci95:exact|examples:7 of " in top.signature


def vector(done: object) -> np.ndarray:
    assert done.code == 0, done.err
    return np.array(json.loads(done.out)["vector"])


@each_run
def test_the_command_gives_the_vector_of_a_text(run):
    path = run.folder.path
    np.testing.assert_allclose(
        vector(ayn("use", path, "one two", "--embed", "--json")), run.embed("one two"), atol=1e-5
    )
    given = ("--layers", "1", "--pool", "max")
    right = run.embed("one two", layers="1", pool="max")
    np.testing.assert_allclose(vector(ayn("use", path, "one two", "--embed", "--json", *given)), right, atol=1e-5)
    shown = ayn("use", path, "one two", "--embed").out
    assert shown.startswith(f"{run.embed('one two')[0]:.4f} ")
    assert shown.endswith(f"({len(right)} numbers)\n") or run.embed("one two").shape != right.shape
    half = ayn("use", path, "one two", "--embed", "--json", "--precision", "bf16")
    np.testing.assert_allclose(vector(half), run.embed("one two"), atol=0.1)


@pytest.mark.parametrize("run", ["embed", "pretrain"], indirect=True)
def test_the_command_gives_words_and_cosines(run):
    path, more = run.folder.path, [] if run.recipe.task_kind == "embed" else ["--embed"]
    (line,) = ayn("use", path, "one two.", *more, "--words", "--json").out.splitlines()
    assert [row["word"] for row in json.loads(line)["words"]] == ["one", "two", "."]
    assert ayn("use", path, "one two.", *more, "--words").out.count("numbers") == 3
    a, b = unit(run.embed(["one two", "six"]))
    for text in ("one two ||| six", "one two\tsix"):
        found = json.loads(ayn("use", path, text, *more, "--json").out)
        assert found == {"input": text, "cosine": pytest.approx(float(a @ b), abs=1e-5)}
        assert ayn("use", path, text, *more).out == f"cosine {float(a @ b):.4f}\n"
    assert "two are given" in mistake("use", path, "one ||| two", *more, "--words")


@pytest.mark.parametrize("run", ["embed", "gpt"], indirect=True)
def test_the_command_finds_the_nearest_lines(run, tmp_path):
    lines = ["six", "", "one two", "  two one  ", "four five", "one", "three", "two"]
    (tmp_path / "lines.txt").write_text("\r\n".join(lines))
    given = (run.folder.path, "one two", "--embed", "--nearest", tmp_path / "lines.txt")
    found = json.loads(ayn("use", *given, "--json").out)
    assert found["input"] == "one two"
    assert found["nearest"][0] == {"line": 3, "text": "one two", "cosine": pytest.approx(1.0, abs=1e-5)}
    assert [row["cosine"] for row in found["nearest"]] == sorted((r["cosine"] for r in found["nearest"]), reverse=True)
    assert len(found["nearest"]) == 5
    assert all(lines[row["line"] - 1].strip() == row["text"] for row in found["nearest"])
    shown = ayn("use", *given, "--set", "n_best=2").out.splitlines()
    assert shown[0] == " 1.0000  one two"
    assert len(shown) == 2
    right = [(row["line"], row["text"]) for row in found["nearest"]]
    assert [(one.line, one.text) for one in run.nearest("one two", lines)] == right


def fed(monkeypatch: pytest.MonkeyPatch, path: Path, data: bytes) -> None:
    path.write_bytes(data)
    monkeypatch.setattr("sys.stdin", path.open())


@pytest.mark.parametrize("run", ["embed", "pretrain"], indirect=True)
def test_every_line_of_standard_input_has_its_answer(run, tmp_path, monkeypatch):
    more = ["--embed"]
    long = " ".join(["one"] * 3000)
    data = f"one two\n\nsix ||| one\n{long}\ntwo\n".encode()
    fed(monkeypatch, tmp_path / "in", data)
    done = ayn("use", run.folder.path, *more, "--json")
    assert done.code == 2
    assert done.err.startswith("ayn: line 4: the text has 3002 tokens, but this model reads at most")
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [sorted(row) for row in found] == [
        *(["input", "vector"], ["error", "input"], ["cosine", "input"], ["error", "input"], ["input", "vector"])
    ]
    np.testing.assert_allclose(found[4]["vector"], run.embed("two"), atol=1e-5)
    (tmp_path / "lines").write_text("six\ntwo\n")
    fed(monkeypatch, tmp_path / "in", b"two\n\nsix\n")
    assert ayn("use", run.folder.path, *more, "--nearest", tmp_path / "lines").out == " 1.0000  two\n\n 1.0000  six\n"


def test_what_cannot_be_embedded_is_said(trained, translator, tmp_path, story):
    run, lines = trained["embed"], tmp_path / "lines.txt"
    lines.write_text("one\ntwo\n")
    assert "'translate' has no vectors of texts: it translates" in mistake("use", translator, "one", "--embed")
    settings = [*RUNTIME, "model.width=8", "train.epochs=1", "train.batch_tokens=1000"]
    train("wordvectors/cbow", *settings, data=story, out=tmp_path / "words", quiet=True)
    assert "it has one vector per word" in mistake("use", tmp_path / "words", "one", "--embed")
    assert "give it together with --embed" in mistake("use", trained["gpt"], "one", "--layers", "0")
    assert "the text is empty" in mistake("use", run, " ", "--embed")
    assert "the text is empty" in mistake("use", run, "one |||")
    assert "has 3002 tokens, but this model reads at most 64" in mistake("use", run, "one " * 3000)
    assert "--embed and --table ask for different things: give one of them" in mistake(
        "use", run, "one", "--embed", "--table"
    )
    assert "give one of them" in mistake("use", run, "one", "--words", "--nearest", lines)
    assert "there is no pooling 'middle'" in mistake("use", run, "one", "--pool", "middle")
    assert "layers 0 (the embeddings) to 2" in mistake("use", run, "one", "--layers", "3")
    assert "--set beam has no effect" in mistake("use", run, "one", "--embed", "--set", "beam=2")
    assert "n_best = 0" in mistake("use", run, "one", "--nearest", lines, "--set", "n_best=0")
    assert "no words that this model knows" in mistake("use", run, "\u200b", "--embed")


def test_a_file_that_cannot_be_searched_is_said(trained, tmp_path, monkeypatch):
    def said(data: bytes | None, name: str = "lines.txt") -> str:
        if data is not None:
            (tmp_path / name).write_bytes(data)
        return mistake("use", trained["embed"], "one", "--nearest", tmp_path / name)

    assert "does not exist" in said(None, "nowhere.txt")
    assert "is not a plain file" in said(None, "")
    assert "has no lines with text" in said(b"")
    assert "has no lines with text" in said(b" \n\n\t\n")
    assert "binary file" in said(b"one\0two\n")
    assert "not UTF-8" in said("è уно".encode("koi8-r", "replace"))
    latin = tmp_path / "latin.txt"
    latin.write_bytes("la città è qui\none two\n".encode("latin-1"))
    done = ayn("use", trained["embed"], "one", "--nearest", latin)
    assert done.err.splitlines()[0] == "latin.txt is read as Latin-1, as it is not UTF-8"
    assert "there are no lines to search" in said("\u200b\n".encode())
    monkeypatch.setattr("allyouneed.cli.use.MOST_LINES", 3)
    assert "too much to search" in said(b"one\n" * 4)


def test_long_lines_of_a_file_are_cut_and_counted(trained, tmp_path):
    (tmp_path / "lines.txt").write_text("one\n" + "two " * 500 + "\n")
    done = ayn("use", trained["embed"], "two two", "--nearest", tmp_path / "lines.txt", "--json")
    assert done.code == 0
    assert done.err.startswith("1 of 2 lines are longer than the 64 tokens that this model reads")
    run = load(trained["embed"])
    found = {row["line"]: row["cosine"] for row in json.loads(done.out)["nearest"]}
    a, b = unit(run.embed(["two two", "two " * 62]))
    assert found[2] == pytest.approx(float(a @ b), abs=1e-5)


@pytest.mark.parametrize("run", ["embed"], indirect=True)
def test_its_table_and_its_attention(run):
    shown = ayn("use", run.folder.path, "one two", "--table").out
    assert "nearest tokens" in shown
    weights = run.attention("one two")
    assert list(weights) == ["body.stack.blocks.0.attention", "body.stack.blocks.1.attention"]
    assert weights["body.stack.blocks.0.attention"].source[0] == "[CLS]"
    last = weights["body.stack.blocks.1.attention"]
    torch.testing.assert_close(last.weights.sum(-1), torch.ones(2, len(last.source)))


def test_one_run_starts_from_another(trained, pairs, tmp_path):
    done = ayn("train", "embed/bert", "--init", trained["pretrain"], "--data", pairs, "--out", tmp_path / "run", *BERT)
    assert done.code == 0, done.err
    assert "init: loaded the body of" in done.out
    labels = trained["embed"].parent / "labels.tsv"
    given = ["model.kind=bert", "task.pool=mean", *RUNTIME, *STEPS]
    done = ayn(
        "train", "classify/gpt", "--init", tmp_path / "run", "--data", labels, "--out", tmp_path / "next", *given
    )
    assert done.code == 0, done.err
    assert load(tmp_path / "next").embed("one two").shape == (16,)


@pytest.mark.parametrize("kind", ["gpt", "rnn", "convnet"])
def test_other_bodies_learn_pairs(kind, pairs, tmp_path):
    small = [
        *RUNTIME,
        *STEPS,
        "model.width=16",
        "model.layers=1",
        "task.group=8",
        f"model.kind={kind}",
        "text.kind=bpe",
    ]
    small += ["model.heads=2", "task.pool=last"] if kind == "gpt" else []
    recipe = tmp_path / "own.toml"
    recipe.write_text(
        '[task]\nkind = "embed"\n[model]\nkind = "gpt"\n[train]\nsteps = 5\n[data]\nname = "phrasebook"\n'
    )
    run = train(str(recipe), *small, data=pairs, out=tmp_path / "run", quiet=True)
    assert run.embed("one two").shape == (16,)


def test_settings_that_do_not_fit(pairs, tmp_path):
    given = ("train", "embed/bert", "--data", pairs, "--out", tmp_path / "run", *BERT)
    assert "leave it at true" in mistake(*given, "text.joint=false")
    assert "task.group = 1" in mistake(*given, "task.group=1")
    assert "task.temperature" in mistake(*given, "task.temperature=0")
    (tmp_path / "one.tsv").write_text("one\tuno\n")
    parts = ["data.valid_part=0", "data.test_part=0"]
    said = mistake("train", "embed/bert", "--data", tmp_path / "one.tsv", "--out", tmp_path / "run", *BERT, *parts)
    assert "at least 2 are needed" in said
    assert "elmo" in mistake("train", "embed/bert", "model.kind=elmo")


def test_settings_follow_the_data():
    found, told = followed("embed/bert")
    assert (found.text.kind, found.text.vocab, found.model.width) == ("bert", 8000, 128)
    assert (found.train.epochs, found.model.dropout) == (4.6, 0.0)
    assert "training: train.epochs=4.6, " in told
    assert "because there are 30,000 pairs" in told
    few, _ = followed("embed/bert", examples=600, words=10_000, bytes=50_000)
    assert (few.train.epochs, few.model.dropout, few.data.valid_part) == (40, 0.1, 0.1)
    own, _ = followed("embed/bert", "model.dropout=0.3", "train.epochs=2")
    assert (own.train.epochs, own.model.dropout) == (2, 0.3)


@pytest.mark.slow
def test_resumed_is_as_never_stopped(pairs, tmp_path):
    given = [*BERT, "task.group=8", "train.schedule=constant", "--data", pairs]
    for name, steps in (("whole", 10), ("part", 5)):
        assert ayn("train", "embed/bert", "--out", tmp_path / name, *given, f"train.steps={steps}").code == 0
    assert ayn("train", "embed/bert", "--out", tmp_path / "part", "--resume", "train.steps=10").code == 0
    one, other = (load(tmp_path / name).model.state_dict() for name in ("whole", "part"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_the_recipe_learns_the_phrasebook(tmp_path):
    run = train("embed/bert", *RUNTIME, "train.steps=120", out=tmp_path / "run", quiet=True)
    scores = {score.name: score.value for score in run.test(say=lambda line: None)}
    assert scores["top-1"] > 80
    targets = [pair.target for pair in run.task.data.splits["train"]]
    assert run.nearest("I am Italian.", targets, most=1)[0].text == "Io sono italiano."
