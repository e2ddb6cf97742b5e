"""The settings of models and tasks as their source files declare them: importing these files would import torch, which
is too slow for completion."""

from __future__ import annotations

import ast
from functools import lru_cache
from importlib import resources

Node = tuple[str, ast.AST]  # a module, and what it defines


def settings(place: str, attribute: str) -> dict[str, tuple[str, ...]]:
    """The settings of the dataclass that a class has as `attribute`, such as "allyouneed.models.gpt:GPT" as "Config":
    each with the values that it may have, () for any."""
    found = _member(*_named(place), attribute)
    return _fields(*found) if found is not None else {}


def sizes(place: str) -> tuple[str, ...]:
    """The named sizes of a model."""
    found = _member(*_named(place), "sizes")
    return _texts(*found) if found is not None else ()


def _named(place: str) -> Node:
    module, _, name = place.partition(":")
    return module, _module(module)[name]


@lru_cache
def _module(name: str) -> dict[str, ast.AST]:
    """What a module defines or imports at its top level."""
    package, *inner = name.split(".")
    file = resources.files(package).joinpath(*inner[:-1], f"{inner[-1]}.py")
    found: dict[str, ast.AST] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: node for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                found[target.id] = node.value
    return found


def _resolve(module: str, node: ast.AST) -> Node | None:
    """What an expression means: the definition of a name in this library, or the expression itself."""
    if isinstance(node, ast.Subscript):  # Task[Labeller]
        node = node.value
    if not isinstance(node, ast.Name):
        return module, node
    known = _module(module).get(node.id)
    if isinstance(known, ast.ImportFrom):
        inside = known.module or ""
        return _resolve(inside, node) if inside.startswith("allyouneed.") else None
    return (module, known) if known is not None else None


def _bases(module: str, cls: ast.AST) -> list[Node]:
    found = [_resolve(module, base) for base in cls.bases] if isinstance(cls, ast.ClassDef) else []
    return [base for base in found if base is not None and isinstance(base[1], ast.ClassDef)]


def _member(module: str, cls: ast.AST, name: str) -> Node | None:
    """The value of a class attribute, maybe of a base class."""
    for node in cls.body if isinstance(cls, ast.ClassDef) else []:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == name and value is not None:
            return _resolve(module, value)
    found = [_member(*base, name) for base in _bases(module, cls)]
    return next((member for member in found if member is not None), None)


def _fields(module: str, cls: ast.AST) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for base in reversed(_bases(module, cls)):
        found |= _fields(*base)
    for node in cls.body if isinstance(cls, ast.ClassDef) else []:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Call):
            known = {word.arg: word.value for word in node.value.keywords}
            if "derived" not in known:
                switch = isinstance(node.annotation, ast.Name) and node.annotation.id == "bool"
                found[node.target.id] = ("true", "false") if switch else _texts(module, known.get("choices"))
    return found


def _texts(module: str, node: ast.AST | None) -> tuple[str, ...]:
    """The texts in a tuple or the keys of a dict, which may have a name, and may have others inside."""
    found = _resolve(module, node) if node is not None else None
    if found is None:
        return ()
    module, node = found
    if isinstance(node, ast.Constant):
        return (str(node.value),)
    if isinstance(node, ast.Starred):
        return _texts(module, node.value)
    inside = node.elts if isinstance(node, ast.Tuple) else node.keys if isinstance(node, ast.Dict) else []
    return tuple(text for each in inside for text in _texts(module, each))
