"""Random data in memory and in odd files: each ends as a data set, or in one sentence; in little time."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy
import pandas
import polars
import pytest

from allyouneed import catalog
from allyouneed.config import DataConfig
from allyouneed.data.opening import open_data
from allyouneed.errors import UserError
from allyouneed.recipe import read_recipe
from allyouneed.training.starting import choose

SECONDS = 10.0  # for one input
RECIPES = {
    "text": "lm/gpt",
    "pairs": "translate/transformer",
    "labels": "classify/rnn",
    "tags": "tag/lstm",
    "questions": "answer/bert",
    "images": "recognize/vit",
    "plain": "compress/shapes",
}
NAMES = ("text", "label", "source", "target", "words", "tags", "question", "context", "answer", "image", "train", "x")


class Raising:
    """An object of the user with an error in it."""

    def __len__(self) -> int:
        return 2

    def __iter__(self):
        raise ArithmeticError("no rows today")

    def __getitem__(self, key: object) -> object:
        raise ArithmeticError("no row today")

    __str__ = __repr__ = __iter__


def texts(chance: random.Random) -> str:
    return chance.choice(
        [
            "",
            " ",
            "a",
            "good one",
            "né 😀",
            "\ud800",
            "a\0b",
            "a\tb",
            "a\nb\n",
            "O",
            "B-x",
            "x" * 3000,
            "a/b",
            ".",
            "a.csv",
        ]
    )


def singles(chance: random.Random) -> Any:
    """What is neither a list nor a dict."""
    return chance.choice(
        [
            *(
                None,
                True,
                0,
                7,
                -1,
                10**30,
                1.5,
                float("nan"),
                float("inf"),
                b"a",
                1j,
                object(),
                Raising(),
                len,
                "a",
                "b",
            ),
            *(numpy.float32("nan"), numpy.int64(3), numpy.str_("a"), numpy.array(5), pandas.NA, pandas.NaT),
            *(range(3), iter("ab"), itertools.chain("ab"), {1, 2}, frozenset("a"), numpy.array(["a", "b"])),
            *(numpy.zeros((2, 2)), numpy.zeros((3, 4, 4, 3), numpy.uint8), numpy.array([[None]]), numpy.zeros((0, 2))),
            *(pandas.Series(["a", "b"]), pandas.DataFrame(), polars.Series(["a"]), polars.LazyFrame({"text": ["a"]})),
        ]
    )


def anything(chance: random.Random, depth: int) -> Any:
    """Nests of all of it."""
    kind = chance.random()
    if depth == 0 or kind < 0.25:
        return texts(chance) if chance.random() < 0.5 else singles(chance)
    inside = [anything(chance, depth - 1) for _ in range(chance.choice([0, 1, 2, 2, 3, 3, 9]))]
    if kind < 0.5:
        return inside
    if kind < 0.65:
        return tuple(inside)
    if kind < 0.9:
        keys = [chance.choice([*NAMES, *NAMES, 1, None, ("a",), 2.5]) for _ in inside]
        return dict(zip(keys, inside))
    return chance.choice([iter, lambda found: (one for one in found), lambda found: map(str, found)])(inside)


GOOD: dict[str, list[Callable[[int], Any]]] = {
    "text": [lambda i: (f"only text number {i}",), lambda i: f"only text number {i}"],
    "pairs": [lambda i: (f"one {i}", f"uno {i}"), lambda i: {"en": f"one {i}", "it": f"uno {i}"}],
    "labels": [
        lambda i: (f"text number {i}", f"label {i % 2}"),
        lambda i: {"text": f"text number {i}", "label": i % 3},
        lambda i: (f"one {i}", f"two {i}", i % 2),
    ],
    "tags": [
        lambda i: (["a", "b", f"c{i}"], ["O", "B-x", "I-x"]),
        lambda i: {"words": [f"a{i}"], "tags": ["O"]},
    ],
    "questions": [lambda i: {"question": f"who {i}", "context": f"it is {i}", "answer": str(i)}],
    "images": [
        lambda i: (numpy.full((4, 4), i, numpy.uint8), i % 2),
        lambda i: {"image": numpy.full((4, 4, 3), i, numpy.uint8), "label": "a"},
    ],
    "plain": [lambda i: numpy.full((4, 4), i, numpy.uint8)],
}


def rows(chance: random.Random, shape: str) -> Any:
    """Rows that are almost right: one of them, or one of its cells, may be anything."""
    good = GOOD[chance.choice([shape, shape, shape, *GOOD])]
    make, count = chance.choice(good), chance.choice([1, 3, 60])
    found = [make(i) for i in range(count)]
    for _ in range(chance.choice([0, 0, 1, 1, 2])):
        at = chance.randrange(count)
        row = found[at]
        if chance.random() < 0.3:
            found[at] = anything(chance, 2)
        elif isinstance(row, dict):
            found[at] = {**row, chance.choice([*row, *NAMES]): anything(chance, 2)}
        elif isinstance(row, tuple):
            place = chance.randrange(len(row) + 1)
            found[at] = (*row[:place], anything(chance, 2), *row[place + 1 :])
    return found


def columns(chance: random.Random, shape: str) -> Any:
    """Rows as a dict of columns, or as a DataFrame; or by split."""
    listed = rows(chance, shape)
    if chance.random() < 0.3:
        return {chance.choice(["train", "train", "valid", "text"]): listed, "test": chance.choice([None, [], listed])}
    keys = list(listed[0]) if isinstance(listed[0], dict) else chance.sample([*NAMES, 3], k=2)
    found = {key: [row.get(key) if isinstance(row, dict) else row for row in listed] for key in keys}
    simple = all(cell is None or type(cell) in (str, int, float) for column in found.values() for cell in column)
    made = chance.choice([dict, dict, pandas.DataFrame, polars.DataFrame if simple else pandas.DataFrame])
    try:
        return made(found)
    except Exception:  # these libraries do not take every value
        return found


MAKERS = {"nests": lambda chance, shape: anything(chance, 4), "rows": rows, "columns": columns}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of numpy and polars, about the values
def test_data_in_memory(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chance, counts = random.Random(1), Counter[str]()
    recipes = {shape: read_recipe(name) for shape, name in RECIPES.items()}
    for number in range(1200):
        shape, how = chance.choice(list(RECIPES)), chance.choice(list(MAKERS))
        data, began = MAKERS[how](chance, shape), time.process_time()
        try:
            chosen = choose(recipes[shape], [], data)
            assert chosen.data.path or data is None, (number, shape, how)  # never the data of the recipe
            if data is not None:
                found = open_data(chosen.data, catalog.task(chosen.task_kind).shape)
                assert sum(1 for split in found.splits.values() for _ in split) > 0
            counts[f"{how}: read"] += 1
            said = ""
        except UserError as error:
            said = str(error)
            counts[f"{how}: {'cannot be read' if 'cannot be read' in said else 'refused'}"] += 1
        assert len(said.splitlines()) < 2, (number, said)
        assert len(said) < 2000, (number, said)
        assert time.process_time() - began < SECONDS, (number, shape, how)
    with capsys.disabled():
        told = ", ".join(f"{what} {n}" for what, n in sorted(counts.items()))
        print(f"\n{counts.total()} data in memory:", told)
    assert all(min(counts[f"{how}: read"], counts[f"{how}: refused"]) > 15 for how in ("rows", "columns"))
    assert counts["nests: refused"] > 200


# Files

CELLS = (
    *(
        "good",
        "bad",
        "-",
        "",
        " ",
        "nan",
        "a text of some words",
        "né à la carte",
        "Привет мир",
        "漢字",
        "1",
        "2.5",
        "O",
    ),
    *(
        '"',
        '""',
        'a "quoted" word',
        "'",
        "a,b",
        "a;b",
        "a\tb",
        "{",
        "[",
        "\\",
        "\r",
        "\u2028",
        "\x0c",
        "#",
        "__label__x",
    ),
    *('{"text": "a", "label": "b"}', "[1, 2]", "null", "B-x", "text", "label", "1" * 5000 + "x", "ab " * 30_000),
)
ENDINGS = (".tsv", ".csv", ".jsonl", ".json", ".conll", ".txt", "", ".tsv.gz", ".zip", ".CSV")
CODES = ("utf-8", "utf-8", "utf-8", "utf-8-sig", "latin-1", "cp1252", "cp1251", "utf-16", "utf-16-le", "shift_jis")


def table(chance: random.Random) -> str:
    """Rows with one mark between their cells, most of one width; quoted or not."""
    mark, end = chance.choice(["\t", ",", ";", " ", "|"]), chance.choice(["\n", "\n", "\r\n", "\r", "\n\n"])
    width, pool = chance.choice([1, 2, 2, 3, 9]), chance.sample(CELLS, k=chance.choice([2, 4, 10]))
    quoted = chance.choice([lambda cell: cell, lambda cell: '"' + cell.replace('"', '""') + '"'])
    lines = [chance.choice(["text", "label", "source", "target", "review_body", "v1"]) for _ in range(width)]
    made = [mark.join(lines)] if chance.random() < 0.5 else []
    for _ in range(chance.choice([0, 1, 5, 80])):
        count = width if chance.random() < 0.99 else chance.randrange(12)
        made.append(mark.join(quoted(chance.choice(pool)) for _ in range(count)))
    return end.join(made) + chance.choice(["", end])


def objects(chance: random.Random) -> str:
    """JSON: on lines, in a list, in an object; sometimes torn."""
    keys = chance.sample(["text", "label", "en", "it", "question", "context", "answers", "labels", "x"], k=4)
    values = [*CELLS[:9], 1, None, [1, 2], {"text": ["a"], "answer_start": [0]}, True, 2.5, [], {}]
    listed = [{key: chance.choice(values) for key in keys} for _ in range(chance.choice([0, 1, 9, 80]))]
    if listed and chance.random() < 0.6:
        like = {key: chance.choice(CELLS[:9]) for key in keys}
        listed = [{**like, keys[0]: f"text number {i} {like[keys[1]]}"} for i, _ in enumerate(listed)]
    indent = chance.choice([None, None, 1])
    made = chance.choice(
        [
            "\n".join(json.dumps(one, ensure_ascii=False) for one in listed),
            json.dumps(listed, indent=indent),
            json.dumps({"version": "1", chance.choice(["data", "x"]): listed}, indent=indent),
            json.dumps({"train": listed, "test": listed}),
        ]
    )
    return made[: chance.randrange(len(made) + 1)] if chance.random() < 0.2 else made


def long(chance: random.Random) -> str:
    """Much of the same: a cell, a mark or a quote that goes on and on."""
    start, end = (chance.choice(["", "text\tlabel\n", "text,label\n", '"', "[", '{"a": ', "a O\n"]) for _ in range(2))
    return start + chance.choice([*CELLS[:-2], "\t", ",", "\n", "a O\n", "[", '{"a":', '"\n",']) * 300_000 + end


FILES = {"table": table, "objects": objects, "long": long}


def test_odd_files(capsys, tmp_path):
    chance, counts = random.Random(2), Counter[str]()
    for number in range(300):
        how = chance.choice(["table"] * 5 + ["objects"] * 4 + ["long"])
        made, code = FILES[how](chance), chance.choice(CODES)
        content = made.encode(code, "replace")
        if chance.random() < 0.1 and content:  # some bytes that do not belong there
            at = chance.randrange(len(content))
            content = content[:at] + chance.randbytes(3) + content[at:]
        path = tmp_path / f"{number}{chance.choice(ENDINGS)}"
        path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
        shape = chance.choice(["labels", "labels", "pairs", "tags", "questions", "text"])
        parts = chance.choice([0.0, 0.2])
        config = DataConfig(
            path=(str(path),), valid_part=parts, encoding=chance.choice(["", "", "", code]), test_part=0.0
        )
        began = time.process_time()
        try:
            found = open_data(config, shape)
            said = ""
            assert sum(1 for split in found.splits.values() for _ in split) > 0, number
            assert all(len(line) < 3000 for line in found.understood), number
            counts[f"{how}: read"] += 1
        except UserError as error:
            said = str(error)
            counts[f"{how}: refused"] += 1
        assert len(said) < 2000, (number, said)
        assert len(said.split("\n")) == 1, (number, said)
        assert time.process_time() - began < SECONDS, (number, shape, how)
        path.unlink()
    with capsys.disabled():
        print(f"\n{counts.total()} odd files:", ", ".join(f"{what} {n}" for what, n in sorted(counts.items())))
    assert counts["table: read"] > 20
    assert counts["objects: read"] > 10
