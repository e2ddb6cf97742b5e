from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, normalizers, pre_tokenizers

from allyouneed.config import TextConfig
from allyouneed.errors import UserError
from allyouneed.text import Tokenizer

CORPUS = [
    "The cat sat on the mat, and the other cat sat on the hat.",
    "La gatta è sul tetto; il gatto è più giù.\n\nPerché?  Così!\tEcco.",
    "Straße und Maß: 12 €, naïve café, 東京 και ΟΔΟΣ.",
    'a # b ## c ### "quoted" x<y>/z </s> <unk> <pad> [SEP] 100%',
] * 3
KINDS = ("char", "word", "bpe", "wordpiece")
LOSSLESS = {"char": r"[\s\S]", "word": r" ?\w+| ?[^\w\s]|\s", "wordpiece": r" ?\w{1,99}| ?[^\w\s]|\s"}
SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]


def make(kind: str, **options: object) -> Tokenizer:
    return Tokenizer.train(iter(CORPUS), TextConfig(kind=kind, **{"vocab": 400, **options}))  # type: ignore[arg-type]


TOKENIZERS = {(kind, low): make(kind, lowercase=low) for kind in KINDS for low in (False, True)}
ALL = pytest.mark.parametrize("kind", KINDS)
CASES = pytest.mark.parametrize("lowercase", [False, True])

# Arbitrary Unicode, and texts close to the corpus, so that known and unknown units meet.
unicode = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)
familiar = st.lists(
    st.sampled_from([*re.split(r"(\W)", " ".join(CORPUS)), "zebra", " ", "  ", "\n", "☃", "#", "##", "cat"]),
    max_size=30,
).map("".join)
texts = st.one_of(unicode, familiar, st.tuples(familiar, unicode).map("".join))


def lower(text: str) -> str:
    return normalizers.Lowercase().normalize_str(text)


def units(text: str, kind: str) -> list[str]:
    """The cut of the library's regular expressions, whose \\w is wider than Python's."""
    splitter = pre_tokenizers.Split(Regex(LOSSLESS[kind]), "isolated")
    return [unit for unit, _ in splitter.pre_tokenize_str(text)]


def marked(text: str, kind: str) -> str:
    """The text with each unit that the corpus did not teach replaced by the marker, worked out without ids."""
    corpus = "\n".join(CORPUS)
    taught = {unit for line in CORPUS for unit in units(line, kind)}
    known = (lambda unit: set(unit) <= set(corpus)) if kind == "wordpiece" else taught.__contains__
    return "".join(unit if known(unit) else "<unk>" for unit in units(text, kind))


@ALL
def test_specials_come_first(kind: str) -> None:
    tokenizer = make(kind)
    assert (tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk) == (0, 1, 2, 3)
    assert [tokenizer.token(id) for id in range(4)] == SPECIALS
    assert tokenizer.kind == kind
    assert len(tokenizer) <= 400
    with pytest.raises(IndexError):
        tokenizer.token(len(tokenizer))


@settings(max_examples=80, deadline=None)
@given(text=texts, lowercase=st.booleans())
def test_bpe_gives_every_text_back(text: str, lowercase: bool) -> None:
    tokenizer = TOKENIZERS["bpe", lowercase]
    assert tokenizer.decode(tokenizer.encode(text)) == (lower(text) if lowercase else text)
    assert tokenizer.unknown(text) == []


@pytest.mark.parametrize("kind", LOSSLESS)
def test_text_comes_back_with_unknown_units_marked(kind: str) -> None:
    tokenizer = TOKENIZERS[kind, False]

    @settings(max_examples=80, deadline=None)
    @given(text=texts)
    def check(text: str) -> None:
        back = tokenizer.decode(tokenizer.encode(text))
        assert back == marked(text, kind)
        unknown = tokenizer.unknown(text)
        assert back == "".join("<unk>" if unit in unknown else unit for unit in units(text, kind))
        assert len(set(unknown)) == len(unknown)
        assert set(unknown) <= set(units(text, kind))

    check()


@pytest.mark.parametrize("kind", LOSSLESS)
def test_lowercase_text_comes_back_in_lower_case(kind: str) -> None:
    tokenizer = TOKENIZERS[kind, True]

    @settings(max_examples=60, deadline=None)
    @given(text=texts)
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        assert ids == tokenizer.encode(lower(text))
        if tokenizer.unk not in ids:
            assert tokenizer.decode(ids) == lower(text)

    check()
    upper = CORPUS[0].upper()
    assert tokenizer.decode(tokenizer.encode(upper)) == CORPUS[0].lower()


@ALL
@CASES
def test_the_corpus_itself_comes_back(kind: str, lowercase: bool) -> None:
    tokenizer = TOKENIZERS[kind, lowercase]
    for text in CORPUS:
        assert tokenizer.decode(tokenizer.encode(text)) == (lower(text) if lowercase else text)


@ALL
def test_stream_is_decode(kind: str) -> None:
    tokenizer = TOKENIZERS[kind, False]

    @settings(max_examples=100, deadline=None)
    @given(ids=st.one_of(texts.map(tokenizer.encode), st.lists(st.integers(0, len(tokenizer) - 1), max_size=40)))
    def check(ids: list[int]) -> None:
        stream = tokenizer.stream()
        pieces = [stream.add(id) for id in ids]
        assert "".join(pieces) + stream.end() == tokenizer.decode(ids)

    check()


def test_stream_waits_for_whole_characters_only() -> None:
    tokenizer = Tokenizer.train(CORPUS, TextConfig(kind="bpe", vocab=260))
    stream = tokenizer.stream()
    assert [stream.add(id) for id in tokenizer.encode("a€b")] == ["a", "", "", "€", "b"]
    assert stream.end() == ""
    stream.add(tokenizer.encode("€")[0])
    assert stream.end() == "\ufffd"


@ALL
def test_decode_leaves_out_padding_start_and_end(kind: str) -> None:
    tokenizer = make(kind)
    ids = tokenizer.encode("The cat")
    assert tokenizer.decode([tokenizer.bos, *ids, tokenizer.eos, tokenizer.pad]) == "The cat"
    assert tokenizer.decode([*ids, tokenizer.unk]) == "The cat<unk>"


@ALL
def test_a_literal_special_is_only_text(kind: str) -> None:
    trained = make(kind)
    text = "a <pad> b <s> c </s> d <unk></s>"
    plain = trained.encode(text)
    assert not {0, 1, 2} & set(plain)
    assert trained.encode("</s>") != [trained.eos]
    if kind != "word":
        assert trained.unk not in plain
        assert trained.decode(plain) == text


@ALL
def test_saved_and_loaded_is_the_same(kind: str, tmp_path: Path) -> None:
    tokenizer = make(kind)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert tokenizer.to_json() == loaded.to_json()
    assert loaded.fingerprint == tokenizer.fingerprint
    assert (loaded.kind, len(loaded)) == (kind, len(tokenizer))
    for text in [*CORPUS, "</s><pad><unk>"]:
        assert loaded.encode(text) == tokenizer.encode(text)
    assert len({make(other).fingerprint for other in KINDS}) == len(KINDS)


@ALL
@CASES
def test_training_twice_gives_the_same(kind: str, lowercase: bool) -> None:
    # Many ties: each pair of letters about as often as the next.
    corpus = [" ".join(chr(97 + (i * j) % 26) + chr(97 + (i + j) % 26) + "ß" for j in range(40)) for i in range(60)]
    config = TextConfig(kind=kind, vocab=330, lowercase=lowercase)
    prints = {Tokenizer.train(iter(corpus), config).fingerprint for _ in range(4)}
    assert len(prints) == 1
    command = (
        "import sys; from allyouneed.text import Tokenizer; from allyouneed.config import TextConfig;"
        f"print(Tokenizer.train({corpus!r}, {config!r}).fingerprint)"
    )
    if kind == "wordpiece" and not lowercase:
        out = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout
        assert {out.strip()} == prints


def test_bpe_of_260_is_plain_bytes() -> None:
    tokenizer = Tokenizer.train(CORPUS, TextConfig(kind="bpe", vocab=260))
    assert len(tokenizer) == 260

    @settings(max_examples=60, deadline=None)
    @given(text=texts)
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        assert len(ids) == len(text.encode())
        assert len({*zip(ids, text.encode())}) == len(set(ids)) == len(set(text.encode()))

    check()
    assert [tokenizer.token(id) for id in tokenizer.encode("a €\n")] == ["a", " ", "<0xE2>", "<0x82>", "<0xAC>", "\n"]
    with pytest.raises(UserError, match="260"):
        Tokenizer.train(CORPUS, TextConfig(kind="bpe", vocab=259))


def test_tokens_as_a_person_sees_them() -> None:
    bpe, word, piece = (TOKENIZERS[kind, False] for kind in ("bpe", "word", "wordpiece"))
    assert [bpe.token(id) for id in bpe.encode("the cat")][-1] == " cat"
    assert [word.token(id) for id in word.encode("The cat, è")] == ["The", " cat", ",", " è"]
    shown = [piece.token(id) for id in piece.encode("The cat catmat")]
    assert shown[:2] == ["The", " cat"]
    assert "".join(token.removeprefix("##") for token in shown) == "The cat catmat"
    assert any(token.startswith("##") for token in shown)


def test_wordpiece_knows_every_mixture_of_known_characters() -> None:
    tokenizer = TOKENIZERS["wordpiece", False]
    alphabet = sorted(set("".join(CORPUS)))

    @settings(max_examples=80, deadline=None)
    @given(text=st.text(st.sampled_from(alphabet), max_size=80))
    def check(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text)) == text

    check()
    long = " " + "catsat" * 500 + "#" * 300
    assert tokenizer.decode(tokenizer.encode(long)) == long


def test_wordpiece_says_when_the_characters_do_not_fit() -> None:
    corpus = ["".join(map(chr, range(0x4E00, 0x4E00 + 100)))] * 3
    with pytest.raises(UserError, match="204"):
        Tokenizer.train(corpus, TextConfig(kind="wordpiece", vocab=203))
    assert len(Tokenizer.train(corpus, TextConfig(kind="wordpiece", vocab=204))) == 204


def test_word_forgets_rare_words_and_keeps_the_frequent() -> None:
    corpus = ["cat cat cat dog dog bird"]
    rare = Tokenizer.train(corpus, TextConfig(kind="word", min_count=2))
    assert rare.decode(rare.encode(" cat dog bird")) == " cat dog<unk>"
    assert rare.unknown(" cat bird bird\n") == [" bird", "\n"]
    small = Tokenizer.train(corpus, TextConfig(kind="word", vocab=6))
    assert len(small) == 6
    assert small.unknown(" cat dog bird") == [" bird"]


def test_words_are_words_and_ends_of_lines_and_nothing_else() -> None:
    corpus = ["The cat, the CAT - the dog!\n", "A dog's dog; the\tbird.\n"]
    config = TextConfig(kind="terms", lowercase=True)
    tokenizer = Tokenizer.train(corpus, config)
    tokens = [tokenizer.token(id) for id in tokenizer.encode("(The  cat)\n\nthe zebra.")]
    assert tokens == ["the", "cat", "\n", "\n", "the", "<unk>"]
    assert tokenizer.line == tokenizer.encode("\n")[0]
    counts = Counter(re.findall(r"\w+", " ".join(corpus).lower()))
    there = [tokenizer.token(id) for id in range(tokenizer.line + 1, len(tokenizer))]
    assert set(there) == set(counts)
    assert [counts[word] for word in there] == sorted(counts.values(), reverse=True)  # the most frequent first
    assert Tokenizer.train(corpus, config).fingerprint == tokenizer.fingerprint
    frequent = Tokenizer.train(corpus, TextConfig(kind="terms", lowercase=True, min_count=3))
    assert {frequent.token(id) for id in range(frequent.line + 1, len(frequent))} == {"the", "dog"}
    with pytest.raises(UserError, match=r"none occurs text.min_count = 9 times"):
        Tokenizer.train(corpus, TextConfig(kind="terms", min_count=9))


@ALL
def test_a_long_text_has_the_ids_of_the_plain_library(kind: str) -> None:
    # A corpus rich in runs of white space, so that bpe has tokens for them and a wrong cut shows.
    spaces = "   \n\n  \t \x1c\n cat's  \u2003\u3000\n  "
    tokenizer = Tokenizer.train([*CORPUS, spaces * 20, " " * 40], TextConfig(kind=kind, vocab=400))
    raw = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    raw.encode_special_tokens = True
    for text in ("\n  ".join(CORPUS) * 20, spaces * 500, "cat" * 5000, "x" + " " * 15_000, "x\n" * 7000):
        ids = tokenizer.encode(text)
        assert ids == raw.encode(text, add_special_tokens=False).ids


@ALL
def test_a_batch_has_the_ids_of_its_texts(kind: str) -> None:
    tokenizer = TOKENIZERS[kind, False]
    batch = [*CORPUS, "", "x"] * 40 + ["the cat " * 3000, ""]
    assert tokenizer.encode_batch(batch) == [tokenizer.encode(text) for text in batch]
    assert tokenizer.encode_batch([]) == []


@ALL
def test_half_a_megabyte_is_quick(kind: str) -> None:
    text = (" ".join(CORPUS) * 2000)[:500_000]
    start = time.process_time()
    TOKENIZERS[kind, False].encode(text)
    assert time.process_time() - start < 5


@ALL
def test_training_reads_one_text_at_a_time(kind: str) -> None:
    alive: list[int] = []

    class Text(str):
        def __init__(self, text: str) -> None:
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

    most = 0

    def corpus() -> Iterator[str]:
        nonlocal most
        for text in CORPUS * 400:
            most = max(most, len(alive))
            yield Text(text)

    Tokenizer.train(corpus(), TextConfig(kind=kind, vocab=400))
    assert most < len(CORPUS) * 200


@ALL
@pytest.mark.parametrize("corpus", [[], [""], ["", ""]])
def test_an_empty_corpus_is_refused(kind: str, corpus: list[str]) -> None:
    with pytest.raises(UserError, match="empty"):
        Tokenizer.train(corpus, TextConfig(kind=kind))


def test_training_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    for kind in KINDS:
        make(kind)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no tokenizer file"), (b"{", "not JSON"), (b'{"a": 1}', "tokenizers library"), (b"\xff", "UTF-8")],
)
def test_what_is_no_tokenizer_is_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        Tokenizer.load(path)
    with pytest.raises(UserError, match="cannot be read"):
        Tokenizer.load(tmp_path)


def test_invalid_text_is_refused() -> None:
    with pytest.raises(UserError, match="Unicode"):
        TOKENIZERS["bpe", False].encode("a\ud800")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_encodes_without_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(TOKENIZERS["bpe", False].to_json(), encoding="utf-8")
    command = f"""
import os
from allyouneed.text import Tokenizer
assert os.environ["TOKENIZERS_PARALLELISM"] == "true"  # older releases of the library warn where it is not set
tokenizer = Tokenizer.load({str(path)!r})
ids = tokenizer.encode_batch(["the cat"] * 2000)
child = os.fork()
if not child:
    os._exit(0 if tokenizer.encode_batch(["the cat"] * 2000) == ids else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    clean = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", command],
        env=clean,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_text_part_needs_no_torch() -> None:
    command = "import sys, allyouneed.text; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0
