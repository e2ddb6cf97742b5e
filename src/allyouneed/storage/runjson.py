"""The JSON files of a run: parsing that refuses what is not plain data, and what config.json and scores.json must hold.

A run folder may come from an untrusted source or from a failing disk, so every field that is used is checked here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

VERSION = 3  # of the layout of run folders; config.json names the one that its run was written with
RENAMED = {2: ("elmo", "dvae", "dalle")}  # kinds of models with other names for tensors or settings in earlier versions
DEEPEST = 32  # lists and objects inside each other
KINDS: dict[type, str] = {str: "text", dict: "an object", list: "a list"}
CONFIG: dict[str, type] = {
    "task": str, "options": dict, "kind": str, "model": dict, "data": dict, "data.name": str, "data.fingerprint": str,
    "followed": list, "versions": dict, "parts": dict, "files": list,
}  # fmt: skip

SCORE, INTERVAL = {"name", "value", "signature"}, {"low", "high"}  # scores of earlier versions have no interval


def parse_object(text: str) -> dict[str, Any]:
    """The object of a strict JSON text: no NaN, no infinite numbers, no deep nesting. Anything else: ValueError."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [
            item
            for each in level
            if isinstance(each, dict | list)
            for item in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise ValueError("it is nested too deep")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")


def check_config(config: dict[str, Any]) -> None:
    """Raise a ValueError for a config.json of this version in which something is wrong."""
    for path, kind in CONFIG.items():
        value: Any = config
        for key in path.split("."):
            value = value.get(key)
        if not isinstance(value, kind):
            raise ValueError(f"'{path}' is missing, or not {KINDS[kind]}")
    parts, runtime = config["parts"], config.get("runtime", {})
    right = {
        "a line of 'followed' is not text": _are_texts(config["followed"]),
        "a version is not text": _are_texts(config["versions"].values()),
        "'runtime' is not an object with 'why' as text": isinstance(runtime, dict)
        and _are_texts([runtime.get("why", "")]),
        "'recipe' is not text": _are_texts([config.get("recipe", "")]),
        "a file of the run is not a plain name": all(map(is_name, (*parts, *config["files"]))),
        "a part is without its size or its sha256": all(map(_has_size_and_hash, parts.values())),
    }
    for problem, fine in right.items():
        if not fine:
            raise ValueError(problem)


def check_scores(scores: dict[str, Any]) -> None:
    """Raise a ValueError for a scores.json in which something is wrong."""
    for split, found in scores.items():
        if not isinstance(found, list) or not all(map(_is_score, found)):
            raise ValueError(f"'{split}' is not a list of scores, each with a name, a value and a signature")


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def is_name(value: Any) -> bool:
    """Whether this is the name of a file inside a folder, and no hidden one."""
    return isinstance(value, str) and value != "" and not value.startswith(".") and not set(value) & {"/", "\0"}


def _has_size_and_hash(value: Any) -> bool:
    return isinstance(value, dict) and type(value.get("bytes")) is int and isinstance(value.get("sha256"), str)


def _is_score(value: Any) -> bool:
    if not isinstance(value, dict) or not SCORE <= value.keys() <= SCORE | INTERVAL:
        return False
    numbers = [number for key, number in value.items() if key not in ("name", "signature")]
    return _are_texts([value["name"], value["signature"]]) and all(map(_is_number, numbers))


def _is_number(value: Any) -> bool:
    """A number that a float can hold; or null, which stands for one that is not finite."""
    try:
        return value is None or (type(value) in (int, float) and math.isfinite(value))
    except OverflowError:
        return False
