"""The public questions for word vectors: all in one, and by kind."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from allyouneed.data import wordtests
from allyouneed.data.fetch import File
from allyouneed.errors import UserError

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
    monkeypatch.setattr(wordtests, "FILES", files)
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


JUDGED = [("old", "new", 1.58), ("smart", "intelligent", 9.2)]
SIMLEX = """word1\tword2\tPOS\tSimLex999\tconc(w1)\tconc(w2)\tconcQ\tAssoc(USF)\tSimAssoc333\tSD(SimLex)
old\tnew\tA\t1.58\t2.72\t2.81\t2\t7.25\t1\t0.41
smart\tintelligent\tA\t9.2\t1.75\t2.46\t1\t7.11\t1\t0.67
"""


@pytest.mark.parametrize(
    "content",
    [
        SIMLEX,
        SIMLEX.replace("\t", ","),
        "Word 1,Word 2,Human (mean)\nold,new,1.58\nsmart,intelligent,9.2\n",
        "# remark\nWord 1\tWord 2\tHuman (mean)\nold\tnew\t1.58\n\nsmart\tintelligent\t9.2\n",
        "word1 word2 POS score\nold new A 1.58\nsmart intelligent A 9.2\n",
        "old new 1.58\nsmart intelligent 9.2\n",
        "old, new 1.58\nsmart, intelligent 9.2\n",
    ],
)
def test_published_layouts_of_similarity(tmp_path: Path, content: str) -> None:
    (tmp_path / "pairs").write_text(content)
    assert wordtests.read_own(tmp_path / "pairs").similarity == {"pairs": JUDGED}


def test_a_score_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pairs"
    path.write_text("word1,word2,POS,score\nold,new,A,1.58\nsmart,intelligent,A\n")
    with pytest.raises(UserError, match="line 3: two words and a number are expected"):
        wordtests.read_own(path)
    path.write_text("word1,word2,score\nold,new,high\n")
    with pytest.raises(UserError, match="line 1: four words, or two words and a number, are expected"):
        wordtests.read_own(path)
