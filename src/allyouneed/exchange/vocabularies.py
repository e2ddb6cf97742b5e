"""Tokenizers of other libraries, from the files that were usual before tokenizer.json.

Known differences from the transformers library, besides those of `sentencepieces`:
- llama: a text that begins with a space keeps it, as SentencePiece has it; transformers 5 drops it.
- marian: a language code as ">>de<<" is one token anywhere in a text, not only at its beginning; an unknown code is
  read as text, not as <unk>.
- marian: a piece of an .spm that is not in vocab.json is left out. A text that has it is cut in another way, where
  transformers has <unk>.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from allyouneed.errors import UserError, shortened
from allyouneed.exchange.options import Options, read_json, read_text
from allyouneed.exchange.sentencepieces import (
    CONTROL,
    UNKNOWN,
    USER,
    Piece,
    Pieces,
    number_pieces,
    read_pieces,
    to_spec,
)
from allyouneed.text import Tokenizer
from allyouneed.text.layout import post_processor
from allyouneed.text.tokenizer import NAMES as ROLES

CONFIG = "tokenizer_config.json"
# Options of tokenizer_config.json, and what tokenizer.json calls them.
BERT_FLAGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
BYTE_FLAGS = {"add_prefix_space": "add_prefix_space"}
Spec = dict[str, Any]


def read_tokenizers(folder: Path, kind: str) -> dict[str, Tokenizer]:
    """The tokenizers of a folder, by the names of their files in a run; `kind` is the model_type of config.json.
    A tokenizer.json is preferred to all other files."""
    config = Options(tokenizer_config(folder), where=CONFIG)
    if os.path.isfile(folder / "tokenizer.json"):
        return {"tokenizer.json": _corrected(Tokenizer.load(folder / "tokenizer.json"), folder, config)}
    needed, read = KINDS.get(kind, ((), None))
    missing = [name for name in needed if not os.path.isfile(folder / name)]
    if read is None or missing:
        also = f", and of the files {', '.join(needed)} it has no {', '.join(missing)}" if missing else ""
        raise UserError(f"{folder} has no tokenizer.json{also}: a model of type '{shortened(kind)}' needs a tokenizer")
    return read(folder, config)


def _corrected(tokenizer: Tokenizer, folder: Path, config: Options) -> Tokenizer:
    """A tokenizer.json with the settings of tokenizer_config.json, which win in transformers."""
    spec = json.loads(tokenizer.to_json())
    normal, before = spec["normalizer"] or {}, spec["pre_tokenizer"] or {}
    changed = False
    for part, kind, names in ((normal, "BertNormalizer", BERT_FLAGS), (before, "ByteLevel", BYTE_FLAGS)):
        for theirs, ours in names.items() if part.get("type") == kind else ():
            if (value := config.take(theirs, None, bool)) is not None and part[ours] != value:
                part[ours], changed = value, True
    if not changed:
        return tokenizer
    return Tokenizer.parse(json.dumps(spec).encode(), str(folder / "tokenizer.json"))


def _bert(folder: Path, config: Options) -> dict[str, Tokenizer]:
    ids = {line.rstrip(): id for id, line in enumerate(_rows(folder / "vocab.txt"))}
    names = {role: _name(config, role, f"[{role.upper()}]") for role in ("unk", "cls", "sep", "pad", "mask")}
    cls, sep = names["cls"], names["sep"]
    _need(ids, [names["unk"], cls, sep], folder / "vocab.txt")
    spec = {
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "lowercase": config.take("do_lower_case", True, bool),
            "handle_chinese_chars": config.take("tokenize_chinese_chars", True, bool),
            "strip_accents": config.take("strip_accents", None, bool),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": post_processor([cls], [sep], [sep], ids),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": names["unk"], "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": ids,
        },
    }  # fmt: skip
    return {"tokenizer.json": _build(spec, folder / "vocab.txt", names.values(), config=config)}


def _gpt2(folder: Path, config: Options) -> dict[str, Tokenizer]:
    end = "<|endoftext|>"
    names = [name for role in ROLES if (name := _name(config, role, end if role in ("unk", "bos", "eos") else ""))]
    spec = _byte_level(folder, config)
    if config.take("add_bos_token", False, bool):
        bos = _name(config, "bos", end)
        _need(spec["model"]["vocab"], [bos], folder / "vocab.json")
        spec["post_processor"] = surround([bos], [], spec["model"]["vocab"])
    return {"tokenizer.json": _build(spec, folder / "vocab.json", names, config=config)}


def _roberta(folder: Path, config: Options) -> dict[str, Tokenizer]:
    usual = {"cls": "<s>", "bos": "<s>", "sep": "</s>", "eos": "</s>"}
    names = {role: _name(config, role, usual.get(role, f"<{role}>")) for role in ROLES}
    spec = _byte_level(folder, config)
    ids, cls, sep = spec["model"]["vocab"], names["cls"], names["sep"]
    _need(ids, [cls, sep], folder / "vocab.json")
    spec["post_processor"] = post_processor([cls], [sep, sep], [sep], ids)
    return {"tokenizer.json": _build(spec, folder / "vocab.json", names.values(), config=config, mask=names["mask"])}


def _byte_level(folder: Path, config: Options) -> Spec:
    """Byte-level BPE from vocab.json and merges.txt."""
    prefix = config.take("add_prefix_space", False, bool)
    spaces = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True}
    merges = [line.rstrip("\r") for line in _rows(folder / "merges.txt") if line.strip()]
    model = {"type": "BPE", "vocab": _ids(folder / "vocab.json"), "merges": merges}
    return {"pre_tokenizer": spaces, "decoder": spaces, "model": model}


def _llama(folder: Path, config: Options) -> dict[str, Tokenizer]:
    model = read_pieces(folder / "tokenizer.model")
    ids = model.ids
    specials = model.texts(CONTROL, UNKNOWN)
    spec = to_spec(model, ids, model.pieces[model.unk].text, specials)
    start = [_name(config, "bos", "<s>")] if config.take("add_bos_token", True, bool) else []
    end = [_name(config, "eos", "</s>")] if config.take("add_eos_token", False, bool) else []
    _need(ids, [*start, *end], model.path)
    spec["post_processor"] = surround(start, end, ids)
    specials += [_name(config, role, "") for role in ROLES]
    plain = model.texts(USER) if model.bpe else []
    return {"tokenizer.json": _build(spec, folder / "tokenizer.model", specials, plain, config)}


def _marian(folder: Path, config: Options) -> dict[str, Tokenizer]:
    separate = config.take("separate_vocabs", False, bool)
    target = "target_vocab.json" if separate else "vocab.json"
    return {
        "tokenizer.json": _marian_side(folder, config, "source.spm", "vocab.json", codes=not separate),
        "tokenizer.target.json": _marian_side(folder, config, "target.spm", target, codes=not separate),
    }


def _marian_side(folder: Path, config: Options, pieces: str, vocabulary: str, codes: bool) -> Tokenizer:
    path = folder / vocabulary
    ids = _ids(path)
    if sorted(ids.values()) != list(range(len(ids))):
        raise UserError(f"{path} is damaged: its ids are not 0, 1, 2 and so on, each once")
    names = [_name(config, role, usual) for role, usual in (("unk", "<unk>"), ("eos", "</s>"), ("pad", "<pad>"))]
    unk, eos, pad = names
    _need(ids, [unk, eos], path)
    model = read_pieces(folder / pieces)
    languages = [text for text in ids if codes and text.startswith(">>") and text.endswith("<<")]
    spec = to_spec(model, ids, unk, [eos, pad, *languages])
    spec["post_processor"] = post_processor([], [], [eos], ids)
    plain = [*languages, *(model.texts(USER) if model.bpe else [])]
    return _build(spec, folder / pieces, names, plain, config)


KINDS: dict[str, tuple[tuple[str, ...], Callable[[Path, Options], dict[str, Tokenizer]]]] = {
    "bert": (("vocab.txt",), _bert),
    "distilbert": (("vocab.txt",), _bert),
    "gpt2": (("vocab.json", "merges.txt"), _gpt2),
    "roberta": (("vocab.json", "merges.txt"), _roberta),
    "llama": (("tokenizer.model",), _llama),
    "mistral": (("tokenizer.model",), _llama),
    "marian": (("source.spm", "target.spm", "vocab.json"), _marian),
}


def _build(
    spec: Spec,
    path: Path,
    specials: Iterable[str],
    plain: Iterable[str] = (),
    config: Options | None = None,
    mask: str = "",
) -> Tokenizer:
    """The tokenizer of a spec from a file, with its added tokens: special ones, `plain` ones that are read in a text,
    and those of added_tokens.json and tokenizer_config.json, if there is such a `config`. A special token that has no
    id is left out. `mask` takes the space before it."""
    vocabulary = spec["model"]["vocab"]
    ids = dict(vocabulary) if isinstance(vocabulary, dict) else {text: id for id, (text, _) in enumerate(vocabulary)}
    special: dict[str, bool] = {}
    if config is not None:
        extra = path.with_name("added_tokens.json")
        known = _ids(extra) if os.path.isfile(extra) else {}
        ids, special = known | ids, dict.fromkeys(known, False)
        try:  # newer folders have them here
            declared = config.take("added_tokens_decoder", {}, dict)
            tokens = {token["content"]: (int(id), token.get("special") is True) for id, token in declared.items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            raise UserError(f"{config.where}: added_tokens_decoder does not list tokens by their ids") from None
        ids |= {text: id for text, (id, _) in tokens.items() if text}
        special |= {text: is_special for text, (_, is_special) in tokens.items() if text}
    special |= {text: False for text in plain if text in ids} | {text: True for text in specials if text in ids}
    spec["added_tokens"] = [
        {
            "id": ids[text], "content": text, "single_word": False, "lstrip": text == mask, "rstrip": False,
            "normalized": False, "special": special[text],
        }
        for text in sorted(special, key=ids.__getitem__)
    ]  # fmt: skip
    return Tokenizer.parse(json.dumps({"version": "1.0", **spec}).encode(), str(path))


def scored_tokenizer(
    pieces: Sequence[str],
    scores: Sequence[float],
    kinds: Sequence[int],
    path: Path,
    start: int | None = None,
    end: int | None = None,
    space: bool = True,
) -> Tokenizer:
    """The tokenizer of a BPE model of SentencePiece, of which each piece has a score and a kind.

    Of all neighbours whose union is a piece, the union with the best score is made first, the leftmost one of equals.
    `start` and `end` are ids around a text; `space`: one is put before it."""
    number_pieces(pieces, path)
    if not all(map(math.isfinite, scores)) or UNKNOWN not in kinds:
        raise UserError(f"{path}: each of the {len(pieces):,} tokens needs one score, and one is the unknown token")
    model = Pieces(
        path, tuple(map(Piece, pieces, scores, kinds)), list(kinds).index(UNKNOWN), bpe=True, byte_fallback=True,
        rules="", charsmap=b"", dummy_prefix=space, remove_extra_spaces=False,
    )  # fmt: skip
    spec = to_spec(model, model.ids, pieces[model.unk], model.texts(CONTROL, UNKNOWN))
    return finish_tokenizer(spec, pieces, kinds, start, end, path)


def finish_tokenizer(
    spec: Spec, pieces: Sequence[str], kinds: Sequence[int], start: int | None, end: int | None, path: Path
) -> Tokenizer:
    """The tokenizer of a spec whose pieces have kinds, with what stands around a text."""
    first, last = ([] if id is None else [pieces[id]] for id in (start, end))
    spec["post_processor"] = surround(first, last, {piece: id for id, piece in enumerate(pieces)})
    special = [piece for piece, kind in zip(pieces, kinds) if kind in (UNKNOWN, CONTROL)]
    plain = [piece for piece, kind in zip(pieces, kinds) if kind == USER]
    return _build(spec, path, [*special, *first, *last], plain)


def surround(start: list[str], end: list[str], ids: Mapping[str, int]) -> Spec | None:
    """The post-processor that puts these tokens around each text."""
    return post_processor(start, [*end, *start], end, ids) if start or end else None


def tokenizer_config(folder: Path) -> Spec:
    """tokenizer_config.json with the names of special_tokens_map.json; {} if there is neither. A special token is a
    name, or an object with its name as `content`."""
    found = read_json(folder / "special_tokens_map.json") | read_json(folder / CONFIG)
    return {
        name: value.get("content") if name.endswith("_token") and isinstance(value, dict) else value
        for name, value in found.items()
    }


def _name(config: Options, role: str, usual: str) -> str:
    """The name of a special token."""
    return config.take(f"{role}_token", "", str) or usual


def _need(ids: Mapping[str, int], names: Iterable[str], path: Path) -> None:
    for name in names:
        if name not in ids:
            raise UserError(f"{path} has no token {shortened(name)}, which the tokenizer needs; see {CONFIG}")


def _ids(path: Path) -> dict[str, int]:
    """A JSON object of tokens with their ids."""
    if not os.path.isfile(path):
        raise UserError(f"there is no file {path}")
    ids: dict[str, int] = read_json(path)
    for token, id in ids.items():
        if type(id) is not int or id < 0:
            raise UserError(f"{path} is damaged: the id of '{shortened(token)}' is {shortened(id)}")
    return ids


def _rows(path: Path) -> list[str]:
    rows = read_text(path).split("\n")
    return rows if rows[-1] else rows[:-1]
