"""Tokenizer: text <-> ids. All it is stands in one tokenizer.json, its own or another library's."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

from allyouneed.config import TextConfig
from allyouneed.errors import UserError
from allyouneed.text.trainers import CHAR, LINE, PIECE, TERMS, WORD, check, cut, train

# The library warns on every fork unless this is set; a forked child has lost its threads and must not wait for them.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))

# What others call the four; the first name is ours. GPT-2 has one token for three of them.
NAMES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>"),
    "bos": ("<s>", "[CLS]", "[BOS]", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "[SEP]", "[EOS]", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>", "<|endoftext|>"),
}
INCOMPLETE = "\ufffd"
GROUP = 512


class Tokenizer:
    """Text <-> ids.

    With lower(x) = x, or x in lower case where `lowercase` was set:
    bpe: decode(encode(x)) == lower(x), always.
    char, word, wordpiece: the same, with "<unk>" in the place of each unit that is not known. A unit of `char` is a
    character; of `word` a word or a punctuation mark, with one space before it, or one white space; `wordpiece` has
    the units of `word`, words of more than 99 characters cut, and knows all whose characters it knows.
    terms: does not give the text back. Its units are words and the ends of lines, and decode puts a space between them.
    """

    pad: int
    bos: int
    eos: int
    unk: int

    def __init__(self, raw: tokenizers.Tokenizer) -> None:
        # None of these is the business of the file: we never truncate, we pad in batches, and text is only text.
        raw.no_truncation()
        raw.no_padding()
        raw.encode_special_tokens = True
        names = _special_names(raw)
        raw.add_special_tokens([name for name in names.values() if raw.token_to_id(name) is None])
        ids: dict[str, int] = raw.get_vocab()
        if len(set(ids.values())) < len(ids):
            raise UserError("special tokens cannot be added to this tokenizer, because its ids have gaps")
        self.pad, self.bos, self.eos, self.unk = (ids[names[role]] for role in NAMES)
        self._silent = {self.pad, self.bos, self.eos}
        self._raw = raw
        self._json: str = raw.to_str(pretty=True)
        spec = json.loads(self._json)
        self.kind = _kind(spec)
        self._cuttable = _cuttable(spec)
        self._decoder = json.dumps(spec["decoder"], ensure_ascii=False)
        self._length = 1 + max(ids.values())

    @staticmethod
    def train(texts: Iterable[str], config: TextConfig, spaced: bool = False) -> Tokenizer:
        """A new tokenizer for these texts, which are read once and not kept. `spaced`: their words stand between single
        spaces, and each is one token."""
        return Tokenizer(train(texts, config, spaced))

    @staticmethod
    def check(config: TextConfig) -> None:
        """Complains of settings that can make no tokenizer, whatever the texts are."""
        if config.path:
            Tokenizer.load(config.path)
        else:
            check(config)

    @staticmethod
    def load(path: str | Path) -> Tokenizer:
        """Any tokenizer.json. Start, end, padding and unknown go by their usual names; those missing are added."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UserError(f"there is no tokenizer file {path}") from None
        except OSError as error:
            raise UserError(f"the tokenizer file {path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UserError(f"{path} is not a tokenizer.json: it is not UTF-8 text") from None
        return _parse(text, str(path))

    @staticmethod
    def from_json(text: str) -> Tokenizer:
        """The inverse of `to_json`."""
        return _parse(text, "the given text")

    def to_json(self) -> str:
        """The text of tokenizer.json, as the Hugging Face libraries read it."""
        return self._json

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json."""
        Path(path).write_text(self._json, encoding="utf-8", newline="\n")

    @cached_property
    def fingerprint(self) -> str:
        """A name for exactly this tokenizer: the SHA-256 of its JSON."""
        return hashlib.sha256(self._json.encode()).hexdigest()

    def __len__(self) -> int:
        return self._length

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without start or end."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, on all cores."""
        parts = [self._parts(text) for text in texts]
        encodings = self._encodings([part for several in parts for part in several])
        result = []
        for several in parts:
            ids = next(encodings).ids
            for _ in several[1:]:
                ids += next(encodings).ids
            result.append(ids)
        return result

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids. Padding, start and end show nothing; bytes that are no character show as U+FFFD."""
        return self._raw.decode([id for id in ids if id not in self._silent], skip_special_tokens=False)

    def stream(self) -> Stream:
        """The text of ids that come one by one."""
        return Stream(self)

    def token(self, id: int) -> str:
        """One token as a person sees it: its text; `<0xE2>` for a part of a character, `##` where WordPiece goes on."""
        text = self._raw.id_to_token(id)
        if text is None:
            raise IndexError(f"there is no token {id} in a vocabulary of {len(self)}")
        if "ByteLevel" in self._decoder:
            table = _byte_table()
            if all(character in table for character in text):
                raw = bytes(table[character] for character in text).decode("utf-8", "surrogateescape")
                return re.sub("[\udc80-\udcff]", lambda match: f"<0x{ord(match[0]) - 0xDC00:02X}>", raw)
        return text.replace("▁", " ") if "▁" in self._decoder else text

    @property
    def line(self) -> int | None:
        """The id of the end of a line, where that is a token."""
        id: int | None = self._raw.token_to_id(LINE)
        return id

    def unknown(self, text: str) -> list[str]:
        """The different units of a text that become <unk>, in order; a word comes with the space before it."""
        parts = self._parts(text)
        found: dict[str, None] = {}
        for part, encoding in zip(parts, self._raw.encode_batch(parts, add_special_tokens=False)):
            for id, (start, end) in zip(encoding.ids, encoding.offsets):
                if id == self.unk:
                    found[part[start:end]] = None
        return list(found)

    def _encodings(self, parts: list[str]) -> Iterator[tokenizers.Encoding]:
        """In groups, because an encoding takes a hundred times the memory of its ids."""
        for start in range(0, len(parts), GROUP):
            try:
                encodings = self._raw.encode_batch_fast(parts[start : start + GROUP], add_special_tokens=False)
            except TypeError:
                raise UserError("the text is not valid Unicode (it holds a lone surrogate); save it as UTF-8") from None
            except Exception as error:  # the library raises nothing more precise
                raise UserError(f"the tokenizer cannot take this text: {error}") from None
            yield from encodings

    def _parts(self, text: str) -> list[str]:
        return cut(text) if self._cuttable else [text]


class Stream:
    """Ids one by one -> text piece by piece; the pieces together are `decode` of all ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown: list[int] = []  # the ids of the last piece: some decoders treat the first token in another way
        self._held: list[int] = []

    def add(self, id: int) -> str:
        """The text that this id completes, "" in the middle of a character."""
        self._held.append(id)
        piece = self._piece()
        if not piece or piece.endswith(INCOMPLETE):
            return ""
        self._shown, self._held = self._held, []
        return piece

    def end(self) -> str:
        """What was held back."""
        piece = self._piece()
        self._shown, self._held = [], []
        return piece

    def _piece(self) -> str:
        before = self._tokenizer.decode(self._shown)
        return self._tokenizer.decode(self._shown + self._held)[len(before) :]


def _parse(text: str, where: str) -> Tokenizer:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not a tokenizer.json: it is not JSON ({error})") from None
    try:
        raw = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more precise
        raise UserError(f"{where} is not a tokenizer.json of the tokenizers library ({error})") from None
    return Tokenizer(raw)


def _special_names(raw: tokenizers.Tokenizer) -> dict[str, str]:
    """Our four roles -> the token that plays each, which may not exist yet."""
    own = getattr(raw.model, "unk_token", None)
    known = {**NAMES, "unk": ((own,) if own else ()) + NAMES["unk"]}
    return {
        role: next((name for name in names if raw.token_to_id(name) is not None), NAMES[role][0])
        for role, names in known.items()
    }


def _pattern(spec: dict[str, Any]) -> str | None:
    return ((spec["pre_tokenizer"] or {}).get("pattern") or {}).get("Regex")


def _kind(spec: dict[str, Any]) -> str:
    kind: str = spec["model"]["type"].lower()
    if kind == "wordlevel":
        return {CHAR: "char", TERMS: "terms"}.get(_pattern(spec) or "", "word")
    return kind


def _cuttable(spec: dict[str, Any]) -> bool:
    """Whether the parts of `cut` have the ids of the whole: nothing in the tokenizer looks across their borders."""
    before = spec["pre_tokenizer"] or {}
    bytelevel = before.get("type") == "ByteLevel" and not before["add_prefix_space"] and before["use_regex"]
    local = bytelevel or _pattern(spec) in (CHAR, WORD, TERMS, PIECE)
    plain = spec["normalizer"] is None or spec["normalizer"]["type"] == "Lowercase"
    return local and plain and all(token["special"] for token in spec["added_tokens"])


@cache
def _byte_table() -> dict[str, int]:
    """The letters that stand for bytes in byte-level BPE: printable Latin-1 for itself, the others from U+0100 on."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = {letter: ord(letter) for letter in letters if ord(letter) < 256}
    others = (byte for byte in range(256) if chr(byte) not in plain)
    return plain | dict(zip(letters[len(plain) :], others))
