"""Sentences with persons, places, organisations and products, written by rules, with held-out combinations of words.

What can be learned from them: the same name is a person who laughs, a place with two airports, a company whose shares
fall or a thing with a battery, as its neighbours tell (Florence, Orion, Lincoln); a capital letter alone makes no name
(May is a month, Will you?); and a name may have several words, one of which is another name (Florence University).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from allyouneed.data.builtin.grammar import Kinds, expand, word_file
from allyouneed.data.builtin.heldout import Columns, hold_out, number_below
from allyouneed.data.examples import TaggedSentence

WAYS = 300  # to fill the slots, shared by the choices of a sentence


def entities() -> dict[str, list[TaggedSentence]]:
    """The splits "train", "valid" and "test"; the tags are IOB2."""
    splits = hold_out(word_file("entities").collect(_kinds()), test=400, valid=300)
    return {
        split: [TaggedSentence(tuple(words.split()), tuple(tags.split())) for words, tags in found]
        for split, found in splits.items()
    }


@cache
def names() -> dict[str, list[str]]:
    """The names for each slot."""
    file = word_file("entities")
    first, last, both = (file.items(name) for name in ("first names", "last names", "organisations and products"))
    return {
        "person": [*first, *(f"{one} {other}" for one in first for other in last)],
        "surname": last,
        "place": file.items("places"),
        "organisation": [*both, *both, *file.items("organisations")],  # `both` as often as the others together
        "product": [*both, *(f"{name} {model}" for name in both for model in file.items("models"))],
    }


def _kinds() -> Kinds:
    for line in word_file("entities").sections["sentences"]:
        yield ("named" if "{" in line else "without names"), _sentences(expand(line))


def _sentences(forms: list[str]) -> Iterator[Columns]:
    for form in forms:
        for number in range(WAYS // len(forms)):
            if example := _fill(form, str(number)):
                yield example


def _fill(form: str, number: str) -> Columns | None:
    """The words of a form and their tags, each between spaces; `number` chooses the names. None if one comes twice."""
    words: list[str] = []
    tags: list[str] = []
    used: set[str] = set()
    for piece in form.split():
        slot = piece.strip("{}")
        if slot == piece:
            words.append(piece)
            tags.append("O")
            continue
        options = names()[slot]
        name = options[number_below(len(options), (form, number, str(len(words))), "fill")].split()
        if used & set(name):
            return None
        used |= set(name)
        kind = "person" if slot == "surname" else slot
        words += name
        tags += [f"B-{kind}", *[f"I-{kind}"] * (len(name) - 1)]
    return " ".join(words), " ".join(tags)
