"""The words of a text: they come out as the training data has them, where it shows how."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allyouneed.errors import UserError
from allyouneed.text.word_boundaries import WordCutter, WordText

NEWS = """
Mr. Berg did n't leave the U.S. on Monday .
It 's 3.5 % , an e-mail to the U.S. says .
They wo n't pay $ 1,000 , Mr. Silva said ( at 10:30 ) .
Anna 's well-known friends lost ... 3-2 !
"""
CHAT = """
@anna I don't know :) #oslo 100%
can't pay $5 ... see http://t.co/x1 :)
@omar it won't rain , 30% at most and/or late
"""
ITALIAN = "L' uomo dell' isola vide l' Etna ."
SPACES = "Anna lives in Oslo. Omar, too, lives there. Lima! Is it far?"


def learned(data: str) -> WordCutter:
    return WordCutter.learn(line.split() for line in data.strip().splitlines())


def cut(cutter: WordCutter, text: str) -> list[str]:
    return [text[start:end] for start, end in cutter.find(text)]


@pytest.mark.parametrize(
    ("data", "text", "words"),
    [
        (NEWS, "Mr. Rossi isn't in the U.S., he's in Oslo.", "Mr. Rossi is n't in the U.S. , he 's in Oslo ."),
        (NEWS, "(Mr. Hill's e-mail)", "( Mr. Hill 's e-mail )"),
        (NEWS, "It lost 2.25% of $3,000 at 9:15...", "It lost 2.25 % of $ 3,000 at 9:15 ..."),
        (NEWS, 'A "good-looking" man,Oslo/Lima—and Rome!', 'A " good-looking " man , Oslo / Lima — and Rome !'),
        (CHAT, "@nina doesn't pay $20, 15% :)", "@nina doesn't pay $20 , 15% :)"),
        (CHAT, "Oslo/Lima (http://t.co/zz9), #lima!", "Oslo/Lima ( http://t.co/zz9 ) , #lima !"),
        (ITALIAN, "Vide l'Etna, dell'isola.", "Vide l' Etna , dell' isola ."),
        (SPACES, "Peter lives in Rome. Is it far?", "Peter lives in Rome. Is it far?"),
        ("Anna left", "Anna's e-mail, don't!", "Anna 's e-mail , don 't !"),
    ],
)
def test_a_text_is_cut_as_the_training_data_is(data, text, words):
    assert cut(learned(data), text) == words.split()


@pytest.mark.parametrize("data", [NEWS, CHAT, ITALIAN, SPACES])
def test_the_training_sentences_come_out_as_they_are(data):
    for line in data.strip().splitlines():
        assert cut(learned(data), line) == line.split()


def test_a_text_that_is_already_cut_stays_as_it_is():
    """Its words were never seen; that it is cut, its comma or full stop tells."""
    text = "St. Mary of the U.K. , Rossi/Hill's aunt ( 70% ) , left ."
    assert cut(learned(NEWS), text) == text.split()
    loose = "St. Mary , Rossi's aunt, left."
    assert cut(learned(NEWS), loose) == ["St", ".", "Mary", ",", "Rossi", "'s", "aunt", ",", "left", "."]


words = st.text(st.sampled_from("aB3.,'’\"-()!:/@%…\u0301é日"), min_size=1, max_size=6)
sentences = st.lists(st.lists(words, min_size=1, max_size=6), max_size=5)


@given(sentences)
@settings(max_examples=300, deadline=None)
def test_every_training_sentence_between_spaces_comes_out_again(data):
    cutter = WordCutter.learn(data)
    for sentence in data:
        assert cut(cutter, " ".join(sentence)) == sentence
    assert WordCutter.parse(cutter.to_dict()) == cutter


@given(sentences, st.text(max_size=40) | st.lists(words).map("".join))
@settings(max_examples=300, deadline=None)
def test_words_are_all_that_is_not_white_space(data, text):
    places = WordCutter.learn(data).find(text)
    assert all(start < end for start, end in places)
    assert all(before[1] <= after[0] for before, after in pairwise(places))
    kept = {i for start, end in places for i in range(start, end)}
    assert kept == {i for i, character in enumerate(text) if not re.match(r"\s", character)}


def test_a_very_long_piece_takes_no_time():
    cutter, start = learned(NEWS), time.process_time()
    for piece in ("(" * 65536, "x" * 65536, "x'" * 32768, "...)" * 16384, "a," * 32768):
        assert sum(end - start for start, end in cutter.find(piece)) == len(piece)
    assert time.process_time() - start < 10


def test_words_that_are_given_are_those_of_the_text():
    text = WordText.of(["U.S.", "New York", "don't", "\N{NO-BREAK SPACE}x"])
    assert text == "U.S. New\N{NO-BREAK SPACE}York don't x"
    assert [text[start:end] for start, end in text.spans] == text.split(" ")
    for bad in ([], ["a", " "], ["a", ""], ["a", 3], ["a", None]):
        with pytest.raises(UserError, match=r"is an empty list|is not a word: a text is a string, or a list of words"):
            WordText.of(bad)


DAMAGE = [{"before": 3}, {"whole": [3]}, {"whole": "U.S."}, {"joins": None}, {"more": []}, {"whole": [["a"]]}]


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_a_run_keeps_is_checked(damage):
    with pytest.raises(ValueError, match=r"is not a list of words|does not have the lists"):
        WordCutter.parse({**WordCutter().to_dict(), **damage})
    with pytest.raises(ValueError, match="does not have the lists"):
        WordCutter.parse([])
