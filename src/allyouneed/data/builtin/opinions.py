"""Short opinions written by rules, each positive, negative or neutral, with held-out combinations of words.

What can be learned from them: a negation turns a word around ("anything but dull"), the main clause or the one after
"but" decides, "not only" is no negation, what was is not what is, and who asks or reports has no opinion. So the words
alone do not tell: most of them stand in positive and in negative opinions alike.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from itertools import permutations

from allyouneed.data.builtin.grammar import Kinds, WordFile, word_file
from allyouneed.data.builtin.heldout import Columns, hold_out
from allyouneed.data.examples import LabelledText

Two = namedtuple("Two", "one other")  # words or clauses of one sentence


def opinions() -> dict[str, list[LabelledText]]:
    """The splits "train", "valid" and "test"."""
    file = word_file("opinions")
    splits = hold_out(file.collect(_kinds(file)), test=500, valid=400)
    return {split: [LabelledText(*columns) for columns in found] for split, found in splits.items()}


def _kinds(file: WordFile) -> Kinds:
    for section in file.sections:
        if section.startswith("topic "):
            topic = file.table(section)
            things, facts = topic["things"], topic["facts"]
            good, bad = topic["good"] + file.items("good"), topic["bad"] + file.items("bad")
            yield from _judging(file, things, good, bad, "positive", "negative")
            yield from _judging(file, things, bad, good, "negative", "positive")
            yield "hearsay", file.write("wish", thing=things, word=good)
            mixed = [Two(*pair) for a in good for b in bad for pair in ((a, b), (b, a))]
            yield "undecided", file.write("two words", thing=things, words=mixed)
            yield "undecided", file.write("asked", thing=things, word=good + bad)
            yield "fact", file.write("fact", fact=facts)


def _judging(file: WordFile, things: list[str], same: list[str], opposite: list[str], label: str, other: str) -> Kinds:
    """Opinions with this label: `same` has the words that say so, `opposite` those for the other label."""

    def clauses(plain: list[str], negated: list[str]) -> list[Columns]:
        words = {"clauses": plain, "negated clauses": negated}
        return [clause for section in words for clause in file.write(section, thing=things, word=words[section])]

    own, against = clauses(same, opposite), clauses(opposite, same)
    yield "plain", file.write("plain", clause=[clause for clause, _ in own], label=label)
    words = [Two(*pair) for pair in permutations(same, 2)]
    yield "not only", file.write("not only", thing=things, words=words, label=label)
    for salt, template in enumerate(file.templates("contrast")):
        yield "contrast", template.write({"clauses": list(_couples(against, own, salt)), "label": [label]})
    yield "agreement", file.write("agreement", clauses=list(_couples(own, own, 5)), label=label)
    yield "change", file.write("change", thing=things, before=opposite, after=same, label=label)
    yield "hearsay", file.write("hearsay", thing=things, word=same, label=label, opposite=other)


def _couples(first: list[Columns], last: list[Columns], salt: int) -> Iterator[Two]:
    """Each clause with some clause about another thing."""
    for place, (clause, thing) in enumerate(first):
        other, another = last[(131 * place + 37 * salt) % len(last)]  # 131 has no factor in common with their number
        if thing != another:
            yield Two(clause, other)
