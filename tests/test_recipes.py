"""Every recipe that ships: it says what it is and how to run it, its keys are known, and it runs."""

from __future__ import annotations

import gzip
import re
import shlex
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from allyouneed import catalog
from allyouneed.data.opening import fits
from allyouneed.data.registry import SETS, listing
from allyouneed.recipe import Recipe, read_recipe, recipe_names, recipe_text, to_toml
from commands import ayn
from conftest import RUNTIME
from test_images import folder

OWN = {row.name for row in SETS.values() if row.built_in}
PUBLIC = [name for name in recipe_names() if tomllib.loads(recipe_text(name))["data"]["name"] not in OWN]


# What a run is asked, by its task.
TEXTS = {"pretrain": ("one [MASK]", "one ||| two"), "answer": ("what? ||| one two", "what comes first? ||| six")}


def tiny(name: str) -> list[str]:
    """Three steps of the smallest model of its kind."""
    recipe = read_recipe(name)
    known = {field.name for field in fields(recipe.model)}
    small = {"width": 16, "heads": 2, "layers": 1, "hidden": 32, "context": 16, "filters": 2, "reader": 8}
    model = [f"model.{key}={value}" for key, value in small.items() if key in known]
    train = ["train.epochs=0", "train.steps=3", "train.eval_every=2", "train.batch_tokens=256", "train.warmup=1"]
    return [*RUNTIME, *model, *train, "decode.max_new=5"]


def limit(name: str, examples: int) -> list[str]:
    """Only so many of them; a text has none."""
    return [] if catalog.task(read_recipe(name).task_kind).shape == "text" else [f"data.limit={examples}"]


@pytest.fixture(scope="session")
def own(story, pairs) -> dict[str, Path]:
    """A small file of each shape."""
    rows = [line.split("\t")[0].split() for line in pairs.read_text().splitlines()]
    labels, tags = pairs.parent / "labels.tsv", pairs.parent / "tags.conll"
    labels.write_text("".join(f"{' '.join(row)}\t{'odd' if len(row) % 2 else 'even'}\n" for row in rows))
    tags.write_text("\n".join("".join(f"{w}\t{'B-six' if w == 'six' else 'O'}\n" for w in row) for row in rows))
    questions = pairs.parent / "questions.tsv"
    asked = "".join(f"what comes first?\t{' '.join(row)}\t{row[0]}\n" for row in rows)
    questions.write_text(f"question\tcontext\tanswer\n{asked}")
    files = {"text": story, "pairs": pairs, "labels": labels, "tags": tags, "questions": questions}
    found = folder(pairs.parent / "images", 60)
    captions = pairs.parent / "captions.tsv"
    listed = zip(sorted(found.rglob("*.png")), rows)
    captions.write_text("path\tcaption\n" + "".join(f"{path}\t{' '.join(row)}\n" for path, row in listed))
    return {**files, "images": found, "plain": found, "captions": captions}


@pytest.fixture(scope="session")
def book(own, tmp_path_factory) -> list[str]:
    """What a recipe that draws needs: the codes of images."""
    out = tmp_path_factory.mktemp("book") / "run"
    done = ayn("train", "compress/shapes", "--data", own["plain"], "--out", out, *tiny("compress/shapes"))
    assert done.code == 0, done.err
    return [f"task.image_tokenizer={out}"]


def head(name: str) -> list[str]:
    """The comment a recipe begins with."""
    lines = recipe_text(name).splitlines()
    return [line.removeprefix("#").strip() for line in lines[: next(i for i, s in enumerate(lines) if s[:1] != "#")]]


def test_there_are_recipes_for_every_task_and_model():
    recipes = [read_recipe(name) for name in recipe_names()]
    assert {recipe.task_kind for recipe in recipes} == set(catalog.TASKS)
    assert {recipe.model_kind for recipe in recipes} == set(catalog.MODELS)


@pytest.mark.parametrize("name", recipe_names())
def test_its_head_says_what_it_is_and_gives_its_command(name):
    first, *others = head(name)
    assert first.endswith((".", ")"))
    assert max(map(len, [first, *others])) <= 118, "a line is too long"
    assert re.search(r"[Ss]eeds (1 to [35]|2 and 3)", " ".join(others)), "no spread"
    commands = [shlex.split(re.sub(r"  +\(.*", "", line)) for line in others if line.startswith("ayn ")]
    if read_recipe(name).task_kind == "draw":  # the codes come first
        made = read_recipe(name).task.image_tokenizer.rsplit("/", 1)[-1].replace("-", "/", 1)
        assert commands.pop(0)[:3] == ["ayn", "train", made]
    assert commands[0][:3] == ["ayn", "train", name]
    for _, command, what, *rest in commands:
        if command == "train":
            assert what == name
            if "--init" in rest:
                del rest[rest.index("--init") : rest.index("--init") + 2]
            read_recipe(name, rest)
        else:
            assert command in ("test", "use", "info")
            assert what == f"runs/{name.replace('/', '-')}"


@pytest.mark.parametrize("name", recipe_names())
def test_its_keys_are_known_and_its_data_fits(name):
    recipe = read_recipe(name)  # complains of what it does not know
    assert Recipe.parse(tomllib.loads(to_toml(recipe.to_dict()))) == recipe
    assert name.split("/")[0] == recipe.task_kind
    shapes = {row.name: row.shape for row in listing()}
    assert fits(shapes[recipe.data.name], catalog.task(recipe.task_kind).shape)
    assert name.split("/")[1] not in catalog.MODELS or recipe.data.name in OWN  # its first command needs no download


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_it_runs_on_own_files(name, own, book, tmp_path):
    recipe = read_recipe(name)
    task = catalog.task(recipe.task_kind)
    data, more = own[task.shape], book if recipe.task_kind == "draw" else []
    done = ayn("train", name, "--data", data, "--out", tmp_path / "run", *tiny(name), *more)
    assert done.code == 0, done.err
    text, other, *_ = sorted(data.rglob("*.png")) or TEXTS.get(recipe.task_kind, ("one two", "six"))
    out = ["--out", tmp_path / "a.png"] if recipe.task_kind == "draw" else []
    assert ayn("use", tmp_path / "run", text, *out).code == 0
    half = ayn("use", tmp_path / "run", text, other, "--precision", "bf16", *out)
    assert half.code == 0, half.err
    table = ayn("use", tmp_path / "run", text, "--table", "--precision", "bf16")
    assert table.code == 0 or "has no likely answers" in table.err
    if recipe.task_kind in ("lm", "translate"):
        searched = ("--set", "method=beam", "--set", "beam=2", "--precision", "bf16")
        assert ayn("use", tmp_path / "run", "one two", *searched).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(recipe_names()) - set(PUBLIC)))
def test_a_recipe_named_after_its_model_runs_without_a_download(name, book, tmp_path, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", None)
    more = book if read_recipe(name).task_kind == "draw" else []
    done = ayn("train", name, "--out", tmp_path / "run", *tiny(name), *limit(name, 200), *more)
    assert done.code == 0, done.err


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC)
def test_it_runs_on_its_public_data(name, mirror, book, tmp_path):
    recipe = read_recipe(name)
    if recipe.data.name == "cifar10" and not (mirror / "cifar10").is_dir():
        pytest.skip("the mirror has no cifar10")
    settings = [*tiny(name), *limit(name, 2000), "train.batch_tokens=4096", "train.eval_every=3"]
    settings += ["train.test_limit=500"] if not limit(name, 1) else []
    settings += book if recipe.task_kind == "draw" else []
    if recipe.data.name == "enwik8":  # the beginning is enough
        with gzip.open(mirror / "enwik8/enwik8.gz") as file:
            (tmp_path / "enwik8").write_bytes(file.read(2_000_000))
        settings += ["--data", tmp_path / "enwik8"]
    done = ayn("train", name, "--mirror", mirror, "--out", tmp_path / "run", *settings)
    assert done.code == 0, done.err
