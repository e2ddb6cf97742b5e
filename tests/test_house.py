"""The house: arrows point down, the front door opens fast, files stay small, and nothing is a pickle."""

from __future__ import annotations

import ast
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import allyouneed

HOME = Path(allyouneed.__file__).parent
BASE = {
    *("terminal", "errors", "format", "version", "randomness", "catalog", "config", "recipe"),
    *("runtime", "storage", "batch"),
}
# Each room and what it may look at; a room may always look at itself.
BELOW = {
    **dict.fromkeys(BASE, BASE),
    "nn": BASE,
    "word2vec": BASE | {"nn"},
    "models": BASE | {"nn", "word2vec"},
    "decode": BASE,
    "text": BASE,
    "data": BASE | {"text"},
    "metrics": BASE,
    "figures": BASE,
    "predict": BASE | {"nn", "models", "decode", "text", "data", "metrics", "figures"},
    "tasks": BASE | {"nn", "word2vec", "models", "decode", "text", "data", "metrics", "figures", "predict"},
    "training": BASE | {"nn", "models", "decode", "text", "data", "metrics", "figures", "predict", "tasks"},
    "exchange": BASE | {"nn", "models", "text", "data", "predict"},
    "engines": BASE | {"models", "decode", "text", "data", "predict", "exchange"},
    "look": BASE | {"nn", "data", "figures", "predict"},
    "run": BASE
    | {"nn", "models", "decode", "text", "data", "metrics", "figures", "predict", "tasks", "training", "exchange"}
    | {"engines", "look"},
    "serve": BASE | {"look", "predict", "run"},
    "demo": BASE | {"run", "figures", "training"},
    "exercises": BASE | {"nn", "models", "data"},
    "lectures": BASE | {"nn", "models", "data", "metrics", "figures", "predict", "tasks", "training", "run"},
    "cli": BASE
    | {
        "__init__",
        "run",
        "predict",
        "tasks",
        "training",
        "data",
        "figures",
        "lectures",
        "exercises",
        "exchange",
        "look",
        "serve",
    },
    "__main__": {"cli"},
    "__init__": {"errors", "version", "nn", "models", "run", "lectures"},
}


def room(path: Path) -> str:
    return path.relative_to(HOME).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "allyouneed" else [f"allyouneed.{a.name}" for a in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "allyouneed" and len(parts) > 1:
                found.add(parts[1] if (HOME / parts[1]).exists() or (HOME / f"{parts[1]}.py").exists() else "__init__")
    return found


FILES = sorted(HOME.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(HOME)))
def test_arrows_point_down(path):
    upward = imports(path) - BELOW[room(path)] - {room(path)}
    assert not upward, f"{path.relative_to(HOME)} looks up at {', '.join(sorted(upward))}"


def targets(path: Path) -> set[Path]:
    """The files that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{a.name}" for a in node.names]
        for name in names:
            parts = name.split(".")[1:] if name.startswith("allyouneed.") else []
            for size in range(len(parts), 0, -1):  # the name may be that of a module, or of something inside one
                module = HOME.joinpath(*parts[:size])
                file = next((f for f in (module.with_suffix(".py"), module / "__init__.py") if f.is_file()), None)
                if file is not None:
                    found.add(file)
                    break
    return found


def test_no_files_import_each_other_in_a_circle():
    graph = {path: targets(path) - {path} for path in FILES}
    graph.pop(HOME / "__init__.py")  # the front door opens every room, and only when asked to
    while done := [path for path, needed in graph.items() if not needed & graph.keys()]:
        for path in done:
            del graph[path]
    assert not [str(path.relative_to(HOME)) for path in graph]


def test_every_room_is_in_the_plan():
    assert {room(path) for path in FILES} <= set(BELOW)


# Lines of each room, at most: raised by a decision, never to make a change fit.
BUDGETS = {
    "nn": 1835,
    "models": 2010,
    "decode": 765,
    "storage": 1050,
    "word2vec": 470,
    "text": 1450,
    "data": 8330,
    "metrics": 440,
    "figures": 1500,
    "predict": 4280,
    "tasks": 2510,
    "exchange": 3410,
    "engines": 420,
    "training": 3325,
    "look": 1400,
    "serve": 1690,
    "lectures": 3150,
    "exercises": 450,
    "cli": 1490,
    "": 1630,  # "": the files that are in no room
}


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_each_room_keeps_its_budget():
    rooms: dict[str, int] = {}
    for path in FILES:
        name = path.relative_to(HOME).parts[0] if path.parent != HOME else ""
        rooms[name] = rooms.get(name, 0) + lines(path)
    assert {name: size for name, size in rooms.items() if size > BUDGETS.get(name, 0)} == {}


def test_no_folder_has_more_than_25_files():
    assert not [folder for folder in {path.parent for path in FILES} if len(list(folder.glob("*.py"))) > 25]


# Names of files in several rooms: each is one idea, seen from there.
SHARED = {
    "base.py": "what a room shares",
    "__init__.py": "the door of a room",
    **{f"{task}.py": "a task" for task in ("draw", "embed", "lm", "tag", "translate")},
    "labels.py": "labels",
    "pairs.py": "pairs of texts",
    "images.py": "images",
    "questions.py": "questions",
    "attention.py": "attention",
    "bert.py": "BERT",
    "positions.py": "positions",
    "patches.py": "patches",
    "entities.py": "names",
    "look.py": "what a run computes",
    "checkpoints.py": "the models along a training",
}


def test_a_file_name_means_one_thing():
    names = [path.name for path in FILES]
    assert {name for name in names if names.count(name) > 1} <= SHARED.keys()


def test_the_model_files_can_be_read_aloud():
    models = [path for path in (HOME / "models").glob("*.py") if path.name != "base.py"]  # which declares them all
    assert not [path.name for path in models if len(path.read_text(encoding="utf-8").splitlines()) > 200]


def test_the_afternoon_stays_an_afternoon():
    files = [path for room in ("nn", "models", "decode") for path in (HOME / room).rglob("*.py")]
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= 4605


def test_nothing_is_a_pickle():
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert "pickle" not in text, path
        foreign = path == HOME / "exchange" / "folder.py"  # files of others, opened for their tensors alone
        assert text.count("torch.load") == text.count("weights_only=True") == foreign, path
        assert "torch.save" not in text, path


def seconds(*arguments: str) -> float:
    """Of the processor, so that other work on the machine counts less; the best of a few."""
    best = float("inf")
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


def test_import_is_fast_and_brings_no_torch():
    assert seconds("-c", "import allyouneed") < 0.3
    program = "import sys, allyouneed; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_help_is_fast_and_brings_no_torch():
    assert seconds("-m", "allyouneed", "--help") < 0.7
    program = "import sys, allyouneed.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_front_door():
    from allyouneed import attention

    assert attention.attend.__doc__
    assert {"attention", "train", "load", "GPT", "Transformer"} <= set(dir(allyouneed))
    with pytest.raises(AttributeError, match="there is"):
        allyouneed.nothing  # noqa: B018


def identifiers(path: Path) -> set[str]:
    """The names that a file defines, uses or imports."""
    found = {path.stem}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for field in ("id", "attr", "arg", "name", "asname"):
            found.add(getattr(node, field, None) or "")
    return {part for name in found if isinstance(name, str) for part in name.split(".")}


def test_words_that_the_glossary_replaces_are_gone():
    text = (HOME.parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .*? \| .*? \| (.*?) ?\|$", text.partition("## Glossary")[2].partition("\n## ")[0], re.M)
    replaced = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    assert len(replaced) > 20
    found = {str(path.relative_to(HOME)): sorted(identifiers(path) & replaced) for path in FILES}
    assert not {path: words for path, words in found.items() if words}


def test_every_option_that_a_message_tells_has_a_word_in_python():
    from allyouneed.errors import IN_PYTHON

    found = set()
    for path in FILES:
        named = re.findall(r"""option_name\(["']([^"']+)["']\)""", path.read_text(encoding="utf-8"))
        assert not set(named) - IN_PYTHON.keys(), path
        found |= set(named)
    assert {"--out", "--resume", "--init"} <= found
