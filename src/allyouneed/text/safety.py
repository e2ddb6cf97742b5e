"""Whether a tokenizer.json may be given to the tokenizers library.

The library trusts its file: a merge without a result, a damaged character map or a regular expression that explodes
ends in a Rust panic, an aborted process, or gigabytes of memory. So a file is checked before it is loaded, and what the
library still raises becomes a sentence.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from allyouneed.errors import UserError
from allyouneed.storage.wholefile import read_bytes

MOST_BYTES = 256 << 20  # of a file
MOST_ID = 16_000_000
MOST_TEXT = 10_000  # characters of a string outside the vocabulary, a regular expression for one
MOST_REPEATS = 10_000  # of a regular expression: a{10000}
MOST_GROWTH = 10_000  # how many times longer a normalizer may make a text, whatever the text is
PLAIN_GROWTH = 50  # how many times longer it may make the texts that it gets; a pre-tokenizer or decoder, any text
MOST_NORMAL = 200_000  # characters that a normalizer may make at once while its growth is measured
MOST_INSIDE = 1000  # values in a normalizer, pre-tokenizer, post-processor or decoder: some hundreds of steps
MOST_AFFIX = 100  # characters before or after the pieces of a word
MOST_WORD = 10_000  # characters; WordPiece takes quadratic time for a word
MOST_PIECE = 256  # bytes that a character map may put in the place of a character

# How many times longer a step of a tokenizer makes a text at most; those with texts of their own are in `_growth`.
GROWTH = {"NFC": 4.0, "NFD": 4.0, "NFKC": 18.0, "NFKD": 18.0, "BertNormalizer": 4.0, "ByteLevel": 4.0, "Metaspace": 2.0,
          "WordPiece": 2.0, "BPEDecoder": 2.0, "CTC": 2.0}  # fmt: skip


# Of a regular expression: an escape; a class without classes inside; a repeat, the start of a group, or a character.
_ESCAPE = re.compile(r"\\(?:[pPxkgu](?:\{[^}]*\}|<[^>]*>)|.)", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?[^\[\]]*\]")
_PART = re.compile(r"[*+][?+]?|\{(?:[0-9]+,?[0-9]*|,[0-9]+)\}\??|\(\??|.", re.DOTALL)


@contextmanager
def library(doing: str) -> Iterator[None]:
    """What the library raises becomes a UserError. A Rust panic is a BaseException but no Exception."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, UserError):
        raise
    except BaseException as error:
        raise UserError(f"{doing} ({str(error).partition(chr(10))[0]})") from None


def load(path: str | Path) -> tokenizers.Tokenizer:
    """The tokenizer of a file."""
    try:
        data = read_bytes(path, MOST_BYTES)
    except FileNotFoundError:
        raise UserError(f"there is no tokenizer file {path}") from None
    except OSError as error:
        raise UserError(f"the tokenizer file {path} cannot be read: {error.strerror}") from None
    return parse(data, str(path))


def parse(data: bytes, path: str) -> tokenizers.Tokenizer:
    """The tokenizer of the bytes of a file; `path` is for messages. Raises a UserError if it is none, or if it is not
    safe to load."""
    try:
        text = data.decode()
        spec = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a tokenizer.json: it is not JSON in UTF-8 ({error})") from None
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise UserError(f"{path} is not a tokenizer.json of the tokenizers library: it has no model")
    try:
        _check_vocabulary(spec["model"], spec.get("added_tokens") or [])
        _check_merges(spec["model"])
        for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
            grown = check_part(spec.get(part), part)
            if grown > (MOST_GROWTH if part == "normalizer" else PLAIN_GROWTH):
                raise ValueError(f"its {part} may make a text {min(grown, 1e15):,.0f} times longer")
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}; take another copy of it") from None
    except (TypeError, KeyError, AttributeError, IndexError, RecursionError):
        raise UserError(f"{path} is not built like a tokenizer.json of the tokenizers library") from None
    with library(f"{path} is not a tokenizer.json of the tokenizers library"):
        raw = tokenizers.Tokenizer.from_str(text)
    for token in spec.get("added_tokens") or []:
        if (id := raw.token_to_id(token["content"])) != token["id"]:  # the library counts added tokens by itself
            raise UserError(
                f"the added token {token['content']!r} of {path} has the id {token['id']}, but the tokenizers library "
                f"gives it {id}: number the added tokens from the size of the vocabulary on"
            )
    return raw


def _check_vocabulary(model: dict[str, Any], added: list[dict[str, Any]]) -> None:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # Unigram: pieces with their scores
        if not all(isinstance(piece, str) and isinstance(score, int | float) for piece, score in vocabulary):
            raise ValueError("its vocabulary is not a list of pieces with scores")
        vocabulary = {piece: id for id, (piece, _) in enumerate(vocabulary)}
    entries = vocabulary | {token["content"]: token["id"] for token in added}
    if not entries:
        raise ValueError("its vocabulary is empty")
    owners: dict[int, str] = {}
    for token, id in entries.items():
        if type(id) is not int or id < 0 or not isinstance(token, str):
            raise ValueError(f"the id of {token!r} is {id!r}; ids are whole numbers from 0 on")
        if len(token) > MOST_TEXT:
            raise ValueError(f"it has a token of {len(token):,} characters: {token[:20]}…")
        if owners.setdefault(id, token) != token:
            raise ValueError(f"{owners[id]!r} and {token!r} have the same id {id}")
    largest = max(owners)
    if largest > min(4 * len(entries) + 1000, MOST_ID):
        raise ValueError(f"its largest id is {largest:,}, far beyond its {len(entries):,} entries")
    for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
        if len(model.get(affix) or "") > MOST_AFFIX:
            raise ValueError(f"its {affix} has {len(model[affix]):,} characters, and the most is {MOST_AFFIX}")
    longest = model.get("max_input_chars_per_word") or 0
    if longest > MOST_WORD:
        raise ValueError(f"max_input_chars_per_word = {longest:,} takes too long; the most is {MOST_WORD:,}")


def _check_merges(model: dict[str, Any]) -> None:
    """Each merge names two pieces of the vocabulary, and their union is one."""
    vocabulary = model["vocab"]
    prefix = model.get("continuing_subword_prefix") or ""
    if "merges" in model and not prefix.isascii():
        raise ValueError(f"continuing_subword_prefix = {prefix!r} is not ASCII")
    for merge in model.get("merges") or []:
        if isinstance(merge, str) and merge.startswith("#version"):
            continue
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(piece, str) for piece in pair):
            raise ValueError(f"the merge {merge!r} is not two pieces")
        first, second = pair
        if not second.startswith(prefix):
            raise ValueError(f"the second piece of the merge {merge!r} does not begin with {prefix!r}")
        for piece in (first, second, first + second[len(prefix) :]):
            if piece not in vocabulary:
                raise ValueError(f"the merge {merge!r} needs the piece {piece!r}, which is not in its vocabulary")


def check_part(part: Any, name: str) -> float:
    """A normalizer, pre-tokenizer, post-processor or decoder, with all that is inside. Returns how many times longer it
    may make a text."""
    growth = 1.0
    for count, inner in enumerate(_inside(part)):
        if count > MOST_INSIDE:
            raise ValueError(f"its {name} has more than {MOST_INSIDE:,} values")
        if isinstance(inner, str) and len(inner) > MOST_TEXT:
            raise ValueError(f"it holds a text of {len(inner):,} characters: {inner[:20]}…")
        if not isinstance(inner, dict):
            continue
        if isinstance(inner.get("Regex"), str):
            _check_regex(inner["Regex"])
        if inner.get("type") == "FixedLength" and not inner["length"] > 0:
            raise ValueError(f"pieces of the fixed length {inner['length']} cannot be")
        growth *= _growth(inner)
    return growth


def _inside(part: Any) -> Iterator[Any]:
    """Everything in a part, itself included, except a character map, which may be long."""
    yield part
    if isinstance(part, dict):
        part = [value for key, value in part.items() if key != "precompiled_charsmap"]
    for value in part if isinstance(part, list) else ():
        yield from _inside(value)


def _growth(step: dict[str, Any]) -> float:
    """How many times longer a step may make a text of one character or more."""
    kind = step.get("type")
    if kind == "Replace":
        text, made = step["pattern"].get("String"), len(step["content"])
        return max(1.0, made / len(text)) if text else 1.0 + made  # an expression may match nothing, between characters
    if kind == "Prepend":
        return 1.0 + len(step["prepend"])
    if kind == "Precompiled":
        return max(1.0, _check_charsmap(step.get("precompiled_charsmap")))
    return GROWTH.get(str(kind), 1.0)


def check_growth(raw: tokenizers.Tokenizer, texts: Iterable[str], growth: float) -> None:
    """Before texts are encoded. What a normalizer does to ordinary texts is far from what it may do to some; where that
    is much, these texts are measured, a little at a time."""
    if growth <= PLAIN_GROWTH:
        return
    size = max(1, int(MOST_NORMAL / growth))
    for text in texts:
        made = 0
        for start in range(0, len(text), size):
            with library("the tokenizer cannot take this text"):
                made += len(raw.normalizer.normalize_str(text[start : start + size]))
            if made > PLAIN_GROWTH * min(start + size, len(text)):
                raise UserError(
                    f"the tokenizer makes this text more than {PLAIN_GROWTH} times longer: take another tokenizer"
                )


def _check_regex(pattern: str) -> None:
    """Refuses repeats without end inside such repeats, (a+)+ or (a*b?)*, and enormous counts: their time explodes."""
    plain, found = _ESCAPE.sub("a", pattern), 1  # an escape or a class of characters is like one letter
    while found:
        plain, found = _CLASS.subn("a", plain)
    groups = [False]  # of each open group: is there an endless repeat inside?
    endless = False  # the same of what stands directly before
    for part in _PART.findall(plain):
        if part[0] in "*+" or (part[0] == "{" and len(part) > 1):
            unbounded = part[0] in "*+" or part.rstrip("?").endswith(",}")
            if max(map(int, re.findall(r"[0-9]+", part)), default=0) > MOST_REPEATS or (unbounded and endless):
                raise ValueError(f"its regular expression {pattern[:60]!r} may take forever on some texts")
            endless = endless or unbounded
            groups[-1] = groups[-1] or endless
        elif part[0] == "(":
            groups.append(False)
            endless = False
        elif part == ")" and len(groups) > 1:
            endless = groups.pop()
            groups[-1] = groups[-1] or endless
        elif part != "?":
            endless = False


@lru_cache(maxsize=4)  # a tokenizer is checked, and then asked how much it grows
def _check_charsmap(text: Any) -> int:
    """How many characters the longest text of a character map has."""
    try:
        return _longest_text(base64.b64decode(text, validate=True))
    except (ValueError, TypeError, IndexError):  # numpy looks at the size of an array, which the library does not
        raise ValueError("its precompiled_charsmap is damaged") from None


def _longest_text(data: bytes) -> int:
    """The character map of SentencePiece: a trie in a double array, and the texts that its leaves point at.

    The unit at index p has a label (the byte that leads to it) and an offset: its child by the byte c is at
    p ^ offset ^ c, if the label there is c; a leaf, at p ^ offset, holds the offset of a text, which ends with a zero.
    All that can be reached is followed; a ValueError or an IndexError if some of it is outside.
    """
    size = int.from_bytes(data[:4], "little")
    if size < 4 or size % 4:
        raise ValueError("there is no array")
    units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64)
    texts = np.frombuffer(data, np.uint8, offset=4 + size)
    texts.tobytes().decode()  # is it text?
    offsets = (units >> 10) << ((units & 0x200) >> 6)
    labels = units & 0x800000FF
    letters = np.arange(1, 256)
    seen = np.zeros(len(units), dtype=bool)
    bases, starts = offsets[:1], []
    while len(bases):
        children = bases[:, None] ^ letters  # any byte may come next
        children = np.unique(children[labels[children] == letters])
        children = children[~seen[children]]
        seen[children] = True
        bases = children ^ offsets[children]
        starts.append(units[bases[(units[children] & 0x100) > 0]] & 0x7FFFFFFF)
    begins = np.concatenate(starts)
    inside = np.append(texts, 0)[begins] & 0xC0 == 0x80  # the middle of a character
    ends = np.append(np.flatnonzero(texts == 0), len(texts))
    stops = ends[np.searchsorted(ends, begins)]
    if inside.any() or (stops - begins).max(initial=0) > MOST_PIECE:
        raise ValueError("a text is damaged, or too long")
    characters = np.append(0, np.cumsum(texts & 0xC0 != 0x80))  # up to each byte
    return int((characters[stops] - characters[begins]).max(initial=0))
