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
import math
import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from allyouneed.errors import UserError, shortened
from allyouneed.exchange.options import reading
from allyouneed.storage.wholefile import read_bytes
from allyouneed.text.safety import MOST_TEXT

LARGEST = 1 << 25  # bytes of a file
LONGEST = 256  # characters of a piece
MOST_PIECES = 1 << 20
MOST_SPLITS = 1 << 26  # the sum of the squares of the lengths of all pieces
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)  # the types of pieces
SPACE = "▁"
EDGE = " "  # on both sides of a piece that the model does not know
TILDE, MARK = "\uff5e", "\1"
FAR = 1000.0  # how far below the worst piece a special token is, so that a text never has it
VARINT, BYTES, SIZES = 0, 2, {1: 8, 5: 4}  # the kinds of fields of a protobuf message; of two their bytes
NUMBER = re.compile(rb"[\x80-\xff]{0,9}[\x00-\x7f]")


class Piece(NamedTuple):
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

    @property
    def cut_at_user(self) -> bool:
        """Whether a text is cut at pieces of the user, so that only its first part may get the space before it."""
        return self.bpe and bool(self.texts(USER))

    def texts(self, *kinds: int) -> list[str]:
        """The pieces of these types."""
        return [piece.text for piece in self.pieces if piece.kind in kinds]


def read_pieces(path: Path) -> Pieces:
    """The model of a file."""
    with reading(path, "a SentencePiece model"):
        return _parse(read_bytes(path, LARGEST), path)


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
    number_pieces([piece.text for piece in pieces], path)
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
        tag, at = _number(data, at)
        number, kind = divmod(tag, 8)
        if kind == VARINT:
            value, at = _number(data, at)
            yield number, value
            continue
        size, at = _number(data, at) if kind == BYTES else (SIZES.get(kind, len(data)), at)
        at += size
        if at > len(data):
            raise ValueError("it ends too early, or has a field of another kind")
        part = data[at - size : at]
        yield number, struct.unpack("<f", part)[0] if SIZES.get(kind) == 4 else part


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A whole number, seven bits per byte, and where it ends."""
    if not (found := NUMBER.match(data, at)):
        raise ValueError("it ends too early, or a number is too long")
    return sum((byte & 0x7F) << 7 * i for i, byte in enumerate(found[0])), found.end()


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
    hidden = {text: EDGE + text + EDGE for text in ids if text not in known and text not in {unk, *specials}}
    names = {hidden.get(text, text): id for text, id in ids.items()}
    if len(names) < len(ids):
        raise UserError(f"the vocabulary beside {model.path} has the same piece with and without spaces around it")
    normal = _normalizer(model)
    spaces = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    before: list[dict[str, Any]] = [spaces] if model.dummy_prefix and model.cut_at_user else []
    if not model.byte_fallback:  # otherwise there is no unknown character
        if not model.bpe:
            unused = next(chr(code) for code in range(0xE000, 0x110000) if chr(code) not in letters)
            normal += [_replace({"String": text}, unused) for text in (unk, *specials) if letters.isdisjoint(text)]
        if any(letters.isdisjoint(text) for text in hidden):
            normal += _mark_unknown(letters)
            before.append(isolate(f"{EDGE}[^ ]+{EDGE}"))
    return {
        "normalizer": {"type": "Sequence", "normalizers": normal},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": before} if before else None,
        "decoder": _decoder(model),
        "model": _bpe(model, known, names, unk) if model.bpe else _unigram(model, known, names, unk),
    }


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _normalizer(model: Pieces) -> list[dict[str, Any]]:
    """The library applies a character map to one character with its marks, and forgets the marks if the character
    alone is in the map. So the text is put into NFKC before. The rules called nmt keep the wide tilde, and make a
    space of a typed ▁."""
    steps: list[dict[str, Any]] = []
    if model.rules.startswith("nmt"):
        steps += [
            _replace({"String": text}, by) for text, by in ((SPACE, " "), ("\r\n", "  "), (MARK, ""), (TILDE, MARK))
        ]
    if "nfkc" in model.rules:
        steps.append({"type": "NFKC"})
    if model.rules.startswith("nmt"):
        steps.append(_replace({"String": MARK}, TILDE))
    if model.charsmap:
        encoded = base64.b64encode(model.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": encoded})
    if model.remove_extra_spaces:
        steps.append(_replace({"Regex": rf"\A +|[ {SPACE}]+\z| +(?= )"}, ""))
    if model.dummy_prefix and not model.cut_at_user:
        steps.append({"type": "Prepend", "prepend": SPACE})
    return [*steps, _replace({"String": " "}, SPACE)]


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
    unknown = f"(?<u>[^{''.join(re.escape(letter) for letter in sorted(letters))}]){{0}}"  # a class with a name
    edges = unknown + r"(?:(?<!\g<u>)(?=\g<u>)|(?<=\g<u>)(?!\g<u>))"
    return [_replace({"Regex": edges}, EDGE)] if len(edges) <= MOST_TEXT else []


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
    whole = any(name.endswith(EDGE) for name in names)
    plain = {text: piece.score for text, piece in known.items() if piece.kind == NORMAL}
    found = [
        (-score, -cut, text[:cut], text[cut:])
        for text, score in plain.items()
        for cut in range(1, len(text))
        if text[:cut] in plain and text[cut:] in plain
    ]
    pairs = [(left, right) for _, _, left, right in sorted(found, key=lambda merge: merge[:2])]
    return {
        "type": "BPE", "unk_token": unk, "fuse_unk": True, "byte_fallback": model.byte_fallback,
        "ignore_merges": whole, "vocab": names, "merges": pairs,
    }  # fmt: skip


def number_pieces(pieces: Sequence[str], where: Path) -> dict[str, int]:
    """Piece -> id."""
    if len(pieces) > MOST_PIECES:
        raise UserError(f"{where}: the tokenizer has {len(pieces):,} tokens; the most is {MOST_PIECES:,}")
    ids: dict[str, int] = {}
    for id, piece in enumerate(pieces):
        if ids.setdefault(piece, id) != id:
            raise UserError(f"{where}: the tokens {ids[piece]:,} and {id:,} are both {shortened(piece)!r}")
    return ids
