"""text.kind = "bert": BERT's WordPiece, against its definition and against transformers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from allyouneed.config import TextConfig
from allyouneed.errors import UserError
from allyouneed.text import Tokenizer

CORPUS = [
    "The cat sat on the mat, and the other cat sat on the hat.",
    "La gatta è sul tetto; il gatto è più giù.\n\nPerché?  Così!\tEcco.",
    "Straße und Maß: 12 €, naïve café, 東京 και ΟΔΟΣ.",
    'a # b ## c ### "quoted" x<y>/z [SEP] [MASK] 100%',
] * 3
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def make(lowercase: bool = False, vocab: int = 400) -> Tokenizer:
    return Tokenizer.train(iter(CORPUS), TextConfig(kind="bert", vocab=vocab, lowercase=lowercase))


TOKENIZERS = {lowercase: make(lowercase) for lowercase in (False, True)}
texts = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=60),
    st.lists(
        st.sampled_from(
            [*re.split(r"(\W)", " ".join(CORPUS)), "zebra", "  ", "☃", "##", "##at", "cat" * 40, "É", "\u0301", "\x00"]
        ),
        max_size=30,
    ).map("".join),
)


def words(text: str, lowercase: bool) -> list[str]:
    """The words and marks of the normalised text."""
    normal = normalizers.BertNormalizer(lowercase=lowercase).normalize_str(text)
    return [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normal)]


@pytest.mark.parametrize("lowercase", [False, True])
def test_the_words_come_back_with_unknown_ones_marked(lowercase: bool) -> None:
    tokenizer = TOKENIZERS[lowercase]
    known = set("".join(words(" ".join(CORPUS), lowercase)))

    @settings(max_examples=150, deadline=None)
    @given(text=texts)
    def check(text: str) -> None:
        back = [word if set(word) <= known and len(word) <= 100 else "[UNK]" for word in words(text, lowercase)]
        assert tokenizer.decode(tokenizer.encode(text)) == " ".join(back)

    check()
    assert tokenizer.decode(tokenizer.encode(" the  cat☃, sat\n")) == "the [UNK] , sat"


def test_upper_case_and_accents_go_together() -> None:
    assert TOKENIZERS[True].decode(TOKENIZERS[True].encode("Perché COSÌ, naïve")) == "perche cosi , naive"
    assert TOKENIZERS[False].decode(TOKENIZERS[False].encode("Perché, naïve")) == "Perché , naïve"


def test_special_tokens_and_pieces() -> None:
    tokenizer = TOKENIZERS[False]
    assert [tokenizer.token(id) for id in range(5)] == SPECIALS
    assert (tokenizer.pad, tokenizer.unk, tokenizer.cls, tokenizer.sep, tokenizer.mask) == (0, 1, 2, 3, 4)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.prefix, tokenizer.kind) == (None, None, "", "bert")
    assert len(tokenizer) <= 400
    shown = [tokenizer.token(id) for id in tokenizer.encode("cat catmat")]
    assert shown[0] == "cat"
    assert shown[1] == "cat"
    assert shown[2].startswith("##")
    assert tokenizer.decode([2, *tokenizer.encode("The cat"), 4, 3, 0]) == "The cat [MASK]"
    literal = tokenizer.encode("a [MASK] [CLS] [PAD]")
    assert not {0, 2, 3, 4} & set(literal)


def test_stream_is_decode() -> None:
    tokenizer = TOKENIZERS[False]

    @settings(max_examples=100, deadline=None)
    @given(ids=st.one_of(texts.map(tokenizer.encode), st.lists(st.integers(0, len(tokenizer) - 1), max_size=40)))
    def check(ids: list[int]) -> None:
        stream = tokenizer.stream()
        assert "".join([stream.add(id) for id in ids]) + stream.end() == tokenizer.decode(ids)

    check()


def test_training_twice_gives_the_same() -> None:
    # Many ties: each pair of letters about as often as the next.
    corpus = [" ".join(chr(97 + (i * j) % 26) + chr(97 + (i + j) % 26) + "ß" for j in range(40)) for i in range(60)]
    config = TextConfig(kind="bert", vocab=330)
    prints = {Tokenizer.train(iter(corpus), config).fingerprint for _ in range(4)}
    command = (
        "from allyouneed.text import Tokenizer; from allyouneed.config import TextConfig;"
        f"print(Tokenizer.train({corpus!r}, {config!r}).fingerprint)"
    )
    prints.add(subprocess.run([sys.executable, "-c", command], capture_output=True, text=True).stdout.strip())
    assert len(prints) == 1


def test_a_vocabulary_too_small_for_the_characters_is_refused() -> None:
    letters = ["".join(map(chr, range(0x4E00, 0x4E00 + 100)))] * 3
    with pytest.raises(UserError, match=r"too small for bert: .* 205 at least"):
        Tokenizer.train(letters, TextConfig(kind="bert", vocab=204))
    assert len(Tokenizer.train(letters, TextConfig(kind="bert", vocab=205))) == 205


def test_a_long_text_is_cut_without_a_trace() -> None:
    for lowercase, tokenizer in TOKENIZERS.items():
        for text in ("\n  ".join(CORPUS) * 20, "cat\u0301 e \u0301" * 3000, "東京 " * 5000):
            whole = tokenizer._raw.encode(text, add_special_tokens=False).ids
            assert tokenizer.encode(text) == whole, lowercase


@pytest.mark.parametrize("lowercase", [False, True])
def test_ids_are_those_of_transformers(lowercase: bool, tmp_path: Path) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    tokenizer = TOKENIZERS[lowercase]
    vocabulary = {tokenizer.token(id): id for id in range(len(tokenizer))}
    oracle = transformers.BertTokenizerFast(vocab=vocabulary, do_lower_case=lowercase)

    @settings(max_examples=150, deadline=None)
    @given(text=texts.filter(lambda text: not any(special in text for special in SPECIALS)))
    def check(text: str) -> None:
        assert tokenizer.encode(text) == oracle(text, add_special_tokens=False)["input_ids"]

    check()
    oracle.save_pretrained(tmp_path)
    theirs = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (theirs.kind, len(theirs), theirs.mask) == ("bert", len(tokenizer), 4)
    masked = "The [MASK] sat."
    assert tokenizer.encode(masked, ("mask",)) == oracle(masked, add_special_tokens=False)["input_ids"]
