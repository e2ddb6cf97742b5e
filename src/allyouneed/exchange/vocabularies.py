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
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from allyouneed.errors import UserError, shortened
from allyouneed.exchange.sentencepieces import (
    CONTROL,
    UNKNOWN,
    USER,
    added_token,
    read_pieces,
    surround,
    to_spec,
)
from allyouneed.storage.runjson import parse_object
from allyouneed.storage.wholefile import read_bytes
from allyouneed.text import Tokenizer
from allyouneed.text.template import template_spec

LARGEST = 1 << 28  # bytes of a file
CONFIG = "tokenizer_config.json"
ROLES = ("unk", "bos", "eos", "sep", "cls", "pad", "mask")
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
    if os.path.isfile(folder / "tokenizer.json"):
        return {"tokenizer.json": _corrected(Tokenizer.load(folder / "tokenizer.json"), folder)}
    needed, read = KINDS.get(kind, ((), None))
    missing = [name for name in needed if not os.path.isfile(folder / name)]
    if read is None or missing:
        also = f", and of the files {', '.join(needed)} it has no {', '.join(missing)}" if missing else ""
        raise UserError(f"{folder} has no tokenizer.json{also}: a model of type '{shortened(kind)}' needs a tokenizer")
    return read(folder)


def _corrected(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """A tokenizer.json with the settings of tokenizer_config.json, which win in transformers."""
    config, spec = tokenizer_config(folder), json.loads(tokenizer.to_json())
    normal, before = spec["normalizer"] or {}, spec["pre_tokenizer"] or {}
    changed = False
    for part, kind, names in ((normal, "BertNormalizer", BERT_FLAGS), (before, "ByteLevel", BYTE_FLAGS)):
        for theirs, ours in names.items() if part.get("type") == kind else ():
            if (value := _flag(config, theirs, None)) is not None and part[ours] != value:
                part[ours], changed = value, True
    if not changed:
        return tokenizer
    return Tokenizer.parse(json.dumps(spec).encode(), str(folder / "tokenizer.json"))


def _bert(folder: Path) -> dict[str, Tokenizer]:
    config = tokenizer_config(folder)
    ids = {line.rstrip(): id for id, line in enumerate(_lines(folder / "vocab.txt"))}
    names = {role: _name(config, role, f"[{role.upper()}]") for role in ("unk", "cls", "sep", "pad", "mask")}
    _need(ids, [names[role] for role in ("unk", "cls", "sep")], folder / "vocab.txt")
    cls, sep = names["cls"], names["sep"]
    spec = {
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "lowercase": _flag(config, "do_lower_case", True),
            "handle_chinese_chars": _flag(config, "tokenize_chinese_chars", True),
            "strip_accents": _flag(config, "strip_accents", None),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template_spec([cls, "$A", sep], [cls, "$A", sep, "$B", sep], ids),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": names["unk"], "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": ids,
        },
    }  # fmt: skip
    return {"tokenizer.json": _build(spec, folder, "vocab.txt", config, names.values())}


def _gpt2(folder: Path) -> dict[str, Tokenizer]:
    config = tokenizer_config(folder)
    end = "<|endoftext|>"
    names = [name for role in ROLES if (name := _name(config, role, end if role in ("unk", "bos", "eos") else ""))]
    spec = _byte_level(folder, config)
    if _flag(config, "add_bos_token", False):
        bos = _name(config, "bos", end)
        _need(spec["model"]["vocab"], [bos], folder / "vocab.json")
        spec["post_processor"] = surround([bos], [], spec["model"]["vocab"])
    return {"tokenizer.json": _build(spec, folder, "vocab.json", config, names)}


def _roberta(folder: Path) -> dict[str, Tokenizer]:
    config = tokenizer_config(folder)
    usual = {"cls": "<s>", "bos": "<s>", "sep": "</s>", "eos": "</s>"}
    names = {role: _name(config, role, usual.get(role, f"<{role}>")) for role in ROLES}
    spec = _byte_level(folder, config)
    ids = spec["model"]["vocab"]
    _need(ids, [names["cls"], names["sep"]], folder / "vocab.json")
    spec["post_processor"] = {
        "type": "RobertaProcessing", "sep": [names["sep"], ids[names["sep"]]],
        "cls": [names["cls"], ids[names["cls"]]], "trim_offsets": True,
        "add_prefix_space": spec["pre_tokenizer"]["add_prefix_space"],
    }  # fmt: skip
    return {"tokenizer.json": _build(spec, folder, "vocab.json", config, names.values(), names["mask"])}


def _byte_level(folder: Path, config: Spec) -> Spec:
    """Byte-level BPE from vocab.json and merges.txt."""
    ids = _ids(folder / "vocab.json")
    path = folder / "merges.txt"
    merges = [line.rstrip("\r").split(" ") for line in _lines(path) if line.strip() and not line.startswith("#version")]
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= ids.keys():
            shown = shortened(" ".join(merge))
            raise UserError(f"{path} is damaged: the merge '{shown}' is not two pieces of vocab.json with a third")
    prefix = _flag(config, "add_prefix_space", False)
    spaces = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True}
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": ids, "merges": merges,
    }  # fmt: skip
    return {"normalizer": None, "pre_tokenizer": spaces, "post_processor": None, "decoder": spaces, "model": model}


def _llama(folder: Path) -> dict[str, Tokenizer]:
    config = tokenizer_config(folder)
    model = read_pieces(folder / "tokenizer.model")
    ids, unk = model.ids, model.pieces[model.unk].text
    specials = model.texts(CONTROL, UNKNOWN)
    spec = to_spec(model, ids, unk, specials)
    start = [_name(config, "bos", "<s>")] if _flag(config, "add_bos_token", True) else []
    end = [_name(config, "eos", "</s>")] if _flag(config, "add_eos_token", False) else []
    _need(ids, [*start, *end], model.path)
    spec["post_processor"] = surround(start, end, ids)
    others = [name for role in ROLES if (name := _name(config, role, ""))]
    plain = model.texts(USER) if model.bpe else []
    return {"tokenizer.json": _build(spec, folder, "tokenizer.model", config, [*specials, *others], plain=plain)}


def _marian(folder: Path) -> dict[str, Tokenizer]:
    config = tokenizer_config(folder)
    separate = _flag(config, "separate_vocabs", False)
    target = "target_vocab.json" if separate else "vocab.json"
    return {
        "tokenizer.json": _marian_side(folder, config, "source.spm", "vocab.json", codes=not separate),
        "tokenizer.target.json": _marian_side(folder, config, "target.spm", target, codes=not separate),
    }


def _marian_side(folder: Path, config: Spec, pieces: str, vocabulary: str, codes: bool) -> Tokenizer:
    path = folder / vocabulary
    ids = _ids(path)
    if sorted(ids.values()) != list(range(len(ids))):
        raise UserError(f"{path} is damaged: its ids are not 0, 1, 2 and so on, each once")
    unk, eos, pad = (
        _name(config, role, usual) for role, usual in (("unk", "<unk>"), ("eos", "</s>"), ("pad", "<pad>"))
    )
    _need(ids, [unk, eos], path)
    model = read_pieces(folder / pieces)
    languages = [text for text in ids if codes and text.startswith(">>") and text.endswith("<<")]
    spec = to_spec(model, ids, unk, [eos, pad, *languages])
    spec["post_processor"] = template_spec(["$A", eos], ["$A", "$B", eos], ids)
    plain = [*languages, *(model.texts(USER) if model.bpe else [])]
    return _build(spec, folder, pieces, config, [unk, eos, pad], plain=plain)


KINDS: dict[str, tuple[tuple[str, ...], Callable[[Path], dict[str, Tokenizer]]]] = {
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
    folder: Path,
    source: str,
    config: Spec,
    specials: Iterable[str],
    mask: str = "",
    plain: Iterable[str] = (),
) -> Tokenizer:
    """The tokenizer of a spec, with its added tokens: special ones, `plain` ones that are read in a text, and those of
    added_tokens.json and of tokenizer_config.json. A special token that has no id is left out."""
    vocabulary = spec["model"]["vocab"]
    ids = dict(vocabulary) if isinstance(vocabulary, dict) else {text: id for id, (text, _) in enumerate(vocabulary)}
    extra = _ids(folder / "added_tokens.json") if os.path.isfile(folder / "added_tokens.json") else {}
    added = {text: added_token(text, ids.get(text, id), special=False) for text, id in extra.items()}
    added |= _declared(folder / CONFIG, config)
    ids |= {text: token["id"] for text, token in added.items()}
    added |= {text: added_token(text, ids[text], special=False) for text in plain if text in ids}
    for text in specials:
        if text in ids:
            added[text] = added_token(text, ids[text], special=True, lstrip=text == mask)
    spec = {**spec, "version": "1.0", "added_tokens": sorted(added.values(), key=lambda token: token["id"])}
    return Tokenizer.parse(json.dumps(spec).encode(), str(folder / source))


def _declared(path: Path, config: Spec) -> dict[str, Spec]:
    """The added tokens of tokenizer_config.json, which newer folders have there."""
    declared = config.get("added_tokens_decoder") or {}
    try:
        tokens = [
            added_token(token["content"], int(id), token.get("special") is True) for id, token in declared.items()
        ]
        return {token["content"]: token for token in tokens if token["content"]}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f"{path} is damaged: added_tokens_decoder does not list tokens by their ids") from None


def tokenizer_config(folder: Path) -> Spec:
    """tokenizer_config.json with the names of special_tokens_map.json; {} if there is neither."""
    found: Spec = read_json(folder / "special_tokens_map.json") | read_json(folder / CONFIG)
    return found


def _name(config: Spec, role: str, usual: str) -> str:
    """The name of a special token, which may be an object with `content`."""
    value = config.get(f"{role}_token")
    value = value.get("content") if isinstance(value, dict) else value
    if value is None or value == "":
        return usual
    if not isinstance(value, str):
        raise UserError(f"{CONFIG}: {role}_token is {shortened(value)}, which is no token")
    return value


def _flag(config: Spec, name: str, usual: bool | None) -> bool | None:
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise UserError(f"{CONFIG}: {name} is {shortened(value)}; it is true or false")
    return usual if value is None else value


def _need(ids: Mapping[str, int], names: Iterable[str], path: Path) -> None:
    for name in names:
        if name not in ids:
            raise UserError(f"{path} has no token {shortened(name)}, which the tokenizer needs; see {CONFIG}")


def _ids(path: Path) -> dict[str, int]:
    """A JSON object of tokens with different ids."""
    if not os.path.isfile(path):
        raise UserError(f"there is no file {path}")
    ids: dict[str, int] = read_json(path)
    owners: dict[int, str] = {}
    for token, id in ids.items():
        if type(id) is not int or id < 0:
            raise UserError(f"{path} is damaged: the id of '{shortened(token)}' is {shortened(id)}")
        if id in owners:
            raise UserError(f"{path} is damaged: '{shortened(owners[id])}' and '{shortened(token)}' have the id {id}")
        owners[id] = token
    return ids


def _lines(path: Path) -> list[str]:
    lines = read_text(path).split("\n")
    return lines if lines[-1] else lines[:-1]


def read_text(path: Path, most: int = LARGEST) -> str:
    try:
        return read_bytes(path, most).decode("utf-8")
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is damaged ({error})") from None


def read_json(path: Path, kind: type = dict) -> Any:
    """An object or a list in a JSON file; empty if there is no such file."""
    if not os.path.isfile(path):
        return kind()
    text = read_text(path)
    try:
        found = parse_object(text) if kind is dict else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error})") from None
    if not isinstance(found, kind):
        raise UserError(f"{path} is damaged (it is not a list)")
    return found
