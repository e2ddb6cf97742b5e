"""A text about families written by rules, for word vectors: what a person is called tells two things, what they are in
the family (an aunt and an uncle visit, a king and a queen reign) and whether they are he or she.

So the step from "uncle" to "aunt" is the step from "man" to "woman", and `questions` asks for every such step.
"""

from __future__ import annotations

from itertools import permutations

from allyouneed.data.builtin.grammar import Kinds, Phrase, WordFile, word_file
from allyouneed.data.builtin.heldout import hold_out


def family() -> dict[str, str]:
    """The splits "train", "valid" and "test", each one text with one sentence per line."""
    file = word_file("family")
    splits = hold_out(file.collect(_kinds(file)), test=400, valid=400)
    return {split: "".join(f"{line}\n" for (line,) in found) for split, found in splits.items()}


def couples() -> list[tuple[str, str]]:
    """What he is called and what she is called, in each role: ("uncle", "aunt")."""
    return [(him, her) for him, her in (names.split(", ") for names in word_file("family").table("roles"))]


def questions() -> list[tuple[str, str, str, str]]:
    """a is to b as c is to d: uncle is to aunt as man is to woman."""
    return [(a, b, c, d) for (a, b), (c, d) in permutations(couples(), 2)]


def people() -> list[Phrase]:
    """Everybody who has a role in the family."""
    return [Phrase(name, gender=gender) for couple in couples() for name, gender in zip(couple, "mf")]


def _kinds(file: WordFile) -> Kinds:
    anybody = file.sections["anybody"]
    acts = {name: own for names, own in file.table("roles").items() for name in names.split(", ")}
    for who in people():
        yield (
            "sentence",
            file.write("sentence", who=who, act=acts[who.en] + anybody, name=file.table("names")[who.gender]),
        )
