"""A SentencePiece model file (.spm, tokenizer.model), and the same tokenizer as the spec of a tokenizer.json.

The file is a protobuf message: the pieces, how they were trained, how a text is normalised. Known differences from
SentencePiece itself:
- Several combining marks after a letter are put in the order of Unicode, and join the letter where they can. A mark
  after a capital letter may be lost if the rules make it a small one.
- If two ways to cut a word have the same score ("aaaa"), the other one may be taken.
- A piece that the user defined is normalised like other text. In bpe, spaces beside it are at the end of a text, and
  a text that begins with it has no space before.
- A text that spells the name of a byte, "<0xE4>", or of a special token in letters that the model does not know is read
  as that, in a unigram model with bytes.
- A text of nothing but control characters that are removed is empty, even if extra spaces are kept.
- A model of more than 9,000 different letters: a run of unknown characters is always the unknown piece.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allyouneed.errors import UserError, shortened
from allyouneed.storage.wholefile import read_bytes
from allyouneed.text import Tokenizer
from allyouneed.text.safety import MOST_TEXT
from allyouneed.text.template import template_spec

LARGEST = 1 << 25  # bytes of a file
LONGEST = 256  # characters of a piece
MOST_PIECES = 1 << 20
MOST_SPLITS = 1 << 26  # the sum of the squares of the lengths of all pieces
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)  # the types of pieces
SPACE = "▁"
BEGIN, END = " ", "  "  # around a piece that the model does not know
TILDE, KEPT = "\uff5e", "\1"
FAR = 1000.0  # how far below the worst piece a special token is, so that a text never has it
VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5  # the kinds of fields of a protobuf message


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class Pieces:
    """A SentencePiece model. `bpe`: pieces are merged; otherwise the best sum of scores is searched (unigram)."""

    path: Path
    pieces: tuple[Piece, ...]
    unk: int
    bpe: bool
    byte_fallback: bool
    rules: str  # the name of the normalisation, "nmt_nfkc" for instance
    charsmap: bytes
    dummy_prefix: bool
    remove_extra_spaces: bool

    @property
    def ids(self) -> dict[str, int]:
        return {piece.text: id for id, piece in enumerate(self.pieces)}

    def texts(self, *kinds: int) -> list[str]:
        """The pieces of these types."""
        return [piece.text for piece in self.pieces if piece.kind in kinds]


def read_pieces(path: Path) -> Pieces:
    """The model of a file. What is no such file, or is damaged, is a UserError."""
    try:
        return _parse(read_bytes(path, LARGEST), path)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is damaged, or no SentencePiece model: {shortened(error)}") from None


def _parse(data: bytes, path: Path) -> Pieces:
    parts: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
    for number, value in _fields(data):
        if number in parts and isinstance(value, bytes):
            parts[number].append(value)
    if not all(parts.values()):
        raise ValueError("a part of it is missing")
    pieces = tuple(_piece(part) for part in parts[1])
    training, normal = (dict(_fields(b"".join(parts[number]))) for number in (2, 3))
    unknown = [id for id, piece in enumerate(pieces) if piece.kind == UNKNOWN]
    if len(unknown) != 1:
        raise ValueError(f"it has {len(unknown)} unknown pieces instead of one")
    if len({piece.text for piece in pieces}) < len(pieces):
        raise ValueError("a piece is there twice")
    if training.get(3, 1) not in (1, 2):
        raise ValueError("its pieces are words or characters; this library reads unigram and bpe")
    if training.get(24, 0) or not normal.get(5, 1):
        raise ValueError("its spaces are not at the beginning of words, which this library does not read")
    rules, charsmap = normal.get(1, b""), normal.get(2, b"")
    if not isinstance(rules, bytes) or not isinstance(charsmap, bytes):
        raise ValueError("its normalisation is no text")
    return Pieces(
        path, pieces, unknown[0], training.get(3, 1) == 2, bool(training.get(35, 0)), rules.decode(), charsmap,
        bool(normal.get(3, 1)), bool(normal.get(4, 1)),
    )  # fmt: skip


def _piece(data: bytes) -> Piece:
    fields = dict(_fields(data))
    text, score, kind = fields.get(1), fields.get(2, 0.0), fields.get(3, NORMAL)
    if not isinstance(text, bytes) or not text:
        raise ValueError("a piece has no text")
    if not isinstance(score, float) or not math.isfinite(score):
        raise ValueError("a score is not a number")
    if kind not in range(NORMAL, BYTE + 1):
        raise ValueError(f"a piece is of the type {kind!r}")
    piece = Piece(text.decode(), score, int(kind))
    if len(piece.text) > LONGEST:
        raise ValueError(f"a piece has more than {LONGEST} characters")
    return piece


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """The fields of a protobuf message: their numbers and values. Nothing is read beyond the end."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind not in (EIGHT, BYTES, FOUR):
            raise ValueError(f"a field is of the kind {kind}")
        size, at = _varint(data, at) if kind == BYTES else (4 if kind == FOUR else 8, at)
        if size > len(data) - at:
            raise ValueError("it ends too early")
        content = data[at : at + size]
        at += size
        yield number, struct.unpack("<f", content)[0] if kind == FOUR else content


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A whole number, seven bits per byte, and the place after it."""
    value = 0
    for i in range(10):
        if at + i >= len(data):
            raise ValueError("it ends too early")
        value |= (data[at + i] & 0x7F) << (7 * i)
        if data[at + i] < 0x80:
            return value, at + i + 1
    raise ValueError("a number is too long")


def to_spec(model: Pieces, ids: Mapping[str, int], unk: str, specials: Collection[str] = ()) -> dict[str, Any]:
    """The spec of a tokenizer.json that gives the ids of `ids`, which are 0, 1, 2... A text never has a piece that the
    model does not know, nor a special one. Exception, as SentencePiece followed by a look into `ids` would have it: a
    run of unknown characters that is such a piece as a whole.

    A piece that the model does not know is named with spaces around it. A normalised text has none: a space is a ▁
    there. If such a piece can be a run of unknown characters, these spaces are put around such runs.
    """
    if sum(len(piece.text) ** 2 for piece in model.pieces) > MOST_SPLITS:
        raise UserError(f"{model.path}: the pieces of the tokenizer are too long")
    known = {piece.text: piece for piece in model.pieces if piece.kind in (NORMAL, USER, BYTE) and piece.text in ids}
    letters = {letter for piece in known.values() if piece.kind != BYTE for letter in piece.text}
    hidden = {text: BEGIN + text + END for text in ids if text not in known and text not in {unk, *specials}}
    names = {hidden.get(text, text): id for text, id in ids.items()}
    if len(names) < len(ids):
        raise UserError(f"the vocabulary beside {model.path} has the same piece with and without spaces around it")
    normal, before = _normalizer(model), _pre_tokenizer(model)
    if not model.byte_fallback:  # otherwise there is no unknown character
        if not model.bpe:
            normal += [
                _replace({"String": text}, _unused(letters)) for text in (unk, *specials) if letters.isdisjoint(text)
            ]
        if any(letters.isdisjoint(text) for text in hidden):
            normal += _mark_unknown(letters)
            before.append(isolate(f"{BEGIN}[^ ]+{END}"))
    return {
        "version": "1.0",
        "normalizer": {"type": "Sequence", "normalizers": normal},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": before} if before else None,
        "post_processor": None,
        "decoder": _decoder(model),
        "model": _bpe(model, known, names, unk) if model.bpe else _unigram(model, known, names, unk),
    }


def _unused(letters: Collection[str]) -> str:
    """A private character that is in no piece."""
    return next(chr(code) for code in range(0xE000, 0x110000) if chr(code) not in letters)


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _normalizer(model: Pieces) -> list[dict[str, Any]]:
    """The library applies a character map to one character with its marks, and forgets the marks if the character
    alone is in the map. So the text is put into NFKC before. The rules called nmt keep the wide tilde, and make a
    space of a typed ▁."""
    steps: list[dict[str, Any]] = []
    if model.rules.startswith("nmt"):
        steps += [
            _replace({"String": text}, by) for text, by in ((SPACE, " "), ("\r\n", "  "), (KEPT, ""), (TILDE, KEPT))
        ]
    if "nfkc" in model.rules:
        steps.append({"type": "NFKC"})
    if model.rules.startswith("nmt"):
        steps.append(_replace({"String": KEPT}, TILDE))
    if model.charsmap:
        encoded = base64.b64encode(model.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": encoded})
    if model.remove_extra_spaces:
        steps.append(_replace({"Regex": rf"\A +|[ {SPACE}]+\z| +(?= )"}, ""))
    if model.dummy_prefix and not _user_merges(model):
        steps.append({"type": "Prepend", "prepend": SPACE})
    return [*steps, _replace({"String": " "}, SPACE)]


def _user_merges(model: Pieces) -> bool:
    """Whether the text is cut at pieces of the user, so that only its first part may get the space before it."""
    return model.bpe and bool(model.texts(USER))


def _pre_tokenizer(model: Pieces) -> list[dict[str, Any]]:
    if model.dummy_prefix and _user_merges(model):
        return [{"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}]
    return []


def isolate(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _decoder(model: Pieces) -> dict[str, Any]:
    steps = [_replace({"String": " "}, ""), _replace({"String": SPACE}, " ")]
    if model.byte_fallback:
        steps.append({"type": "ByteFallback"})
    steps.append({"type": "Fuse"})
    if model.remove_extra_spaces:
        steps.append(_replace({"Regex": r"\A +| +\z"}, ""))
    elif model.dummy_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _mark_unknown(letters: Collection[str]) -> list[dict[str, Any]]:
    """Put spaces around each run of characters that are in no piece. Nothing for more letters than a regular expression
    may have."""
    unknown = f"[^{''.join(re.escape(letter) for letter in sorted(letters))}]"
    named = f"(?<u>{unknown}){{0}}"  # matches nothing, but names the class
    before, after = named + r"(?<!\g<u>)(?=\g<u>)", named + r"(?<=\g<u>)(?!\g<u>)"
    if len(before) > MOST_TEXT:
        return []
    return [_replace({"Regex": before}, BEGIN), _replace({"Regex": after}, END)]


def _unigram(model: Pieces, known: Mapping[str, Piece], names: Mapping[str, int], unk: str) -> dict[str, Any]:
    """A piece of the user has a score that wins, by the formula of SentencePiece."""
    scores = [piece.score for piece in known.values() if piece.kind == NORMAL]
    best, worst = max(scores, default=0.0), min(scores, default=0.0)

    def score(text: str) -> float:
        piece = known.get(text)
        if piece and piece.kind == USER:
            return len(text.encode()) * best - 0.1
        return piece.score if piece and piece.kind == NORMAL else worst - FAR

    vocab = [(text, score(text)) for text in sorted(names, key=names.__getitem__)]
    return {"type": "Unigram", "unk_id": names[unk], "vocab": vocab, "byte_fallback": model.byte_fallback}


def _bpe(model: Pieces, known: Mapping[str, Piece], names: Mapping[str, int], unk: str) -> dict[str, Any]:
    """The pair with the best union is merged first. So the merges are all pairs with a known union, by its score; of
    equal ones the longest left part is first, because a run of spaces grows from its left end. A piece with spaces
    around needs none: `ignore_merges` finds the whole of a part of the text."""
    whole = any(name.endswith(END) for name in names)
    plain = {text: piece.score for text, piece in known.items() if piece.kind == NORMAL}
    found = [
        (-score, -cut, text[:cut], text[cut:])
        for text, score in plain.items()
        for cut in range(1, len(text))
        if text[:cut] in plain and text[cut:] in plain
    ]
    pairs = [(left, right) for _, _, left, right in sorted(found, key=lambda merge: merge[:2])]
    return {
        "type": "BPE", "dropout": None, "unk_token": unk, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": model.byte_fallback, "ignore_merges": whole,
        "vocab": names, "merges": pairs,
    }  # fmt: skip


def scored_tokenizer(
    pieces: Sequence[str],
    scores: Sequence[float],
    kinds: Sequence[int],
    where: str,
    start: int | None = None,
    end: int | None = None,
    space: bool = True,
) -> Tokenizer:
    """The tokenizer of a BPE model of SentencePiece, of which each piece has a score and a kind.

    Of all neighbours whose union is a piece, the union with the best score is made first, the leftmost one of equals.
    `start` and `end` are ids around a text; `space`: one is put before it. `where` is for messages."""
    number_pieces(pieces, where)
    if not len(pieces) == len(scores) == len(kinds) or not all(map(math.isfinite, scores)) or UNKNOWN not in kinds:
        raise UserError(
            f"{where}: the tokenizer needs one score and one kind for each of its {len(pieces):,} pieces, and an "
            "unknown one"
        )
    model = Pieces(
        Path(where), tuple(map(Piece, pieces, scores, kinds)), list(kinds).index(UNKNOWN), bpe=True, byte_fallback=True,
        rules="", charsmap=b"", dummy_prefix=space, remove_extra_spaces=False,
    )  # fmt: skip
    spec = to_spec(model, model.ids, pieces[model.unk], model.texts(CONTROL, UNKNOWN))
    return finish_tokenizer(spec, pieces, kinds, start, end, where)


def number_pieces(pieces: Sequence[str], where: str) -> dict[str, int]:
    """Piece -> id."""
    if len(pieces) > MOST_PIECES:
        raise UserError(f"{where}: the tokenizer has {len(pieces):,} tokens; the most is {MOST_PIECES:,}")
    ids: dict[str, int] = {}
    for id, piece in enumerate(pieces):
        if ids.setdefault(piece, id) != id:
            raise UserError(f"{where}: the tokens {ids[piece]:,} and {id:,} are both {shortened(piece)!r}")
    return ids


def finish_tokenizer(
    spec: dict[str, Any], pieces: Sequence[str], kinds: Sequence[int], start: int | None, end: int | None, where: str
) -> Tokenizer:
    """The tokenizer.json of `spec` with special tokens and what stands around a text."""
    around = {pieces[id]: id for id in (start, end) if id is not None}
    special = {id for id, kind in enumerate(kinds) if kind in (UNKNOWN, CONTROL)} | set(around.values())
    spec["added_tokens"] = [
        added_token(piece, id, id in special) for id, piece in enumerate(pieces) if id in special or kinds[id] == USER
    ]
    first, last = ([] if id is None else [pieces[id]] for id in (start, end))
    spec["post_processor"] = surround(first, last, around)
    return Tokenizer.parse(json.dumps({"version": "1.0", **spec}).encode(), f"the tokenizer of {where}")


def added_token(text: str, id: int, special: bool, lstrip: bool = False) -> dict[str, Any]:
    return {
        "id": id, "content": text, "single_word": False, "lstrip": lstrip, "rstrip": False, "normalized": False,
        "special": special,
    }  # fmt: skip


def surround(start: list[str], end: list[str], ids: Mapping[str, int]) -> dict[str, Any] | None:
    """The post-processor that puts these tokens around each text."""
    text = [*start, "$A", *end]
    return template_spec(text, [*text, *start, "$B", *end], ids) if start or end else None
