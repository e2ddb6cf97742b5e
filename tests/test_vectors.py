"""Word vectors in files and in other models: others open what we write, we open theirs, and scores equal theirs."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from allyouneed.data.vectors import Vectors, read_vectors, write_vectors
from allyouneed.data.wordtests import pairs, questions
from allyouneed.errors import UserError
from allyouneed.figures.word_map import plane, word_map
from allyouneed.metrics.cosines import analogy_answers, analogy_score, ranks, similarity_score, spearman
from allyouneed.predict.token_vectors import token_tables
from allyouneed.run import load
from commands import ayn
from conftest import TINY_LM, TINY_TRANSLATE

WORD = st.text(st.characters(categories=("L", "N"), max_codepoint=0x4FFF), min_size=1, max_size=6)
WORDS = st.lists(WORD, min_size=1, max_size=6, unique=True)
FLOATS = st.floats(-(2.0**99), 2.0**99, width=32)


@st.composite
def vectors(draw) -> Vectors:
    words = draw(WORDS)
    width = draw(st.integers(2, 5))
    return Vectors(words, draw(arrays(np.float32, (len(words), width), elements=FLOATS)))


def equal(a: Vectors, b: Vectors) -> bool:
    return a.words == b.words and np.array_equal(a.matrix, b.matrix)


@settings(max_examples=60, deadline=None)
@given(made=vectors(), binary=st.booleans())
def test_what_is_written_comes_back_bit_for_bit(made, binary, tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "vectors"
    write_vectors(path, made, binary)
    assert equal(read_vectors(path), made)


def test_binary_numbers_that_look_like_letters_are_numbers(tmp_path):
    """The four bytes Z!6[ are a number and a valid text."""
    made = Vectors(["0"], np.frombuffer(b"Z!6[Z!6[", np.float32).reshape(1, 2))
    write_vectors(tmp_path / "v", made, binary=True)
    assert equal(read_vectors(tmp_path / "v"), made)


@settings(max_examples=40, deadline=None)
@given(made=vectors())
def test_glove_has_no_first_line_and_may_be_compressed(made, tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "glove.txt.gz"
    rows = (" ".join([word, *(f"{x:.9g}" for x in row)]) for word, row in zip(made.words, made.matrix.tolist()))
    path.write_bytes(gzip.compress("".join(f"{row}\n" for row in rows).encode()))
    assert equal(read_vectors(path), made)


MADE = Vectors(["die", "Straße", "und"], np.array([[1.5, -2], [0.25, 3e-7], [-0.1, 7]], np.float32))


@pytest.mark.parametrize("binary", [False, True])
def test_gensim_opens_ours_and_we_open_gensims(binary, tmp_path):
    gensim = pytest.importorskip("gensim.models")
    write_vectors(tmp_path / "ours", MADE, binary)
    theirs = gensim.KeyedVectors.load_word2vec_format(str(tmp_path / "ours"), binary=binary)
    assert theirs.index_to_key == MADE.words
    assert np.array_equal(theirs.vectors, MADE.matrix)
    theirs.save_word2vec_format(str(tmp_path / "theirs"), binary=binary)
    assert equal(read_vectors(tmp_path / "theirs"), MADE)


def test_a_byte_order_mark_and_tabs_are_no_words(tmp_path):
    (tmp_path / "v.txt").write_text("\ufeff2\t2\na\t1\t2\nb\t3\t4\n", encoding="utf-8")
    assert equal(read_vectors(tmp_path / "v.txt"), Vectors(["a", "b"], np.array([[1, 2], [3, 4]], np.float32)))


def test_only_the_words_asked_for_are_kept_and_the_first_of_two_counts(tmp_path):
    (tmp_path / "v.txt").write_text("a 1 2\nb 3 4\na 5 6\n. . 7 8\n")
    assert read_vectors(tmp_path / "v.txt").words == ["a", "b", ". ."]
    found = read_vectors(tmp_path / "v.txt", only={"a", "c"})
    assert found.words == ["a"]
    assert found.matrix.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("a 1 2\nb 3\n", r"line 2: 1 numbers, but the vectors of this file are 2 wide"),
        ("a 1 2\nb 3 4 5\n", r"line 2: 3 numbers, but the vectors of this file are 2 wide"),
        ("2 2\na 1 2\nb 3\n", r"line 3: 1 numbers"),
        ("2 2\na 1 2\nb 3 x\n", r"line 3: 'x' is not a number"),
        ("3 2\na 1 2\nb 3 4\n", r"ends after 2 of 3 vectors"),
        ("1 2\na 1 2\nb 3 4\n", r"more than the 1 vectors that its first line"),
        ("a 1 2\nb 3 nan\n", r"line 2: nan is not a finite number"),
        ("a 1 2\nb 1e50 3\n", r"line 2: 1e50 is not a finite number"),
        ("word\n", r"line 1: a word and its numbers"),
        ("", r"line 1|no word vectors"),
    ],
)
def test_a_bad_file_is_named_with_its_line(content, complaint, tmp_path):
    (tmp_path / "v.txt").write_text(content)
    with pytest.raises(UserError, match=complaint):
        read_vectors(tmp_path / "v.txt")


def test_a_binary_file_that_ends_early_and_a_missing_one_are_told(tmp_path):
    write_vectors(tmp_path / "v", MADE, binary=True)
    content = (tmp_path / "v").read_bytes()
    (tmp_path / "v").write_bytes(content[:-6])
    with pytest.raises(UserError, match="ends after 2 of 3 vectors"):
        read_vectors(tmp_path / "v")
    (tmp_path / "v").write_bytes(content.replace(b"3 ", b"2 ", 1))
    with pytest.raises(UserError, match="more than the 2 vectors"):
        read_vectors(tmp_path / "v")
    write_vectors(tmp_path / "v", Vectors(["a", "b"], np.array([[0.5, 1], [np.inf, 2]], np.float32)), binary=True)
    with pytest.raises(UserError, match="vector 2 of 2: a number is not finite"):
        read_vectors(tmp_path / "v")
    with pytest.raises(UserError, match="there is no file"):
        read_vectors(tmp_path / "nothing")
    with pytest.raises(UserError, match="holds a space"):
        write_vectors(tmp_path / "w", Vectors(["a b"], np.ones((1, 2))))


@settings(max_examples=80, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30))
def test_spearman_is_scipys_with_ties(rows):
    stats = pytest.importorskip("scipy.stats")
    a, b = np.array(rows, dtype=float).T
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
    else:
        assert np.isnan(spearman(a, b))
    assert ranks(a).tolist() == stats.rankdata(a).tolist()


def test_analogies_and_similarity_are_gensims(tmp_path):
    gensim = pytest.importorskip("gensim.models")
    chance = np.random.default_rng(0)
    words = [f"w{i}" for i in range(60)] + [f"W{i}" for i in range(0, 60, 5)]  # the first of two cases counts
    matrix = chance.normal(size=(72, 8)).astype(np.float32)
    matrix[1:60:2] = matrix[:60:2] + chance.normal(size=8) + 0.3 * chance.normal(size=(30, 8))  # pairs with one step
    keyed = gensim.KeyedVectors(8)
    keyed.add_vectors(words, matrix)
    asked = [(f"W{a}", f"w{a + 1}", f"w{b}", f"w{b + 1}") for a in range(0, 80, 2) for b in range(0, 60, 6) if a != b]
    (tmp_path / "q.txt").write_text(": one\n" + "".join(f"{' '.join(q)}\n" for q in asked))
    judged = [(f"w{a}", f"w{b}", float(chance.integers(0, 9))) for a, b in chance.integers(0, 70, (50, 2))]
    (tmp_path / "p.tsv").write_text("# remark\n" + "".join(f"{a}\t{b}\t{said}\n" for a, b, said in judged))
    for most in (72, 20):
        theirs, _ = keyed.evaluate_word_analogies(str(tmp_path / "q.txt"), restrict_vocab=most)
        ours = analogy_score(words, matrix, [q for _, q in questions(tmp_path / "q.txt")], "test", most)
        assert ours is not None
        assert ours.value == pytest.approx(100 * theirs)
    _, (rho, _), _ = keyed.evaluate_word_pairs(str(tmp_path / "p.tsv"))
    mine = similarity_score(words, matrix, pairs(tmp_path / "p.tsv"), "test")
    assert mine is not None
    assert mine.value == pytest.approx(float(rho), abs=1e-6)
    assert analogy_answers(words, matrix, [("w0", "w1", "w2", "nothing")]) == [None]


def test_of_a_word_in_two_cases_the_more_frequent_counts():
    words = ["king", "queen", "man", "woman", "KING", "Queen", "Man"]
    matrix = np.array([[1, 0, 1], [0, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, -1], [-1, 0, 0], [0, 1, 0]], np.float32)
    assert analogy_answers(words, matrix, [("Man", "Woman", "King", "Queen")]) == ["queen"]
    judged = [("KING", "Man", 9.0), ("Queen", "Woman", 9.0), ("king", "QUEEN", 5.0), ("MAN", "woman", 1.0)]
    score = similarity_score(words, matrix, judged, "test")
    assert score is not None
    assert score.value == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", ["lm/gpt", "lm/lstm", "lm/conv", "translate/transformer", "translate/attention", "translate/conv"]
)
def test_a_model_starts_from_a_file_of_vectors(recipe, story, pairs, tmp_path):
    write_vectors(tmp_path / "v.txt", Vectors(["one", "uno", "zzz"], np.full((3, 16), 0.5, np.float32)))
    kind = recipe.split("/")[1]
    data, tiny = (story, TINY_LM) if recipe.startswith("lm") else (pairs, TINY_TRANSLATE)
    left_out = {"lstm": "heads", "conv": "heads hidden", "attention": "heads hidden"}.get(kind, "").split()
    tiny = [setting for setting in tiny if not any(name in setting for name in left_out)]
    if data is pairs:
        tiny += ["text.joint=false", "model.share=false"]
    tiny += ["model.embedding=16"] if kind in ("lstm", "conv", "attention") else []
    words = [*tiny, "text.kind=word", "model.tie=false", f"text.vectors={tmp_path / 'v.txt'}"]
    changed = {}
    for name, frozen in (("frozen", "true"), ("tuned", "false")):
        done = ayn("train", recipe, "--data", data, "--out", tmp_path / name, *words, f"text.freeze={frozen}")
        assert done.code == 0, done.err
        run = load(tmp_path / name)
        tables = token_tables(run.model, list(run.task.tokenizers.values()))
        assert len(tables) == (1 if data is story else 2)
        assert done.out.count("word vectors: ") == len(tables)
        rows = {
            word: table.weight[tokenizer.encode(f" {word}")[-1]]
            for (table, tokenizer), known in zip(tables, (["one", "two"], ["uno", "due"]))
            for word in known
        }
        given = [rows[word] for word in ("one", "uno") if word in rows]
        memory, table = run.info()["memory"], sum(table.weight.numel() for table, _ in tables)
        assert memory["training"] == 4 * memory["weights"] - (12 * table if name == "frozen" else 0)
        changed[name] = [not torch.equal(row, torch.full((16,), 0.5)) for row in given]
        assert not torch.equal(rows["two"], torch.full((16,), 0.5))
    assert not any(changed["frozen"])
    assert all(changed["tuned"])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["classify/rnn", "classify/gpt", "tag/lstm"])
def test_a_labeller_starts_from_a_file_of_vectors(recipe, tmp_path):
    width = 48 if recipe == "classify/gpt" else 16
    write_vectors(tmp_path / "v.txt", Vectors(["The", "the"], np.full((2, width), 0.5, np.float32)))
    given = [f"text.vectors={tmp_path / 'v.txt'}", "text.freeze=true", "train.steps=2", "data.limit=100"]
    given += [] if recipe == "classify/gpt" else [f"model.embedding={width}"]
    done = ayn("train", recipe, "--out", tmp_path / "run", *given)
    assert done.code == 0, done.err
    assert "word vectors: 2 of" in done.out
    run = load(tmp_path / "run")
    ((table, tokenizer),) = token_tables(run.model, list(run.task.tokenizers.values()))
    assert not table.weight.requires_grad
    rows = [table.weight[id] for id in range(len(tokenizer)) if tokenizer.token(id).strip() in ("The", "the")]
    assert all(torch.equal(row, torch.full((width,), 0.5)) for row in rows)


def test_vectors_that_do_not_fit_are_refused(story, tmp_path):
    write_vectors(tmp_path / "v.txt", Vectors(["one"], np.ones((1, 5), np.float32)))
    word = ["train", "lm/gpt", "--data", story, "--out", tmp_path / "run", *TINY_LM, "text.kind=word"]
    vectors = f"text.vectors={tmp_path / 'v.txt'}"
    narrow = ayn(*word, vectors, "--overwrite")
    assert narrow.code == 2
    assert "are 5 wide, those of the model 16: set model.embedding=5, or model.width=5" in narrow.err
    write_vectors(tmp_path / "other.txt", Vectors(["zzz"], np.ones((1, 16), np.float32)))
    none = ayn(*word, f"text.vectors={tmp_path / 'other.txt'}", "--overwrite")
    assert none.code == 2
    assert "tokens is in" in none.err
    tied = ayn(*word, vectors, "text.freeze=true", "model.tie=true", "--overwrite")
    assert tied.code == 2
    assert "set model.tie=false" in tied.err
    assert ayn(*word, "text.freeze=true", "--overwrite").code == 2


def test_the_map_is_the_plane_of_the_largest_spread(tmp_path):
    places = np.random.default_rng(1).normal(size=(9, 2)) * [5, 2]
    turned, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(6, 6)))
    seen = plane(places @ turned[:2])
    distances = lambda x: np.linalg.norm(x[:, None] - x[None], axis=-1)
    np.testing.assert_allclose(distances(seen), distances(places), atol=1e-9)
    word_map(list("abcdefghi"), places @ turned[:2], tmp_path / "map.svg", arrows=[("a", "b")])
    assert all(f">{letter}<" in (tmp_path / "map.svg").read_text() for letter in "abcdefghi")


def test_the_public_questions_are_read(mirror: Path):
    asked = questions(mirror / "words" / "questions-words.txt")
    assert len(asked) == 19_544
    assert len(pairs(mirror / "words" / "wordsim353.tsv")) == 353
