"""Short French sentences and their English translations, written by rules, with held-out combinations of words.

One French sentence has one English translation. What can be learned from them: three French words may be one English
one, and the other way round ("a été signée": "was signed"); a colour stands after its noun; "it" is il or elle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

from allyouneed.data.builtin.grammar import SINGULAR, Kinds, Phrase, WordFile, article, italian, word_file
from allyouneed.data.builtin.heldout import Columns, hold_out
from allyouneed.data.builtin.phrasebook import Noun, nouns, ones
from allyouneed.data.examples import SentencePair

ELISION = re.compile(r"\b(?:([jn]|qu)e|(l)[ea]) (?=[aeiouéêâh])", re.IGNORECASE)


class Verb(NamedTuple):
    """A verb with its object; `fr` has the forms of the present."""

    en: str
    fr: str
    past: str
    participle: str


def french() -> dict[str, list[SentencePair]]:
    """The splits "train", "valid" and "test", from French to English."""
    file = word_file("french")
    pairs = file.collect((kind, map(_spelled, filter(_said, pairs))) for kind, pairs in _kinds(file))
    translations: dict[str, str] = {}
    for en, fr in pairs:
        if translations.setdefault(fr, en) != en:
            raise ValueError(f"two translations of '{fr}': '{translations[fr]}' and '{en}'")
    splits = hold_out(pairs, test=400, valid=300, train=file.rows("fixed"))
    return {split: [SentencePair(fr, en) for en, fr in found] for split, found in splits.items()}


def _said(pair: Columns) -> bool:
    """After a negation French has "de" for "un", and nobody asks "Am I tired?"."""
    return not re.search(r"n't .*\ba |n't .*\ban |^Am I ", pair[0])


def _spelled(pair: Columns) -> Columns:
    """With "j'ai" for "je ai"."""
    return pair[0], ELISION.sub(r"\1\2'", pair[1])


def _kinds(file: WordFile) -> Kinds:
    pronouns = [
        Phrase(en, fr, gender, int(person)) for en, fr, genders, person in file.rows("pronouns") for gender in genders
    ]
    people = pronouns + [Phrase(name, name, gender) for gender, names in file.table("names").items() for name in names]
    yield "fixed", file.rows("fixed")
    yield "states", file.write("being", who=people, how=file.rows("states"))
    for plural in (False, True):
        roles = [(f"{en}s" if plural else article(en), fr) for en, fr in file.rows("roles")]
        yield "roles", file.write("being", who=[who for who in people if who.plural == plural], how=roles)
    things = {noun.one.en: noun for noun in nouns(file, "things")}
    owned = [thing for noun in things.values() for thing in _described(file, "a", noun)]
    yield "having", file.write("having", share=3, who=people, thing=owned)
    moments, habits = file.rows("moments"), file.rows("habits")
    for en, fr_participle, fr in file.rows("verbs"):
        base, past, participle = en.split(", ")
        used = [things[name] for name in file.table("uses")[base]]
        objects = [thing for noun, word in product(used, ("a", "the", "my")) for thing in _described(file, word, noun)]
        done = fr_participle.split("/")[0]
        do = [
            Verb(f"{base} {thing.en}", f"{fr} {thing.it}", f"{past} {thing.en}", f"{done} {thing.it}")
            for thing in objects
        ]
        yield "present", file.write("present", share=7, who=people, do=do, time=habits)
        when = [moment for moment in moments if not moment[0].startswith("by ")]
        yield "past", file.write("past", share=17, who=people, do=do, time=when)
        for plural in (False, True):
            who = [_determine(file, word, noun.forms[plural]) for word in ("the", "my", "our") for noun in used]
            was, how = "were" if plural else "was", (participle, fr_participle)
            yield "passive", file.write("passive", share=2, who=who, was=was, done=[how], time=moments)
    yield from _reasons(file)


def _reasons(file: WordFile) -> Kinds:
    """What "it" is, the animal or what it did not cross, shows in the adjective and often in the pronoun."""
    own, reasons = file.rows("own reasons"), file.rows("reasons")
    for animal, what in product(ones(nouns(file, "animals")), nouns(file, "crossings")):
        why = [(en, fr, animal) for en, fr in own] + [(en, fr, what.one) for en, fr in reasons if en in what.suits]
        how = [
            (en, f"{'il' if it.gender == 'm' else 'elle'} était trop {italian(fr, it.gender, SINGULAR)}")
            for en, fr, it in why
        ]
        where = _determine(file, "the", what.one)
        yield "because", file.write("because", who=_determine(file, "the", animal), what=where, how=how)


def _determine(file: WordFile, word: str, noun: Phrase) -> Phrase:
    """The noun after a word of the section "articles"."""
    form = file.table("articles")[word][2 if noun.plural else noun.gender == "f"]
    en = noun.en if word == "a" and noun.plural else article(noun.en) if word == "a" else f"{word} {noun.en}"
    return noun._replace(en=en, it=f"{form} {noun.it}")


def _described(file: WordFile, word: str, noun: Noun) -> Iterable[Phrase]:
    """The noun alone, with a size before it and, if it has one, with a colour, which stands after it in French."""
    one = noun.one
    yield _determine(file, word, one)
    sizes, colours = file.rows("sizes"), file.rows("colours") if "coloured" in noun.suits else []
    for en, fr in sizes + colours:
        form = italian(fr, one.gender, SINGULAR)
        texts = f"{form} {one.it}" if (en, fr) in sizes else f"{one.it} {form}"
        yield _determine(file, word, one._replace(en=f"{en} {one.en}", it=texts))
