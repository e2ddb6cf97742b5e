"""The topic "sequences": each kind has a recipe, and damaged texts are harder."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import allyouneed
from allyouneed.figures.kinds import draw_kinds
from allyouneed.lectures import sequences
from commands import mistake
from notebooks import shown


def test_each_kind_has_a_recipe_that_there_is(tmp_path):
    recipes = Path(allyouneed.__file__).parent / "recipes"
    assert all((recipes / f"{recipe}.toml").is_file() for recipe in sequences.KINDS)
    assert all(kind.example.endswith(f"ayn train {recipe}") for recipe, kind in sequences.KINDS.items())
    shapes = {(len(kind.reads), len(kind.writes)) for kind in sequences.KINDS.values()}
    assert shapes == {(1, 1), (1, 3), (3, 1), (3, 3)}
    draw_kinds(list(sequences.KINDS.values()), tmp_path / "kinds.svg", "Kinds")
    drawn = (tmp_path / "kinds.svg").read_text()
    assert all(kind.name in drawn for kind in sequences.KINDS.values())


def test_texts_are_damaged_as_their_names_say():
    rng = random.Random(1)
    texts = [sequences.original(rng) for _ in range(300)]
    assert all(text.count(sequences.A) == text.count(sequences.B) == 1 for text in texts)
    first = sum(text.index(sequences.A) < text.index(sequences.B) for text in texts)
    assert 0.4 < first / len(texts) < 0.6
    found = {how: [sequences.damaged(text, how, rng) for text in texts] for how in sequences.WAYS}
    assert found["original"] == texts
    assert found["trimmed"] == [text[: sequences.KEPT] for text in texts]
    left = sum(map(len, found["omitted"])) / sum(map(len, texts))
    assert left == pytest.approx(1 - sequences.GAPS, abs=0.03)
    for text, short in zip(texts, found["omitted"]):
        rest = iter(text)
        assert all(letter in rest for letter in short)  # in their order
    assert [sorted(text) for text in found["permuted"]] == [sorted(text) for text in texts]
    assert found["permuted"] != texts


@pytest.mark.slow
def test_damaged_texts_are_harder_and_permuted_ones_impossible(tmp_path_factory):
    out = shown("sequences", tmp_path_factory)
    found = json.loads((out / "sequences.json").read_text())["numbers"]
    assert set(found) == set(sequences.MODELS)
    for name, several in found.items():
        assert min(several["original"]) > 97, name
        assert max(several["trimmed"]) < min(several["original"]), name
        assert max(several["omitted"]) < min(several["original"]) - 10, name
        assert all(40 < value < 60 for value in several["permuted"]), name
    for name in ("sequences", "sequences-kinds"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (out / f"{name}.svg").is_file()


def test_it_makes_its_own_models(tmp_path):
    assert "'sequences' makes its own models" in mistake("lecture", "sequences", "--out", tmp_path, "--run", tmp_path)
    assert "takes no text of your own" in mistake("lecture", "sequences", "a text", "--out", tmp_path)
