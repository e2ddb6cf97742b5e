"""Tokenizer: text <-> ids. Everything it is stands in one tokenizer.json, our own or another library's."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers

from allyouneed.config import TextConfig
from allyouneed.errors import UserError
from allyouneed.text.layout import Layout, Tokens, words_of
from allyouneed.text.safety import check_growth, check_part, library, load, parse
from allyouneed.text.trainers import CHAR, LINE, PIECE, TERMS, WORD, check, cut, train
from allyouneed.text.word_boundaries import find_words

# The library warns on every fork unless this is set; a forked child has lost its threads and must not wait for them.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))

# What special tokens are for -> their usual names, the best first. GPT-2 has one token that starts and ends a text.
NAMES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>"),
    "bos": ("<s>", "[BOS]", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "[EOS]", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
SILENT = ("pad", "bos", "eos", "cls", "sep")  # `decode` leaves them out
INCOMPLETE = "\ufffd"
GROUP = 512
WRITTEN = ("written",)  # in the place of roles: every special token in a text is read as such


class Tokenizer:
    """Text <-> ids.

    With lower(x) = x, or x in lower case if `lowercase` was set:
    bpe: decode(encode(x)) == lower(x), always.
    char, word, wordpiece: the same, with "<unk>" in the place of each unknown unit. A unit of `char` is a character;
    of `word` a word or a punctuation mark, with one space before it, or one white space; `wordpiece` has the units of
    `word`, words of more than 99 characters cut, and knows all whose characters it knows.
    bert: decode(encode(x)) is the words and marks of the normalised text with single spaces between them, and "[UNK]"
    in the place of each unknown one. Normalised: control characters removed, every Chinese character a word, and with
    `lowercase` no upper case and no accents. A mark is one punctuation character; unknown is what has a character that
    is not in the vocabulary, or more than 100.
    terms: does not give the text back. Its units are words and the ends of lines, and decode puts a space between them.

    A tokenizer from elsewhere keeps its ids and its size. Each role (pad, bos, eos, unk, cls, sep, mask) is an id, or
    None if its template does not name one and no token has a usual name of that role. A special token that is typed in
    a text is only text. `template`: what it puts around texts.
    """

    pad: int | None
    bos: int | None
    eos: int | None
    unk: int | None
    cls: int | None
    sep: int | None
    mask: int | None

    def __init__(self, raw: tokenizers.Tokenizer) -> None:
        # Not for the file to decide: we do not truncate, we pad in batches, and a text always has the same ids.
        raw.no_truncation()
        raw.no_padding()
        if isinstance(raw.model, models.BPE):
            raw.model.dropout = None
        self._json: str = raw.to_str(pretty=True)
        self._raw = _ready(raw)
        spec = json.loads(self._json)
        ids: dict[str, int] = raw.get_vocab()
        self.template = Layout.parse(spec["post_processor"])
        self._roles = _find_roles(spec, ids, self.template)
        self.pad, self.bos, self.eos, self.unk, self.cls, self.sep, self.mask = (self._roles[role] for role in NAMES)
        self._silent = {self._roles[role] for role in SILENT}
        self._readers: dict[tuple[str, ...], tokenizers.Tokenizer] = {(): self._raw}
        self.kind = _kind(spec)
        self.prefix = "" if self.template != Layout() else _prefix(spec)
        self._cuttable = _cuttable(spec)
        self._growth = check_part(spec["normalizer"], "normalizer")
        self._decoder = json.dumps(spec["decoder"], ensure_ascii=False)
        self._length = 1 + max(ids.values())

    @staticmethod
    def train(texts: Iterable[str], config: TextConfig) -> Tokenizer:
        """A new tokenizer for these texts, which are read once and not kept."""
        return Tokenizer(train(texts, config))

    @staticmethod
    def check(config: TextConfig) -> None:
        """Raises a UserError for settings that can make no tokenizer, whatever the texts are."""
        if config.path:
            Tokenizer.load(config.path)
        else:
            check(config)

    @staticmethod
    def load(path: str | Path) -> Tokenizer:
        """Any tokenizer.json."""
        return Tokenizer(load(path))

    @staticmethod
    def parse(data: bytes, path: str) -> Tokenizer:
        """The bytes of any tokenizer.json; `path` is for messages."""
        return Tokenizer(parse(data, path))

    def to_json(self) -> str:
        """The text of tokenizer.json, as the Hugging Face libraries read it."""
        return self._json

    @cached_property
    def fingerprint(self) -> str:
        """A name for exactly this tokenizer: the SHA-256 of its JSON."""
        return hashlib.sha256(self._json.encode()).hexdigest()

    def __len__(self) -> int:
        """One more than the largest id: the rows of an embedding. An id between may be without a token."""
        return self._length

    @property
    def knows_all(self) -> bool:
        """Whether no text has an unknown token: every byte is a token, or there is no unknown token."""
        return self.unk is None or "ByteLevel" in self._decoder

    def need(self, role: str, why: str) -> int:
        """The id of a role that a task cannot do without, as in need("eos", "to end a document")."""
        id = self._roles[role]
        if id is None:
            raise UserError(
                f"this tokenizer ({self.kind}) has no {role} token, which is needed {why}: take a tokenizer with "
                f"{' or '.join(NAMES[role][:2])}, see text.kind and text.path"
            )
        return id

    def layout(self, texts: int = 1) -> Layout:
        """How one or two texts are laid out: by the tokenizer's own template if it has one; [CLS] A [SEP] B [SEP] if it
        has these, otherwise A </s> B with nothing around. Two texts need a token between them."""
        own = self.template
        if own.between or (own != Layout() and texts == 1):
            return replace(own, prefix=self.prefix)
        if self.cls is not None and self.sep is not None:
            return Layout((self.cls,), (self.sep,), (self.sep,), self.prefix)
        if texts == 2:
            self.need("eos", "between two texts")
        return Layout(own.start, () if self.eos is None else (self.eos,), own.end, self.prefix)

    def encode(self, text: str, specials: tuple[str, ...] = ()) -> list[int]:
        """The ids of a text, with nothing around. `specials` are roles whose token is read as such where it is typed,
        ("mask",) for instance; every other special token in the text is only text."""
        return self.encode_batch([text], specials)[0]

    def encode_batch(self, texts: Sequence[str], specials: tuple[str, ...] = ()) -> list[list[int]]:
        """The ids of each text, on all cores."""
        return [ids for ids, _ in self._read(texts, specials)]

    def tokenize(
        self, text: str, words: Sequence[tuple[int, int]] | None = None, specials: tuple[str, ...] = ()
    ) -> Tokens:
        """The tokens of `prefix` + text, with their spans in the text and the words they belong to: those of
        `find_words`, or the given ones, (start, end) in characters, in order. A token belongs to the first word that
        it overlaps."""
        return self._tokenize([text], [find_words(text) if words is None else words], specials)[0]

    def tokenize_words(self, several: Sequence[Sequence[str]]) -> list[Tokens]:
        """The tokens of each list of words, between single spaces; the spans are those in " ".join(words)."""
        spans = []
        for words in several:
            starts = accumulate((len(word) + 1 for word in words), initial=0)
            spans.append([(start, start + len(word)) for start, word in zip(starts, words)])
        return self._tokenize([" ".join(words) for words in several], spans, ())

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids. Padding, start, end, [CLS] and [SEP] show nothing; bytes that are no character show as
        U+FFFD."""
        with library("the tokenizer cannot turn these tokens into text"):
            text: str = self._raw.decode([id for id in ids if id not in self._silent], skip_special_tokens=False)
        return text

    @cached_property
    def special_tokens(self) -> list[str]:
        """How its special tokens are written."""
        return [token["content"] for token in json.loads(self._json)["added_tokens"] if token["special"]]

    def encode_written(self, text: str) -> list[int]:
        """The ids of a text that this library has made, in which special tokens are written out."""
        return self.encode(text, WRITTEN)

    def stream(self) -> Stream:
        """The text of ids that come one by one."""
        return Stream(self)

    def token(self, id: int) -> str:
        """One token as a person sees it: its text; `<0xE2>` for a part of a character, `##` where WordPiece continues
        a word, nothing for an id without a token."""
        if not 0 <= id < self._length:
            raise IndexError(f"there is no token {id} in a vocabulary of {len(self)}")
        text = self._raw.id_to_token(id) or ""
        if "ByteLevel" in self._decoder:
            table = _byte_table()
            if all(character in table for character in text):
                raw = bytes(table[character] for character in text).decode("utf-8", "surrogateescape")
                return re.sub("[\udc80-\udcff]", lambda match: f"<0x{ord(match[0]) - 0xDC00:02X}>", raw)
        return text.replace("▁", " ") if "▁" in self._decoder else text

    @cached_property
    def sizes(self) -> np.ndarray:
        """UTF-8 bytes of text of each token; 0 for tokens that show nothing. White space that the tokenizer drops is in
        none of them."""
        texts = ["" if id in self._silent else self._raw.id_to_token(id) or "" for id in range(len(self))]
        table = _byte_table() if "ByteLevel" in self._decoder else {}
        inside = "##" if self.kind == "wordpiece" else ""
        return np.array(
            [len(t) if all(letter in table for letter in t) else len(t.removeprefix(inside).encode()) for t in texts]
        )

    @property
    def line(self) -> int | None:
        """The id of the end of a line, if that is a token."""
        id: int | None = self._raw.token_to_id(LINE)
        return id

    def units(self, text: str, specials: tuple[str, ...] = ()) -> list[tuple[int, str]]:
        """The ids of a text, each with the characters that it stands for."""
        ((ids, spans),) = self._read([text], specials, offsets=True)
        return [(id, text[start:end]) for id, (start, end) in zip(ids, spans)]

    def unknown(self, text: str, specials: tuple[str, ...] = ()) -> list[str]:
        """The different units of a text that become <unk>, in order; a word comes with the space before it."""
        return list(dict.fromkeys(unit for id, unit in self.units(text, specials) if id == self.unk))

    def _tokenize(
        self, texts: Sequence[str], words: Sequence[Sequence[tuple[int, int]]], specials: tuple[str, ...]
    ) -> list[Tokens]:
        read = self._read([self.prefix + text if text else "" for text in texts], specials, offsets=True)
        shift, found = len(self.prefix), []
        for (ids, offsets), word_spans in zip(read, words):
            spans = [(max(0, start - shift), max(0, end - shift)) for start, end in offsets]
            found.append(Tokens(ids, words_of(spans, word_spans), spans))
        return found

    def _read(
        self, texts: Sequence[str], specials: tuple[str, ...] = (), offsets: bool = False
    ) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
        """The ids of each text, and their `offsets` if asked for; a long text is read in parts."""
        parts = [cut(text) if self._cuttable and not specials else [text] for text in texts]
        encodings = self._encodings([part for several in parts for part in several], specials, offsets)
        for several in parts:
            ids: list[int] = []
            spans: list[tuple[int, int]] = []
            at = 0  # where the part begins in the text
            for part in several:
                encoding = next(encodings)
                ids += encoding.ids
                spans += [(at + start, at + end) for start, end in encoding.offsets] if offsets else []
                at += len(part)
            yield ids, spans

    def _encodings(self, parts: list[str], specials: tuple[str, ...], offsets: bool) -> Iterator[tokenizers.Encoding]:
        """In groups, because an encoding takes a hundred times the memory of its ids."""
        raw = self._reader(specials)
        encode = raw.encode_batch if offsets else raw.encode_batch_fast
        for start in range(0, len(parts), GROUP):
            group = parts[start : start + GROUP]
            check_growth(raw, group, self._growth)
            with library("the tokenizer cannot take this text"):
                try:
                    encodings = encode(group, add_special_tokens=False)
                except TypeError:
                    raise UserError(
                        "the text is not valid Unicode (it holds a lone surrogate); save it as UTF-8"
                    ) from None
            yield from encodings

    def _reader(self, specials: tuple[str, ...]) -> tokenizers.Tokenizer:
        """A tokenizer that reads the tokens of these roles in a text: the library does so if they are not special."""
        if specials == WRITTEN and specials not in self._readers:
            self._readers[specials] = tokenizers.Tokenizer.from_str(self._json)
        if specials not in self._readers:
            ids = [self.need(role, "to be read in a text") for role in specials]
            spec = json.loads(self._json)
            added = {token["id"]: token for token in spec["added_tokens"]}
            plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for id in ids:
                known = added.get(id, {"id": id, "content": self._raw.id_to_token(id), **plain})
                added[id] = {**known, "special": False}
            spec["added_tokens"] = [added[id] for id in sorted(added)]
            self._readers[specials] = _ready(tokenizers.Tokenizer.from_str(json.dumps(spec)))
        return self._readers[specials]


class Stream:
    """Ids one by one -> text piece by piece; the pieces together are `decode` of all ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown: list[int] = []  # the ids of the last piece: some decoders treat the first token differently
        self._pending: list[int] = []  # the ids after it

    def add(self, id: int) -> str:
        """The text that this id completes, "" in the middle of a character."""
        self._pending.append(id)
        piece = self._piece()
        if not piece or piece.endswith(INCOMPLETE):
            return ""
        self._shown, self._pending = self._pending, []
        return piece

    def end(self) -> str:
        """What has not been shown yet."""
        piece = self._piece()
        self._shown, self._pending = [], []
        return piece

    def _piece(self) -> str:
        before = self._tokenizer.decode(self._shown)
        return self._tokenizer.decode(self._shown + self._pending)[len(before) :]


def _ready(raw: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """As we use it: a special token in a text is text, and what stands around texts is the layout's business."""
    raw.encode_special_tokens = True
    raw.post_processor = None
    return raw


def _find_roles(spec: dict[str, Any], ids: dict[str, int], template: Layout) -> dict[str, int | None]:
    """By their usual names, but what the template has before and after a text are cls and sep; what it has only before
    a text is bos, or after it eos."""
    found = {role: next((ids[name] for name in names if name in ids), None) for role, names in NAMES.items()}
    model = spec["model"]
    own = model.get("unk_id") if model["type"] == "Unigram" else ids.get(model.get("unk_token") or "")
    if own is not None:
        found["unk"] = own
    if found["unk"] in (found["bos"], found["eos"]):
        found["unk"] = None  # a byte-level tokenizer knows every text; the name is only there to fill a field
    first, last = template.start[:1], template.end[-1:]
    roles = ("cls", "sep") if first and last else ("bos", "eos")
    return found | {role: ids[0] for role, ids in zip(roles, (first, last)) if ids}


def _pattern(spec: dict[str, Any]) -> str | None:
    return ((spec["pre_tokenizer"] or {}).get("pattern") or {}).get("Regex")


def _kind(spec: dict[str, Any]) -> str:
    kind: str = spec["model"]["type"].lower()
    if kind == "wordlevel":
        return {CHAR: "char", TERMS: "terms"}.get(_pattern(spec) or "", "word")
    if kind == "wordpiece" and (spec["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer":
        return "bert"
    return kind


def _prefix(spec: dict[str, Any]) -> str:
    """A space if a word inside a text carries the space before it, so that the first word has to be given one."""
    before = spec["pre_tokenizer"] or {}
    steps = before["pretokenizers"] if before.get("type") == "Sequence" else [before]
    bytelevel = [step for step in steps if step.get("type") == "ByteLevel"]
    spaced = bytelevel and not any(step["add_prefix_space"] for step in bytelevel)
    return " " if spaced or _pattern(spec) in (WORD, PIECE) else ""


def _cuttable(spec: dict[str, Any]) -> bool:
    """Whether the parts of `cut` have the ids of the whole: nothing in the tokenizer looks across their borders."""
    before = spec["pre_tokenizer"] or {}
    bytelevel = before.get("type") == "ByteLevel" and not before["add_prefix_space"] and before["use_regex"]
    local = bytelevel or before.get("type") == "BertPreTokenizer" or _pattern(spec) in (CHAR, WORD, TERMS, PIECE)
    plain = spec["normalizer"] is None or spec["normalizer"]["type"] in ("Lowercase", "BertNormalizer")
    return local and plain and all(token["special"] for token in spec["added_tokens"])


@cache
def _byte_table() -> dict[str, int]:
    """The letters that stand for bytes in byte-level BPE: printable Latin-1 for itself, the others from U+0100 on."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = {letter: ord(letter) for letter in letters if ord(letter) < 256}
    others = (byte for byte in range(256) if chr(byte) not in plain)
    return plain | dict(zip(letters[len(plain) :], others))
