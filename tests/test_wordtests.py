"""The public questions for word vectors: all in one, and by kind."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from allyouneed.data import wordtests
from allyouneed.data.fetch import File

MEANING = [("Athens", "Greece", "Rome", "Italy"), ("boy", "girl", "son", "daughter")]
GRAMMAR = [("calm", "calmly", "slow", "slowly"), ("go", "going", "run", "running")]
QUESTIONS = """: capital-common-countries
Athens Greece Rome Italy
: gram1-adjective-to-adverb
calm calmly slow slowly
: family
boy girl son daughter
: gram5-present-participle
go going run running
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror with four questions and two pairs."""
    files = []
    for name, content in (
        ("questions.txt", QUESTIONS),
        ("pairs.tsv", "# remark\ntiger\tcat\t7.35\nking\tcabbage\t0.23\n"),
    ):
        (tmp_path / name).write_text(content)
        files.append(File(name, len(content), sha256(content.encode()).hexdigest()))  # only a mirror has it
    monkeypatch.setattr(wordtests, "WORDS", replace(wordtests.WORDS, files=tuple(files)))
    return tmp_path


def test_questions_of_grammar_are_those_of_the_sections_that_say_so(small: Path) -> None:
    tests = wordtests.read(str(small), pytest.fail)
    assert list(tests.analogies) == ["google", "google-meaning", "google-grammar"]
    assert tests.analogies["google-meaning"] == MEANING
    assert tests.analogies["google-grammar"] == GRAMMAR
    assert sorted(tests.analogies["google"]) == sorted(MEANING + GRAMMAR)
    assert tests.similarity == {"wordsim353": [("tiger", "cat", 7.35), ("king", "cabbage", 0.23)]}


def test_what_cannot_be_had_is_left_out_and_told(small: Path) -> None:
    said: list[str] = []
    (small / "questions.txt").unlink()
    tests = wordtests.read(str(small), said.append)
    assert (tests.analogies, list(tests.similarity)) == ({}, ["wordsim353"])
    assert len(said) == 1
    assert said[0].startswith("questions.txt is left out: ")


def test_the_real_questions_are_as_many_as_were_published(mirror: Path) -> None:
    tests = wordtests.read(str(mirror), pytest.fail)
    counts = {name: len(some) for name, some in tests.analogies.items()}
    assert counts == {"google": 19_544, "google-meaning": 8_869, "google-grammar": 10_675}
    assert len(tests.similarity["wordsim353"]) == 353
