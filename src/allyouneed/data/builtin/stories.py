"""Short stories written by rules, for pretraining: each is one document about one person at one place.

What stands in a sentence follows from the ones before it: the person is he or she all along, and at the store nobody
feeds the penguins. So a hidden word can be found from its text, and a passage from another story does not fit. What is
said of a dog at the park is drawn from a few words: for "My dog is [MASK]." several are likely.
"""

from __future__ import annotations

from itertools import product

from allyouneed.data.builtin.family import people
from allyouneed.data.builtin.grammar import Phrase, expand, pronouns, word_file
from allyouneed.data.builtin.heldout import number_below, rank

VERSIONS = 12  # stories of each person at each place
LENGTH = 7  # sentences of a story between the first one and the last one


def sentences_by_place() -> dict[str, list[str]]:
    """The sentences about each place; each may come anywhere in a story."""
    sections = word_file("stories").sections
    return {name.removeprefix("at the "): some for name, some in sections.items() if name.startswith("at the ")}


def stories() -> dict[str, list[str]]:
    """The stories of the splits "train", "valid" and "test", each one text in one line."""
    splits: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for who, place in product(people(), sentences_by_place().items()):
        versions = dict.fromkeys(_story(who, *place, str(number)) for number in range(VERSIONS))
        test, valid, *train = sorted(versions, key=lambda text: rank((text,), "split"))
        for split, texts in (("train", train), ("valid", [valid]), ("test", [test])):
            splits[split] += texts
    return {split: sorted(texts, key=lambda text: rank((text,), "order")) for split, texts in splits.items()}


def _story(who: Phrase, place: str, sentences: list[str], number: str) -> str:
    sections = word_file("stories").sections

    def shuffled(sentences: list[str]) -> list[str]:
        return sorted(sentences, key=lambda sentence: rank((sentence, who.en, place), number))

    def one_of(choices: list[str]) -> str:
        return choices[number_below(len(choices), (choices[0], who.en, place), number)]

    about = [one_of(expand(sentence)) for sentence in shuffled(sentences)[:LENGTH]]
    chosen = [*sections["beginning"], *about, shuffled(sections["endings"])[0]]
    return " ".join(chosen).format(who=who.en, place=place, **pronouns(who.gender, who.person))
