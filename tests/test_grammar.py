"""Sentences from templates, and the files of words that they are made of."""

from __future__ import annotations

import subprocess
import sys
from itertools import compress
from pathlib import Path

import pytest

from allyouneed.data.builtin import grammar
from allyouneed.data.builtin.grammar import PLURAL, Phrase, Template, WordFile, english, expand, italian, word_file
from allyouneed.data.builtin.heldout import spread, thin_pairs

SHE, IT, THEY = Phrase("the aunt", gender="f"), Phrase("a dog", gender="n"), Phrase("the dogs", person=PLURAL)
WORDS = """
# A comment.
[food]
cow: hay,
  grass
[limits]
meal: 1
[meal]
{who} [eat] (some|no) {food}.
"""


@pytest.fixture
def small(monkeypatch, tmp_path) -> Path:
    """words/small.txt, in a folder of its own."""
    file = tmp_path / "data" / "builtin" / "words" / "small.txt"
    file.parent.mkdir(parents=True)
    file.write_text(WORDS, "utf-8")
    monkeypatch.setattr(grammar.resources, "files", lambda package: tmp_path)
    return file


@pytest.mark.parametrize(
    ("text", "who", "expected"),
    [
        ("wash {his} face(s)", SHE, "washes her face"),
        ("wash {his} face(s)", THEY, "wash their faces"),
        ("carry a bag", IT, "carries a bag"),
        ("play", IT, "plays"),
        ("be", Phrase("I", person=0), "am"),
        ("have", IT, "has"),
        ("these", IT, "this"),
        ("sir/madam", SHE, "madam"),
    ],
)
def test_english_agrees(text, who, expected):
    assert english(text, who.gender, who.person) == expected


def test_italian_takes_four_forms_by_gender_and_number_and_six_by_person():
    assert italian("stanco/stanca/stanchi/stanche", "f", PLURAL) == "stanche"
    assert italian("mangio/mangi/mangia/mangiamo/mangiate/mangiano una mela", "m", 3) == "mangiamo una mela"
    assert italian("essere", "m", 2) == "è"


def test_a_template_fills_its_slots_in_both_languages():
    line = "[be] {who} a(n) {how}? = {who} [essere] un [{how}]?"
    who, how = [Phrase("she", "lei", "f"), Phrase("we", "noi", "m", 3)], [("old friend", "amico/amica/amici/amiche")]
    assert list(Template(line).write({"who": who, "how": how})) == [
        ("Is she an old friend?", "Lei è un amica?"),
        ("Are we an old friend?", "Noi siamo un amici?"),
    ]


def test_an_option_that_a_template_does_not_name_makes_no_copies():
    options = {"who": [SHE], "food": ["soup", "rice"], "time": ["", " today"]}
    assert len(list(Template("{who} [eat] {food}.").write(options))) == 2
    assert len(list(Template("{who} [eat] {food}{time}.").write(options))) == 4


def test_the_subject_comes_first_and_every_slot_has_options():
    with pytest.raises(ValueError, match="first"):
        list(Template("{who} [eat] {food}.").write({"food": ["soup"], "who": [SHE]}))
    with pytest.raises(KeyError, match="food"):
        list(Template("{who} [eat] {food}.").write({"who": [SHE]}))


def test_choices_are_made_in_every_way():
    assert expand("a (b|c) d(s) (e|f)") == ["a b d(s) e", "a b d(s) f", "a c d(s) e", "a c d(s) f"]


def test_pairs_are_thinned_like_their_product():
    pairs = [(a, b) for a in range(30) for b in range(7)]
    assert [(a, b) for a, some in thin_pairs(5, range(30), range(7)) for b in some] == list(compress(pairs, spread(5)))
    assert 30 < len(list(compress(pairs, spread(5)))) < 60


def test_a_file_has_lists_and_sentences(small):
    file = WordFile("small")
    assert file.table("food") == {"cow": ["hay", "grass"]}
    found = list(file.write("meal", who=[SHE], food=file.table("food")["cow"]))
    assert ("The aunt eats no grass.",) in found
    assert len(found) == 4
    assert set(file.write("meal", when=lambda who, food: food != "hay", who=SHE, food=["hay", "grass"])) == {
        ("The aunt eats some grass.",),
        ("The aunt eats no grass.",),
    }


def test_a_kind_has_at_most_as_many_sentences_as_its_limit(small):
    file = WordFile("small")
    assert len(file.collect([("meal", [("a",), ("b",)]), ("other", [("c",), ("d",)])])) == 3
    with pytest.raises(ValueError, match="meal"):
        file.collect([("other", [("c",)])])


def test_a_section_has_one_place(small):
    small.write_text(WORDS + "[food]\n", "utf-8")
    with pytest.raises(ValueError, match=r"two sections \[food\]"):
        WordFile("small")


def test_every_file_of_words_can_be_read():
    for name in ("corpus", "entities", "family", "french", "opinions", "phrasebook", "questions", "stories"):
        assert all(word_file(name).sections.values()), name


def test_no_words_are_read_before_they_are_needed():
    code = (
        "import allyouneed.tasks.wordvectors, allyouneed.predict.words, allyouneed.lectures.lengths; "
        "from allyouneed.data.builtin import corpus, entities, family, french, opinions, phrasebook; "
        "from allyouneed.data.builtin import questions, stories; "
        "from allyouneed.data.registry import listing; listing(); "
        "from allyouneed.data.builtin.grammar import word_file; print(word_file.cache_info().misses)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "0"
