"""Files that make the tokenizers library panic, abort or hang: each is refused with a sentence."""

from __future__ import annotations

import base64
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers

from allyouneed.config import TextConfig
from allyouneed.errors import UserError
from allyouneed.text import Tokenizer, safety

WORDS = {"a": 0, "b": 1, "[UNK]": 2}
TOKEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def spec(**parts: Any) -> dict[str, Any]:
    raw = tokenizers.Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    return {**json.loads(raw.to_str()), **parts}


def bpe(*merges: Any, vocab: dict[str, int] | None = None, **others: Any) -> dict[str, Any]:
    known = vocab or {"a": 0, "b": 1, "ab": 2}
    return spec(model={"type": "BPE", "vocab": known, "merges": list(merges), **others})


def words(vocab: dict[str, Any]) -> dict[str, Any]:
    return spec(model={"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"})


def split(regex: str) -> dict[str, Any]:
    return spec(pre_tokenizer={"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False})


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def steps(part: str, *parts: Any) -> dict[str, Any]:
    """The steps of a part, one after the other; a number at the end repeats them."""
    inside = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}[part]
    several = [*parts[:-1]] * parts[-1] if isinstance(parts[-1], int) else [*parts]
    return spec(**{part: {"type": "Sequence", inside: several}})


def template(start: list[str], ids: list[int] | None = None) -> dict[str, Any]:
    """A post-processor that puts special tokens before each text."""
    pieces = [{"SpecialToken": {"id": id, "type_id": 0}} for id in start]
    both = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]
    known = {"a": {"id": "a", "ids": ids or [0], "tokens": ["a"] * len(ids or [0])}}
    made = {"type": "TemplateProcessing", "single": [*pieces, both[0]], "pair": both, "special_tokens": known}
    return spec(post_processor=made)


def charsmap(data: bytes | None) -> dict[str, Any]:
    text = None if data is None else base64.b64encode(data).decode()
    return spec(normalizer={"type": "Precompiled", "precompiled_charsmap": text})


def trie(pairs: dict[str, str]) -> bytes:
    """A character map: characters -> what takes their place. Each node has a block of 256 units for its children."""
    texts, units = b"", [0] * 512
    units[0] = 256 << 10  # the root's children are at 256 ^ byte
    blocks = {b"": 256}
    for key, value in pairs.items():
        letters = key.encode()
        for end in range(1, len(letters) + 1):
            node = letters[:end]
            place = blocks[node[:-1]] ^ node[-1]
            if node not in blocks:
                blocks[node] = len(units)
                units += [0] * 256
                units[place] = (place ^ blocks[node]) << 10 | node[-1]
        units[place] |= 1 << 8
        units[blocks[letters]] = 1 << 31 | len(texts)
        texts += value.encode() + b"\0"
    array = b"".join(unit.to_bytes(4, "little") for unit in units)
    return len(array).to_bytes(4, "little") + array + texts


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
GOOD = trie({"ﬁ": "fi", "A": "a", "é": "e\u0301", "B": ""})
LONG = trie({"a": "a" * 300})
TOO_LATE = trie({"a": "b"}).replace((1 << 31).to_bytes(4, "little"), (1 << 31 | 50).to_bytes(4, "little"))
MIDDLE = trie({"a": "é"}).replace((1 << 31).to_bytes(4, "little"), (1 << 31 | 1).to_bytes(4, "little"))

# What the file holds -> a part of the sentence.
DAMAGED: dict[str, tuple[Any, str]] = {
    # the library panics on loading
    "a charsmap that is not base64": (
        spec(normalizer={"type": "Precompiled", "precompiled_charsmap": "!!!!"}), "precompiled_charsmap is damaged"
    ),
    "a charsmap of nothing": (charsmap(b""), "precompiled_charsmap is damaged"),
    "a charsmap of null": (charsmap(None), "precompiled_charsmap is damaged"),
    "a charsmap without its end": (charsmap(GOOD[:100]), "precompiled_charsmap is damaged"),
    "a charsmap of bytes that are no text": (charsmap(GOOD + b"\xff\xfe"), "precompiled_charsmap is damaged"),
    "a merge into nothing": (bpe("a b", vocab={"a": 0, "b": 1}), "needs the piece 'ab'"),
    "a merge without its prefix": (bpe("a b", continuing_subword_prefix="#####"), "does not begin with '#####'"),
    # the process aborts
    "a charsmap with an enormous size": (charsmap(b"\xff\xff\xff\x7fabcd"), "precompiled_charsmap is damaged"),
    "a merge with half a character": (
        bpe("a é", vocab={"a": 0, "é": 1, "aé": 2}, continuing_subword_prefix="#"), "does not begin with '#'"
    ),
    # the library panics on some texts
    "a charsmap that leads outside": (charsmap((16).to_bytes(4, "little") + bytes(range(200, 216))), "charsmap is dam"),
    "a charsmap of no units": (charsmap((3).to_bytes(4, "little") + bytes(3)), "precompiled_charsmap is damaged"),
    "a charsmap that points behind its texts": (charsmap(TOO_LATE), "precompiled_charsmap is damaged"),
    "a charsmap that points into a character": (charsmap(MIDDLE), "precompiled_charsmap is damaged"),
    "repeats in repeats": (split("(a+)+b"), "'(a+)+b' may take forever"),
    "repeats in repeats, in a replacement": (spec(normalizer=replace({"Regex": "(?:a*b?)*c"}, "x")), "may take forev"),
    "pieces of no length": (spec(pre_tokenizer={"type": "FixedLength", "length": 0}), "the fixed length 0"),
    # memory and time without end
    "replacements that grow": (
        spec(normalizer={"type": "Sequence", "normalizers": [replace({"String": "a"}, "a" * 10)] * 12}),
        "1,000,000,000,000 times longer",
    ),
    "a replacement without an end": (spec(normalizer=replace({"String": "a"}, "a" * 10**6)), "a text of 1,000,000"),
    "texts before texts": (steps("normalizer", {"type": "Prepend", "prepend": "a" * 10_000}, 50), "longer"),
    "one long text before texts": (
        spec(normalizer={"type": "Prepend", "prepend": "a" * 10_000}), "normalizer may make a text 10,001 times longer"
    ),
    "many texts before texts": (
        steps("normalizer", {"type": "Prepend", "prepend": "a" * 10_000}, 1000), "normalizer has more than 1,000 values"
    ),
    "bytes of bytes": (steps("normalizer", {"type": "ByteLevel"}, 30), "times longer"),
    "bytes of bytes, in pieces": (steps("pre_tokenizer", BYTES, 25), "its pre_tokenizer may make a text"),
    "spaces and spaces": (steps("pre_tokenizer", METASPACE, 10), "may make a text 1,024 times longer"),
    "Unicode in replacements": (
        steps("normalizer", replace({"String": "a"}, "ﷺ" * 20), {"type": "NFKD"}, replace({"String": " "}, "b" * 40)),
        "its normalizer may make a text 14,400 times longer",
    ),
    "charsmaps that grow": (steps("normalizer", charsmap(trie({"a": "a" * 200}))["normalizer"], 3), "8,000,000 times"),
    "many steps of a normalizer": (steps("normalizer", {"type": "Lowercase"}, 9999), "normalizer has more than 1,000"),
    "many steps of a pre-tokenizer": (
        steps("pre_tokenizer", split("b")["pre_tokenizer"], 5000), "its pre_tokenizer has more than 1,000 values"
    ),
    "steps in steps": (
        steps("normalizer", steps("normalizer", {"type": "Lowercase"}, 30)["normalizer"], 30), "has more than"
    ),
    "many special tokens": (template(["a"] * 2000), "its post_processor has more than 1,000 values"),
    "special tokens without an end": (template(["a"] * 100_000), "post_processor has more than 1,000 values"),
    "a special token of many ids": (template(["a"], [0] * 5000), "its post_processor has more than 1,000 values"),
    "a decoder that grows": (
        steps("decoder", replace({"String": "a"}, "aa"), 6), "its decoder may make a text 64 times longer"
    ),
    "a decoder that writes spaces": (steps("decoder", {"type": "BPEDecoder", "suffix": ""}, 40), "its decoder may"),
    "a decoder of many steps": (steps("decoder", {"type": "Fuse"}, 9999), "its decoder has more than 1,000 values"),
    "a long prefix": (bpe(continuing_subword_prefix="#" * 1000), "its continuing_subword_prefix has 1,000 characters"),
    "a long suffix": (bpe(end_of_word_suffix="#" * 1000), "its end_of_word_suffix has 1,000 characters"),
    "a long token": (words({"a": 0, "b" * 20_000: 1, "[UNK]": 2}), "it has a token of 20,000 characters: bbb"),
    "a charsmap that grows": (charsmap(LONG), "precompiled_charsmap is damaged"),
    "an enormous count": (split("a{1000000}"), "may take forever"),
    "an enormous expression": (split("a|" * 10_000), "20,000 characters"),
    "words without an end": (
        spec(
            model={
                "type": "WordPiece", "vocab": WORDS, "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 10**9,
            }
        ),
        "max_input_chars_per_word = 1,000,000,000",
    ),
    "an enormous id": (words({"a": 0, "[UNK]": 2**32 - 1}), "its largest id is 4,294,967,295, far beyond its 2 entri"),
    "an enormous id of an added token": (
        spec(added_tokens=[{"id": 40_000, "content": "<x>", **TOKEN}]), "largest id is 40,000"
    ),
    # wrong, but taken
    "a prefix of several bytes": (
        bpe("a éb", vocab={"a": 0, "éb": 1, "ab": 2}, continuing_subword_prefix="é"), "is not ASCII"
    ),
    "an added token with another id": (
        spec(added_tokens=[{"id": 7, "content": "<x>", **TOKEN}]), "has the id 7, but the tokenizers library gives it 3"
    ),
    "two tokens with one id": (words({"a": 0, "b": 0, "[UNK]": 1}), "'a' and 'b' have the same id 0"),
    "an added token with the id of a word": (
        spec(added_tokens=[{"id": 1, "content": "<x>", **TOKEN}]), "'b' and '<x>' have the same id 1"
    ),
    "no words": (words({}), "its vocabulary is empty"),
    "ids that are no numbers": (words({"a": "x"}), "the id of 'a' is 'x'"),
    "an id below zero": (words({"a": -1}), "the id of 'a' is -1"),
    # wrong types
    "a list": ([1], "has no model"),
    "no model": ({"version": "1.0"}, "has no model"),
    "a model without a vocabulary": (spec(model={"type": "BPE"}), "not built like"),
    "a vocabulary that is text": (spec(model={"type": "BPE", "vocab": "abc", "merges": []}), "not built like"),
    "a number for a merge": (bpe(1), "the merge 1 is not two pieces"),
    "a merge of three": (bpe("a b ab"), "the merge 'a b ab' is not two pieces"),
    "a merge of an unknown piece": (bpe(["a", "c"]), "needs the piece 'c'"),
    "a model of another kind": (spec(model={"type": "Magic", "vocab": WORDS}), "tokenizers library"),
    "an expression with an open bracket": (split("(a"), "tokenizers library"),
}  # fmt: skip


def write(folder: Path, content: Any) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    content, message = DAMAGED[name]
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        Tokenizer.load(write(tmp_path, content))
    assert "tokenizer.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")  # no panic of Rust either


def test_a_file_nested_too_deep_is_refused(tmp_path: Path) -> None:
    for depth in (300, 100_000):
        path = tmp_path / "tokenizer.json"
        deep = '{"type":"Sequence","normalizers":[' * depth + '{"type":"Lowercase"}' + "]}" * depth
        path.write_text(json.dumps(spec(normalizer="X")).replace('"X"', deep), encoding="utf-8")
        with pytest.raises(UserError, match=r"tokenizer\.json"):
            Tokenizer.load(path)


def test_a_file_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, spec())
    assert Tokenizer.load(path).encode("a") == [0]
    monkeypatch.setattr(safety, "MOST_BYTES", 100)
    with pytest.raises(UserError, match="it has more than"):
        Tokenizer.load(path)


def test_a_panic_on_a_text_is_a_sentence(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write(tmp_path, split("(a|a)*$")))  # not obvious, and the library gives up in time
    assert tokenizer.encode("a") == [0]
    with pytest.raises(UserError, match=r"cannot take this text \(Onig: Regex search error: retry-limit"):
        tokenizer.encode("a" * 200 + " b")
    with pytest.raises(UserError, match="cannot take this text"):
        tokenizer.tokenize("a" * 200 + " b")
    with pytest.raises(UserError, match="cannot take this text"):
        tokenizer.unknown("a" * 200 + " b")


def test_a_panic_on_decoding_is_a_sentence(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write(tmp_path, spec(decoder={"type": "Strip", "content": "a", "start": 0, "stop": 9})))
    with pytest.raises(UserError, match="cannot turn these tokens into text"):
        tokenizer.decode([0])


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupt_is_no_damage(kind: type[BaseException]) -> None:
    with pytest.raises(kind), safety.library("x"):
        raise kind


def test_a_text_that_grows_is_refused_before_it_is_encoded(tmp_path: Path) -> None:
    thirteen = steps("normalizer", replace({"Regex": "x*"}, "y"), 13)  # 8,192 times: between all characters
    tokenizer = Tokenizer.load(write(tmp_path, thirteen))
    began = time.process_time()
    for encode in (tokenizer.encode, tokenizer.tokenize, tokenizer.encode_written):
        with pytest.raises(UserError, match="makes this text more than 50 times longer: take another tokenizer"):
            encode("a text of some length" * 100)
    assert time.process_time() - began < 3


def test_steps_that_may_grow_but_do_not_are_taken(tmp_path: Path) -> None:
    content = steps(
        "normalizer", {"type": "NFKD"}, charsmap(GOOD)["normalizer"], {"type": "Lowercase"}, {"type": "NFKC"}
    )
    content["model"] = {"type": "WordLevel", "vocab": {"fi a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    tokenizer = Tokenizer.load(write(tmp_path, content))
    assert tokenizer._growth > safety.PLAIN_GROWTH
    assert tokenizer.encode("ﬁ A") == [0]
    assert tokenizer.encode("ﷺ" * 9) == [1]


EXPRESSIONS = {
    "GPT-2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Llama 3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    "possessive": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s",
    "capitals": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}",
    "brackets": r"[(a+)+]+|\(a+\)+|[\]\[+*]+|[^]\[(]+|[a-z&&[^x]]+|[[:alpha:]]+",
    "groups": r"(?:ab?c{2,5})+|(?<name>a|b)+?|(a+)?|(?:a+|b{2,}){0,3}|x{,3}|x{|{}",
    "names": r"\p{Han}+|\x{4e00}+|\u4e00+",
}
BOMBS = ("(a+)+", "(a*)*", "(?:a|b+)*", "((a+)b?)+", r"(\w+\s?)*", "(a{2,})+", "(a+){2,}", "(?:(?:a+))+x", "a{2,}+",
         "(?<n>a+)*", "([)]+)+", r"(\)+)+", "a{99999}", "(a{0,99999})", "(a+)?+*", "([]a]+)*")  # fmt: skip


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_well_known_expressions_are_taken(name: str, tmp_path: Path) -> None:
    assert Tokenizer.load(write(tmp_path, split(EXPRESSIONS[name]))).encode("a") == [0]


@pytest.mark.parametrize("pattern", BOMBS)
def test_expressions_that_may_take_forever_are_refused(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="may take forever"):
        Tokenizer.load(write(tmp_path, split(pattern)))


def test_a_good_charsmap_is_taken(tmp_path: Path) -> None:
    content = charsmap(GOOD)
    content["model"] = {"type": "WordLevel", "vocab": {"fiae\u0301": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    tokenizer = Tokenizer.load(write(tmp_path, content))
    assert tokenizer.encode("ﬁAéB") == [0]
    assert tokenizer.encode("x") == [1]


def test_a_charsmap_that_is_taken_never_panics() -> None:
    texts = ["ﬁAéB", "a b A", "\u0301é東京 ÿ\uffff", "".join(map(chr, range(1, 700)))]
    verdicts = []

    @settings(max_examples=400, deadline=None)
    @given(seed=st.integers(0, 2**32))
    def check(seed: int) -> None:
        rng = random.Random(seed)
        data = bytearray(GOOD)
        for _ in range(rng.randint(1, 4)):  # where something stands, so that it matters
            place = rng.choice([at for at, byte in enumerate(GOOD) if byte])
            data[place] = rng.randrange(256)
        try:
            safety._check_charsmap(base64.b64encode(data).decode())
        except ValueError:
            verdicts.append(False)
            return
        verdicts.append(True)
        normalizer = normalizers.Precompiled(bytes(data))
        for text in texts:
            normalizer.normalize_str(text)  # a panic would be no Exception, and end the test

    check()
    assert 20 < sum(verdicts) < len(verdicts) - 20


@pytest.mark.parametrize("kind", ["char", "word", "terms", "bpe", "wordpiece", "bert"])
def test_our_own_files_are_taken(kind: str, tmp_path: Path) -> None:
    corpus = ["The cat sat on the mat.", "Perché? 東京 €"] * 2
    for lowercase in (False, True):
        tokenizer = Tokenizer.train(corpus, TextConfig(kind=kind, vocab=400, lowercase=lowercase))
        path = tmp_path / "tokenizer.json"
        path.write_text(tokenizer.to_json(), encoding="utf-8")
        assert Tokenizer.load(path).fingerprint == tokenizer.fingerprint


def test_files_in_the_style_of_sentencepiece_are_taken(tmp_path: Path) -> None:
    raw = tokenizers.Tokenizer(models.BPE({"<unk>": 0, "▁": 1, "a": 2, "▁a": 3}, [("▁", "a")], unk_token="<unk>"))
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    raw.normalizer = normalizers.Sequence(steps)
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    path = write(tmp_path, json.loads(raw.to_str()))
    tokenizer = Tokenizer.load(path)
    assert tokenizer.encode("a a") == [3, 3]
    assert tokenizer.decode([3, 3]) == "a a"
    old = json.loads(raw.to_str())
    old["model"]["merges"] = ["#version: 0.2", "▁ a"]  # as older releases wrote them
    assert Tokenizer.load(write(tmp_path, old)).encode("a a") == [3, 3]
