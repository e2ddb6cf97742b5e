"""Short stories written by rules, for pretraining: each is one document about one person at one place.

What stands in a sentence follows from the ones before it: the person is he or she all along, and at the store nobody
feeds the penguins. So a hidden word can be found from its text, and a passage from another story does not fit.
"""

from __future__ import annotations

from itertools import product

from allyouneed.data.builtin.family import people
from allyouneed.data.builtin.grammar import Phrase, pronouns
from allyouneed.data.builtin.heldout import rank
from allyouneed.data.builtin.wordfile import word_file

VERSIONS = 14  # stories of each person at each place
LENGTH = 7  # sentences of a story between the first one and the last one


def places() -> dict[str, list[str]]:
    """The sentences about each place; each may come anywhere in a story."""
    sections = word_file("stories").sections
    return {name.removeprefix("at the "): lines for name, lines in sections.items() if name.startswith("at the ")}


def stories() -> dict[str, list[str]]:
    """The stories of the splits "train", "valid" and "test", each one text in one line."""
    splits: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for who, place in product(people(), places().items()):
        versions = dict.fromkeys(_story(who, *place, str(number)) for number in range(VERSIONS))
        test, valid, *train = sorted(versions, key=lambda text: rank((text,), "split"))
        for split, texts in (("train", train), ("valid", [valid]), ("test", [test])):
            splits[split] += texts
    return {split: sorted(texts, key=lambda text: rank((text,), "order")) for split, texts in splits.items()}


def _story(who: Phrase, place: str, lines: list[str], number: str) -> str:
    file = word_file("stories")

    def shuffled(lines: list[str]) -> list[str]:
        return sorted(lines, key=lambda line: rank((line, who.en, place), number))

    chosen = [*file.lines("beginning"), *shuffled(lines)[:LENGTH], shuffled(file.lines("endings"))[0]]
    return " ".join(chosen).format(who=who.en, place=place, **pronouns(who.gender, who.person))
