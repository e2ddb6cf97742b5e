"""docs/finetune.md: every command of it runs, in its order, on files in the formats that it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from commands import ayn
from conftest import RUNTIME

PAGE = Path(__file__).parent.parent / "docs" / "finetune.md"
DRINKS = ("tea", "milk", "juice", "water", "coffee")
NAMES = ("Ada", "Paul", "Mia", "Leo", "Ruth")
CITIES = ("London", "Oslo", "Rome", "Lima", "Cairo")
TINY = ["model.size=tiny", "model.width=16", "model.heads=2", "model.layers=2", "model.context=64"]
SHORT = [*RUNTIME, "train.steps=4", "train.eval_every=4"]


def shown(language: str) -> list[str]:
    """The lines of a file that the page shows."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return str(found).splitlines()


def write_files(folder: Path) -> None:
    """What the page shows, and more of the same."""
    numbered = [(i, NAMES[i % 5], DRINKS[i * 3 % 5], CITIES[i * 2 % 5]) for i in range(80)]
    texts = "".join(
        f"{name} drinks {drink} in {city}. It is number {i}. The {drink} is hot. The cup is small.\n\n"
        for i, name, drink, city in numbered
    )
    (folder / "notes.txt").write_text(texts)
    rows = [
        f"Number {i}: the {drink} is {'sweet' if i % 2 else 'cold'}.,{'good' if i % 2 else 'bad'}"
        for i, _, drink, _ in numbered
    ]
    (folder / "films.csv").write_text("\n".join([*shown("csv"), *rows]) + "\n")
    sentence = "\n".join(shown("conll"))
    others = [
        sentence.replace("Ada", name).replace("London", city).replace("tea", f"{drink}{i}")
        for i, name, drink, city in numbered
    ]
    (folder / "names.conll").write_text("\n\n".join([sentence, *others]) + "\n")
    first, second = shown("jsonl")
    asked = [line.replace("Ada", f"{name}{i}") for i, name, _, _ in numbered for line in (first, second)]
    (folder / "questions.jsonl").write_text("\n".join([first, second, *asked]) + "\n")
    pairs = [f"a cup of {drink} {i}\t{name} drinks {drink} number {i}." for i, name, drink, _ in numbered]
    (folder / "pairs.tsv").write_text("\n".join([*shown("tsv"), *pairs]) + "\n")
    (folder / "lines.txt").write_text("\n".join(line.partition("\t")[2] for line in pairs) + "\n")


def commands() -> list[list[str]]:
    """Those of the page, without those that need a public data set."""
    every = re.findall(r"^ayn .*$", PAGE.read_text(encoding="utf-8"), re.M)
    return [words for line in every if not {"imdb-unlabelled", "sst2"} & {*(words := shlex.split(line)[1:])}]


@pytest.mark.slow
def test_every_command_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    answers: dict[str, str] = {}
    for words in commands():
        more = []
        if words[0] == "train":
            more = [*SHORT, *(TINY if "pretrain/bert" in words else [])]
        done = ayn(*words, *more)
        assert done.code == 0, (words, done.err)
        if words[0] == "train" and "--init" in words:
            assert "init: loaded the body of" in done.out
        if words[0] == "use":
            answers[" ".join(words[1:3])] = done.out
    assert len(answers) == 8
    assert (
        "the second text follows the first:" in answers["runs/reader The tea is too hot. ||| I wait until it is warm."]
    )
    assert re.search(r"^\S+ [\d.]+ %", answers["runs/reader The tea is too [MASK]."])
    assert re.fullmatch(r"(good|bad)  [\d.]+ %\n", answers["runs/films What a lovely plot!"])
    assert '"entities"' in answers["runs/names Ada left London."]
    assert len(answers["runs/answers Who drinks milk? ||| Ada drinks tea. Paul drinks milk."].splitlines()) == 3
    assert len(answers["runs/search a warm drink"].splitlines()) == 5
