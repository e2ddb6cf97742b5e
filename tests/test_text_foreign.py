"""Tokenizers from elsewhere: the ids and the size of the library, and nothing added."""

from __future__ import annotations

import json
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
    silent = {tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.cls, tokenizer.sep} - {None}
    assert len(tokenizer) == raw.get_vocab_size()
    assert json.loads(tokenizer.to_json())["model"] == json.loads(raw.to_str())["model"]

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
    (tmp_path / "again.json").write_text(tokenizer.to_json(), encoding="utf-8")
    again = Tokenizer.load(tmp_path / "again.json")
    assert again.fingerprint == tokenizer.fingerprint
    assert roles(again) == roles(tokenizer)


def roles(tokenizer: Tokenizer) -> dict[str, int]:
    """Those that the tokenizer has."""
    found = {role: getattr(tokenizer, role) for role in ("pad", "bos", "eos", "unk", "cls", "sep", "mask")}
    return {role: id for role, id in found.items() if id is not None}


def test_roles_go_by_the_usual_names_and_none_is_added() -> None:
    gpt2, size = Tokenizer(gpt2_like()), gpt2_like().get_vocab_size()
    assert (gpt2.kind, len(gpt2), roles(gpt2)) == ("bpe", size, {"bos": size - 1, "eos": size - 1})
    bert, size = Tokenizer(bert_like()), bert_like().get_vocab_size()
    assert (bert.kind, len(bert)) == ("bert", size)
    assert roles(bert) == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert bert.unknown("a ☃ cat") == ["☃"]
    assert bert.decode([2, *bert.encode("The cat"), 3, 0]) == "the cat"
    bare = Tokenizer(bare_like())
    assert (len(bare), roles(bare)) == (80, {})
    assert bare.decode(bare.encode("the cat")) == "the cat"
    assert bare.token(bare.encode("cat")[0])[0] == " "
    unigram = models.Unigram([("x", 0.0), ("odd", 0.0), ("</s>", 0.0), ("<mask>", 0.0)], unk_id=1, byte_fallback=False)
    assert roles(Tokenizer(tokenizers.Tokenizer(unigram))) == {"unk": 1, "eos": 2, "mask": 3}


def test_the_end_of_a_text_is_not_the_unknown_of_a_byte_level_tokenizer() -> None:
    raw = gpt2_like()
    raw.model.unk_token = "<|endoftext|>"  # as some files of GPT-2 say
    assert Tokenizer(raw).unk is None


def test_a_role_that_is_needed_and_missing_is_an_error_of_the_user() -> None:
    gpt2 = Tokenizer(gpt2_like())
    assert gpt2.need("eos", "to end a document") == gpt2.eos
    with pytest.raises(UserError, match=r"no eos token, which is needed to end a document: .* </s> or \[EOS\]"):
        Tokenizer(bert_like()).need("eos", "to end a document")


def test_a_typed_special_is_read_only_when_asked_for() -> None:
    bert = Tokenizer(bert_like())
    text = "The [MASK] cat[MASK], [SEP] [CLS]"
    assert bert.mask not in bert.encode(text)
    ids = bert.encode(text, specials=("mask",))
    assert ids.count(bert.mask) == 2
    assert not {bert.sep, bert.cls} & set(ids)
    start, end = (bert.encode(part) for part in ("The", ", [SEP] [CLS]"))
    assert ids == [*start, bert.mask, *bert.encode("cat"), bert.mask, *end]
    tokens = bert.tokenize(text, specials=("mask",))
    assert tokens.ids == ids
    assert [text[start:end] for id, (start, end) in zip(tokens.ids, tokens.spans) if id == bert.mask] == ["[MASK]"] * 2
    assert bert.mask not in bert.encode(text)  # asking once changes nothing for later
    long = "cat " * 5000 + "[MASK]"
    assert bert.encode(long, ("mask",)) == [*bert.encode("cat " * 5000), bert.mask]
    with pytest.raises(UserError, match="no mask token"):
        Tokenizer(gpt2_like()).encode("a", specials=("mask",))


def test_a_mask_that_takes_the_space_beside_it() -> None:
    """The space before it as RoBERTa's, or behind it; and one that is an entry of the vocabulary but no added token."""
    raw = gpt2_like()
    raw.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    tokenizer = Tokenizer(raw)
    expected = [*tokenizer.encode("The"), tokenizer.mask, *tokenizer.encode(" cat")]
    assert tokenizer.encode("The <mask> cat", specials=("mask",)) == expected
    raw = gpt2_like()
    raw.add_special_tokens([tokenizers.AddedToken("<mask>", rstrip=True)])
    tokenizer = Tokenizer(raw)
    long = "a" * 10_000  # other texts of this length are cut in two after the mask
    expected = [*tokenizer.encode(long), tokenizer.mask, *tokenizer.encode("cat")]
    assert tokenizer.encode(f"{long}<mask> cat", specials=("mask",)) == expected
    words = models.WordLevel({"The": 0, "cat": 1, "[MASK]": 2, "?": 3}, unk_token="?")
    raw = tokenizers.Tokenizer(words)
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    assert Tokenizer(raw).encode("The [MASK] cat", specials=("mask",)) == [0, 2, 1]


def test_ids_may_have_gaps(capfd: pytest.CaptureFixture[str]) -> None:
    raw = tokenizers.Tokenizer(models.WordLevel({"a": 1, "b": 2, "[UNK]": 9}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Tokenizer(raw)
    assert (len(tokenizer), tokenizer.unk) == (10, 9)
    assert tokenizer.encode("a b c") == [1, 2, 9]
    assert [tokenizer.token(id) for id in (0, 1, 2, 3, 9)] == ["", "a", "b", "", "[UNK]"]
    with pytest.raises(IndexError):
        tokenizer.token(10)
    assert capfd.readouterr() == ("", "")


def test_dropout_in_a_file_is_turned_off() -> None:
    raw = gpt2_like()
    raw.model.dropout = 0.5
    tokenizer = Tokenizer(raw)
    assert all(tokenizer.encode(CORPUS[0]) == Tokenizer(gpt2_like()).encode(CORPUS[0]) for _ in range(5))


def test_a_tokenizer_without_unknown_says_so() -> None:
    tokenizer = Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0})))
    assert tokenizer.encode("a") == [0]
    with pytest.raises(UserError, match="cannot take"):
        tokenizer.encode("b")


def test_gpt2_as_transformers_builds_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    spec = json.loads(gpt2_like().to_str())["model"]
    vocabulary = {**spec["vocab"], "<|endoftext|>": len(spec["vocab"])}
    oracle = transformers.GPT2TokenizerFast(vocab=vocabulary, merges=[tuple(pair) for pair in spec["merges"]])
    oracle.save_pretrained(tmp_path)
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert len(tokenizer) == len(oracle)
    assert (tokenizer.eos, tokenizer.bos, tokenizer.unk, tokenizer.pad) == (oracle.eos_token_id,) * 2 + (None, None)
    for text in [*CORPUS, " a  b\n\nc", "👩‍👩‍👧 e\u0301"]:
        assert tokenizer.encode(text) == oracle(text)["input_ids"]
        assert tokenizer.decode(oracle(text)["input_ids"]) == text
