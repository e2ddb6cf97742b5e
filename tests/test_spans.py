"""EM and F1 of answers, as SQuAD's official script defines them."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allyouneed.metrics.texts import exact, f1, span_scores

PIECES = ["the", "The", "a", "an", "A.", "cat", "cat's", "Cat", "—", "“", "!", " ", "\u00a0", "\n", "é", "an-", "_a_"]
TEXT = st.one_of(st.text(max_size=20), st.lists(st.sampled_from(PIECES), max_size=8).map(" ".join))


def words(text: str) -> list[str]:
    """In lower case, without punctuation, without articles; written another way than the library does."""
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    parts = re.findall(r"\w+|\W+", plain)
    return "".join(" " if part in ("a", "an", "the") else part for part in parts).split()


def overlap(answer: str, truth: str) -> float:
    found, right = words(answer), words(truth)
    if not found or not right:
        return 1.0 if found == right else 0.0
    rest, common = list(right), 0
    for word in found:
        if word in rest:
            rest.remove(word)
            common += 1
    precision, recall = common / len(found), common / len(right)
    return 2 * precision * recall / (precision + recall) if common else 0.0


@given(TEXT, TEXT)
@settings(max_examples=500, deadline=None)
def test_they_are_the_definition(answer, truth):
    assert exact(answer, truth) == float(words(answer) == words(truth))
    assert f1(answer, truth) == pytest.approx(overlap(answer, truth))


# From the official script, version 2.0.
OFFICIAL = [
    ("The Broncos", "broncos!", 1, 1),
    ("Denver Broncos", "Broncos", 0, 2 / 3),
    ("", "", 1, 1),
    ("the", "", 1, 1),
    ("", "Broncos", 0, 0),
    ("50%", "50", 1, 1),
    ("cats cats dogs", "cats dogs dogs", 0, 2 / 3),
]


@pytest.mark.parametrize(("answer", "truth", "em", "shared"), OFFICIAL)
def test_cases_of_the_official_script(answer, truth, em, shared):
    assert (exact(answer, truth), f1(answer, truth)) == (em, pytest.approx(shared))


def test_the_best_of_several_right_answers_counts():
    em, overlapping = span_scores(
        [("the red cat", ["a red cat", "red"]), ("", []), ("dog", ["a big dog"]), ("", ["the", "…!"])], "|split:test"
    )
    assert em.value == pytest.approx(200 / 4)
    assert overlapping.value == pytest.approx(100 * (1 + 1 + 2 / 3) / 4)
    assert em.signature == "squad|split:test|n:4|ci95:exact"
