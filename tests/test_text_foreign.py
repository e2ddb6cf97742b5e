from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from allyouneed.errors import UserError
from allyouneed.text import Tokenizer

CORPUS = [
    "The cat sat on the mat, and the other cat on the hat.",
    "Perché?  Così! Straße, 12 €: 東京",
    "a # b <x> 100%",
]
PARTS = ["The", "the", " cat", "cat", " ", "  ", "\n", "☃", "#", "€", "<|endoftext|>", "[SEP]", "</s>", "cat\ncat", "è"]
texts = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=40),
    st.lists(st.sampled_from(PARTS), max_size=20).map("".join),
)


def gpt2_like() -> tokenizers.Tokenizer:
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=350, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator(CORPUS * 3, trainer)
    raw.add_special_tokens(["<|endoftext|>"])
    return raw


def bert_like() -> tokenizers.Tokenizer:
    raw = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer(lowercase=True)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    raw.train_from_iterator(
        CORPUS * 3, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    )
    raw.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    raw.enable_truncation(8)
    raw.enable_padding(length=8)
    return raw


def bare_like() -> tokenizers.Tokenizer:
    """A vocabulary without any special token, and pieces that begin with a prefix space."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    raw.train_from_iterator(CORPUS * 3, trainers.BpeTrainer(vocab_size=80, show_progress=False))
    return raw


def prefixed_like() -> tokenizers.Tokenizer:
    raw = gpt2_like()
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return raw


def added_like() -> tokenizers.Tokenizer:
    raw = gpt2_like()
    raw.add_tokens(["cat\ncat"])
    return raw


def stripped_like() -> tokenizers.Tokenizer:
    """What stands at both ends of a text is not what stands at the ends of its parts."""
    raw = gpt2_like()
    raw.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    return raw


FOREIGN = {f.__name__: f for f in (gpt2_like, bert_like, bare_like, prefixed_like, added_like, stripped_like)}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_tokenizer_is_the_raw_library(name: str, tmp_path: Path) -> None:
    raw = FOREIGN[name]()
    raw.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    raw.no_truncation()
    raw.no_padding()
    raw.encode_special_tokens = True
    silent = {tokenizer.pad, tokenizer.bos, tokenizer.eos}

    @settings(max_examples=60, deadline=None)
    @given(text=texts)
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        assert ids == raw.encode(text, add_special_tokens=False).ids
        assert not silent & set(ids)
        assert tokenizer.decode(ids) == raw.decode(ids, skip_special_tokens=False)

    @settings(max_examples=100, deadline=None)
    @given(ids=st.one_of(texts.map(tokenizer.encode), st.lists(st.integers(0, len(tokenizer) - 1), max_size=30)))
    def check_stream(ids: list[int]) -> None:
        stream = tokenizer.stream()
        assert "".join([stream.add(id) for id in ids]) + stream.end() == tokenizer.decode(ids)

    check()
    check_stream()
    long = "cat\n" * 5001
    assert tokenizer.encode(long) == raw.encode(long, add_special_tokens=False).ids
    literal = "a <|endoftext|> [SEP] </s> [PAD]"
    assert not silent & set(tokenizer.encode(literal))
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.fingerprint == tokenizer.fingerprint
    assert (again.pad, again.bos, again.eos, again.unk) == (tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk)


def test_foreign_names_are_found_and_missing_ones_added() -> None:
    gpt2 = Tokenizer(gpt2_like())
    size = gpt2_like().get_vocab_size()
    assert (gpt2.kind, gpt2.bos, gpt2.eos, gpt2.unk, gpt2.pad, len(gpt2)) == ("bpe", *[size - 1] * 3, size, size + 1)
    bert, known = Tokenizer(bert_like()), bert_like().get_vocab_size()
    assert (bert.kind, bert.pad, bert.unk, bert.bos, bert.eos, len(bert)) == ("wordpiece", 0, 1, 2, 3, known)
    assert bert.unknown("a ☃ cat") == ["☃"]
    assert bert.decode([bert.bos, *bert.encode("The cat"), bert.eos]) == "the cat"
    bare = Tokenizer(bare_like())
    assert (bare.pad, bare.bos, bare.eos, bare.unk, len(bare)) == (80, 81, 82, 83, 84)
    assert bare.decode([bare.bos, *bare.encode("the cat"), bare.eos]) == "the cat"
    assert bare.token(bare.encode("cat")[0])[0] == " "


def test_ids_with_gaps_never_share_an_added_token() -> None:
    with pytest.raises(UserError, match="gaps"):
        Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 1, "b": 2, "[UNK]": 3}, unk_token="[UNK]")))


def test_a_tokenizer_without_unknown_says_so() -> None:
    tokenizer = Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0})))
    assert tokenizer.encode("a") == [0]
    with pytest.raises(UserError, match="cannot take"):
        tokenizer.encode("b")
