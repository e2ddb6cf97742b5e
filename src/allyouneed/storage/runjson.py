"""The JSON files of a run: parsing that refuses what is not plain data, and what config.json and scores.json must hold.

A run folder may come from a stranger or from a failing disk. So every field that is used later is checked here.
"""

from __future__ import annotations

import hashlib
import json
import math
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


def config_problem(config: dict[str, Any]) -> str:
    """What is wrong with a config.json of this version; "" if nothing is."""
    for path, kind in CONFIG.items():
        value: Any = config
        for key in path.split("."):
            value = value.get(key)
        if not isinstance(value, kind):
            return f"'{path}' is missing, or not {KINDS[kind]}"
    if not all(isinstance(line, str) for line in config["followed"]):
        return "a line of 'followed' is not text"
    if not all(isinstance(version, str) for version in config["versions"].values()):
        return "a version is not text"
    runtime = config.get("runtime", {})
    if not isinstance(runtime, dict) or not isinstance(runtime.get("why", ""), str):
        return "'runtime' is not an object with 'why' as text"
    if not isinstance(config.get("recipe", ""), str):
        return "'recipe' is not text"
    if not all(is_name(name) for name in (*config["parts"], *config["files"])):
        return "a file of the run is not a plain name"
    if not all(_is_row(row) for row in config["parts"].values()):
        return "a part is without its size or its sha256"
    return ""


def is_name(value: Any) -> bool:
    """Whether this is the name of a file inside a folder, and no hidden one."""
    return isinstance(value, str) and value != "" and not value.startswith(".") and not set(value) & {"/", "\0"}


def _is_row(value: Any) -> bool:
    return isinstance(value, dict) and type(value.get("bytes")) is int and isinstance(value.get("sha256"), str)


def scores_problem(scores: dict[str, Any]) -> str:
    """What is wrong with a scores.json; "" if nothing is."""
    for split, found in scores.items():
        if not isinstance(found, list) or not all(_is_score(score) for score in found):
            return f"'{split}' is not a list of scores, each with a name, a value and a signature"
    return ""


def _is_score(value: Any) -> bool:
    if not isinstance(value, dict) or not SCORE <= value.keys() <= SCORE | INTERVAL:
        return False
    texts = isinstance(value["name"], str) and isinstance(value["signature"], str)
    return texts and all(_is_number(number) for key, number in value.items() if key not in ("name", "signature"))


def _is_number(value: Any) -> bool:
    """A number that a float can hold; or null, which stands for one that is not finite."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return value is None
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def identity(config: dict[str, Any]) -> str:
    """A digest of what a run is: its task, its model and its parts. The weights carry it, so that files of two runs
    cannot be mixed unnoticed."""
    fields = {key: config[key] for key in ("task", "kind", "model", "parts")}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
