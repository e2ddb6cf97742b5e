"""Tokens with their words and places, and the layout of one or two texts."""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from allyouneed.config import TextConfig
from allyouneed.errors import UserError
from allyouneed.text import Laid, Layout, Tokenizer, Tokens, first_pieces
from allyouneed.text.layout import words_of
from allyouneed.text.word_boundaries import find_words

CORPUS = [
    "The cat sat on the mat, and the other cat sat on the hat.",
    "Perché? Così! Straße, 12 €: 東京, naïve café. don't 3.5 @you",
    "a 👩‍👩‍👧 b e\u0301 İ ﬁ",
] * 3
OWN = ("char", "word", "bpe", "wordpiece", "bert")


def foreign(name: str) -> Tokenizer:
    if name == "unigram":
        raw = tokenizers.Tokenizer(models.Unigram())
        raw.normalizer = normalizers.NFKC()
        raw.pre_tokenizer, raw.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=90, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
        )
    else:
        raw = tokenizers.Tokenizer(models.BPE())
        raw.normalizer = normalizers.NFD() if name == "nfd" else None
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=name == "prefixed")
        raw.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator(CORPUS, trainer)
    return Tokenizer(raw)


TOKENIZERS = {
    **{kind: Tokenizer.train(CORPUS, TextConfig(kind=kind, vocab=400)) for kind in (*OWN, "terms")},
    **{f"{kind} lower": Tokenizer.train(CORPUS, TextConfig(kind=kind, vocab=400, lowercase=True)) for kind in OWN},
    **{name: foreign(name) for name in ("gpt2", "prefixed", "nfd", "unigram")},
}
LOSSLESS = [name for name in TOKENIZERS if name.split()[0] in ("char", "word", "bpe", "wordpiece", "gpt2", "nfd")]
ANY = pytest.mark.parametrize("name", TOKENIZERS)
PARTS = [
    "The",
    "the",
    " cat",
    "cat",
    " ",
    "  ",
    "\n",
    "☃",
    "👩‍👩‍👧",
    "e\u0301",
    "İ",
    "ﬁ",
    "€",
    "don't",
    "...",
    "東京",
    "\u3000",
]
texts = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=40),
    st.lists(st.sampled_from(PARTS), max_size=20).map("".join),
)


def test_which_tokenizers_put_a_space_before_a_text() -> None:
    prefixed = [name for name, tokenizer in TOKENIZERS.items() if tokenizer.prefix == " "]
    assert sorted(prefixed) == [
        *("bpe", "bpe lower", "gpt2", "nfd", "word", "word lower", "wordpiece", "wordpiece lower"),
    ]  # fmt: skip
    llama = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    split = pre_tokenizers.Split(tokenizers.Regex(r"\s?\w+"), "isolated")
    llama.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    assert Tokenizer(llama).prefix == " "


@ANY
def test_tokens_have_their_words_and_places(name: str) -> None:
    tokenizer = TOKENIZERS[name]

    @settings(max_examples=100, deadline=None)
    @given(text=texts)
    def check(text: str) -> None:
        tokens = tokenizer.tokenize(text)
        assert tokens.ids == (tokenizer.encode(tokenizer.prefix + text) if text else [])
        assert len(tokens.ids) == len(tokens.words) == len(tokens.spans)
        places = find_words(text)
        assert all(0 <= start <= end <= len(text) for start, end in tokens.spans)
        for word, (start, end) in zip(tokens.words, tokens.spans):
            over = [number for number, (first, last) in enumerate(places) if first < end and start < last]
            assert word == (over[0] if over else -1)
            if word < 0:
                assert not text[start:end].strip()
        inside = [word for word in tokens.words if word >= 0]
        assert inside == sorted(inside)
        for word in set(inside):  # contiguous
            mine = [place for place, other in enumerate(tokens.words) if other == word]
            assert mine == list(range(mine[0], mine[-1] + 1))
        if name in LOSSLESS:
            covered = {place for start, end in tokens.spans for place in range(start, end)}
            assert covered == set(range(len(text)))

    check()


@ANY
def test_words_between_spaces(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    word = st.text(st.characters(exclude_categories=("Cs", "Z", "C")), max_size=6)

    @settings(max_examples=60, deadline=None)
    @given(
        several=st.lists(st.lists(st.one_of(word, st.sampled_from(["cat", "don't", "", "e\u0301", "a b"])), max_size=8))
    )
    def check(several: list[list[str]]) -> None:
        batch = tokenizer.tokenize_words(several)
        assert len(batch) == len(several)
        for words, tokens in zip(several, batch):
            assert [tokens] == tokenizer.tokenize_words([words])
            text = " ".join(words)
            starts = [len(" ".join([*words[:i], ""])) for i in range(len(words))]
            places = [(start, start + len(word)) for start, word in zip(starts, words)]
            assert tokens == tokenizer.tokenize(text, places)
            first = first_pieces(tokens.words, len(words))
            assert len(first) == len(words)
            for number, place in enumerate(first):
                assert place == (tokens.words.index(number) if number in tokens.words else -1)

    check()


def test_a_word_has_the_same_tokens_at_the_start_and_inside() -> None:
    for name in ("bpe", "word", "wordpiece", "gpt2", "bert", "char", "prefixed"):
        (tokens,) = TOKENIZERS[name].tokenize_words([["cat", "sat", "cat"]])
        of = [[id for id, word in zip(tokens.ids, tokens.words) if word == number] for number in range(3)]
        assert of[0] == of[2] != of[1], name
    assert TOKENIZERS["gpt2"].tokenize("").ids == []


def test_places_by_hand() -> None:
    word = TOKENIZERS["word"]
    tokens = word.tokenize("The cat, sat.\n")
    assert [word.token(id) for id in tokens.ids[:4]] == ["<unk>", " cat", ",", " sat"]
    assert tokens.spans == [(0, 3), (3, 7), (7, 8), (8, 12), (12, 13), (13, 14)]
    assert tokens.words == [0, 1, 2, 3, 4, -1]
    bpe = Tokenizer.train(CORPUS, TextConfig(kind="bpe", vocab=260))  # bytes
    tokens = bpe.tokenize("a €")
    assert tokens.spans == [(0, 0), (0, 1), (1, 2), (2, 3), (2, 3), (2, 3)]
    assert tokens.words == [-1, 0, -1, 1, 1, 1]
    assert first_pieces(tokens.words) == [1, 3]
    assert first_pieces(tokens.words, 3) == [1, 3, -1]
    assert first_pieces([]) == []
    assert words_of([(0, 1), (1, 4)], [(0, 1), (2, 2), (3, 4)]) == [0, 2]  # an empty word has no token
    bert = TOKENIZERS["bert lower"]
    tokens = bert.tokenize("Così \u0301 İx", [(0, 4), (5, 6), (7, 9)])  # the accents leave no token
    assert first_pieces(tokens.words, 3)[1] == -1
    assert "".join("Così \u0301 İx"[start:end] for start, end in tokens.spans) == "CosìİX".replace("X", "x")


@ANY
def test_a_long_text_has_the_places_of_the_whole(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    text = " ".join(CORPUS) * 60 + " " + "cat\n" * 3000
    assert len(text) > 20_000
    tokens = tokenizer.tokenize(text)
    whole = tokenizer._raw.encode(tokenizer.prefix + text, add_special_tokens=False)
    shift = len(tokenizer.prefix)
    assert tokens.ids == whole.ids
    assert tokens.spans == [(max(0, start - shift), max(0, end - shift)) for start, end in whole.offsets]
    assert max(tokens.words) == len(find_words(text)) - 1


BERT = Layout(start=(2,), between=(3,), end=(3,))


def test_layouts_of_tokenizers() -> None:
    assert TOKENIZERS["bert"].layout() == BERT
    assert TOKENIZERS["bpe"].layout() == Layout(between=(2,), prefix=" ")
    assert TOKENIZERS["char"].layout(texts=2) == Layout(between=(2,))
    assert TOKENIZERS["unigram"].layout() == Layout()
    with pytest.raises(UserError, match="no eos token, which is needed between two texts"):
        TOKENIZERS["unigram"].layout(texts=2)
    assert [BERT.specials(1), BERT.specials(2), Layout(between=(2,)).specials(1), Layout(between=(2,)).specials(2)] == [
        *(2, 3, 0, 1),
    ]  # fmt: skip


def test_one_text_and_two_in_a_row() -> None:
    assert BERT.lay([7, 8]) == Laid([2, 7, 8, 3], [0, 0, 0, 0], [-1, 0, 0, -1], [-1, 0, 1, -1])
    assert BERT.lay([7, 8], [9]) == Laid(
        ids=[2, 7, 8, 3, 9, 3], segments=[0, 0, 0, 0, 1, 1], side=[-1, 0, 0, -1, 1, -1], at=[-1, 0, 1, -1, 0, -1]
    )
    assert Layout(between=(2,)).lay([7], [8, 9]) == Laid([7, 2, 8, 9], [0, 0, 1, 1], [0, -1, 1, 1], [0, -1, 0, 1])
    assert Layout().lay([7, 8], most=1).ids == [7]
    assert BERT.lay([], []).ids == [2, 3, 3]
    with pytest.raises(UserError, match="at most 4 tokens are too few: 3 of them are special"):
        BERT.lay([7], [8], most=4)
    with pytest.raises(UserError, match=r"raise data\.max_length"):
        BERT.lay([7], most=2)


@settings(max_examples=200, deadline=None)
@given(
    a=st.lists(st.integers(10, 99), max_size=20), b=st.lists(st.integers(10, 99), max_size=20), most=st.integers(5, 50)
)
def test_what_is_too_long_is_cut_from_the_longer_text_first(a: list[int], b: list[int], most: int) -> None:
    laid = BERT.lay(a, b, most)
    room = most - 3
    one, two = len(a), len(b)
    while one + two > room:  # a token at a time; of equal lengths the second
        one, two = (one - 1, two) if one > two else (one, two - 1)
    assert laid == BERT.lay(a[:one], b[:two])
    assert len(laid.ids) == min(most, len(a) + len(b) + 3)


def test_the_cut_of_many_examples_is_that_of_each() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 40, 500), rng.integers(0, 40, 500)
    kept = BERT.cut([a, b], 24)
    for i in range(500):
        laid = BERT.lay(list(range(a[i])), list(range(b[i])), 24)
        assert (laid.side.count(0), laid.side.count(1)) == (kept[0][i], kept[1][i])
    assert BERT.cut([a], 12)[0].tolist() == np.minimum(a, 10).tolist()


@settings(max_examples=300, deadline=None)
@given(a=st.integers(0, 10), b=st.integers(0, 200), most=st.integers(14, 60), stride=st.integers(0, 40))
def test_windows_cover_the_second_text(a: int, b: int, most: int, stride: int) -> None:
    found = BERT.windows(a, b, most, stride)
    room = most - 3 - a
    assert found[0][0] == 0
    assert found[-1][1] == b
    assert all(end - start == room for start, end in found[:-1])
    assert found[-1][1] - found[-1][0] <= room
    assert all(end - start == min(stride, room // 2) for (_, end), (start, _) in pairwise(found))
    assert all(before[1] < after[1] for before, after in pairwise(found))


def test_a_first_text_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(UserError, match="the first text has 30 tokens: with 3 special tokens no room is left"):
        BERT.windows(30, 10, 33, 4)
    assert BERT.windows(30, 10, 34, 4) == [(i, i + 1) for i in range(10)]


def test_rows_and_windows_are_those_of_transformers() -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    tokenizer = TOKENIZERS["bert lower"]
    vocabulary = {tokenizer.token(id): id for id in range(len(tokenizer))}
    oracle = transformers.BertTokenizerFast(vocab=vocabulary)
    question, context = "Where is the cat?", " ".join(CORPUS)
    a, b = tokenizer.tokenize(question), tokenizer.tokenize(context)
    theirs = oracle(
        question, context, max_length=40, truncation="only_second", stride=8, return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )  # fmt: skip
    windows = BERT.windows(len(a.ids), len(b.ids), 40, 8)
    assert len(theirs["input_ids"]) == len(windows) > 3
    for number, (start, end) in enumerate(windows):
        laid = BERT.lay(a.ids, b.ids[start:end])
        assert laid.ids == theirs["input_ids"][number]
        assert laid.segments == theirs["token_type_ids"][number]
        spans = [
            (0, 0) if side < 0 else (a.spans, b.spans[start:end])[side][at] for side, at in zip(laid.side, laid.at)
        ]
        assert spans == theirs["offset_mapping"][number]
    assert isinstance(a, Tokens)
