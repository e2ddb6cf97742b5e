"""Sentences about how people and things are, where they are, and whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from allyouneed.data.builtin import phrasebook_words as w
from allyouneed.data.builtin.heldout import thin
from allyouneed.data.builtin.phrasebook_grammar import (
    BE,
    HAVE,
    Adjective,
    Noun,
    Pair,
    Phrase,
    Subject,
    a,
    be,
    being,
    doing,
    join,
    moods,
    noun_subject,
    numbers_of,
    owned,
    phrase,
    present,
    sentence,
    some,
    the,
    this,
    this_alone,
)

MASS = [*w.DISHES, *w.DRINKS]
WARES = [*w.THINGS, *w.CLOTHES]
SMALL = [noun for noun in WARES if "v" in noun.tags]
OWNED = [noun for noun in WARES if noun.en not in ("door", "window")]
CAT = next(noun for noun in w.ANIMALS if noun.en == "cat")
SINGLE = [noun for noun in OWNED if noun.en != "shoe"]
SIMPLE = [*w.PRONOUNS, *w.NAMES, *w.COUPLES]
PERSONS = [noun_subject(the(person), person) for person in numbers_of(w.PEOPLE)]
FRIENDS = [
    noun_subject((f"{name.en}'s {friend.en}", f"{the(friend)[1]} di {name.it}"), friend)
    for name, friend in product(w.NAMES, numbers_of([w.FRIEND]))
]
FRIENDS += [
    noun_subject(owned(owner, friend), friend)
    for owner, friend in product(("my", "your", "our", "her"), numbers_of([w.FRIEND]))
]
MY_FAMILY, *OTHER_FAMILIES = [
    [noun_subject(owned(owner, person, kin=True), person) for person in numbers_of(w.KIN)]
    for owner in ("my", "your", "our", "their")
]
FAMILY = [*MY_FAMILY, *(person for family in OTHER_FAMILIES for person in family)]


ALL_SUITS = [adjective for adjectives in w.SUITS.values() for adjective in adjectives]


def suits(noun: Noun) -> list[Adjective]:
    return [adjective for tag in noun.tags for adjective in w.SUITS.get(tag, ())]


def described(nouns: list[Noun], plural: bool) -> Iterator[Phrase]:
    """Each noun with the colours, sizes and merits one asks for: "a red car", "two beautiful mirrors"."""
    for noun in nouns:
        for tag in noun.tags:
            for adjective in w.SUITS[tag] if tag in "csbne" else ():
                yield phrase(noun, plural, adjective)


def people_are(subjects: list[Subject]) -> Iterator[Pair]:
    for who, quality in thin(1 + len(subjects) // 40, product(subjects, [*w.QUALITIES, *w.NATIONALITIES])):
        yield from being(who, quality.en, quality.agree(who.gender, who.plural))


def very() -> Iterator[Pair]:
    for who, quality in product([*SIMPLE, *PERSONS], w.QUALITIES):
        if quality.more:
            form = quality.agree(who.gender, who.plural)
            yield sentence(f"{who.en} {be(who)} very {quality.en}", f"{who.it} {BE[who.person]} molto {form}")


def two_qualities() -> Iterator[Pair]:
    for who, one, two in thin(7, product(SIMPLE, w.QUALITIES, w.QUALITIES)):
        if one is not two and {one.en, two.en} != {"happy", "sad"}:
            first, second = (quality.agree(who.gender, who.plural) for quality in (one, two))
            it = f"{who.it} {BE[who.person]} {first} e {second}"
            yield sentence(f"{who.en} {be(who)} {one.en} and {two.en}", it)


def roles() -> Iterator[Pair]:
    for who, pair in product(SIMPLE, w.ROLES):
        role = phrase(pair[who.gender == "f"], who.plural)
        yield from being(who, *((role.en, role.it) if who.plural else a(role)))


def feelings() -> Iterator[Pair]:
    for who, (en, it) in product([*SIMPLE, *MY_FAMILY], w.FEELINGS.items()):
        yield from moods(who, be(who), en, f"{be(who)} {en}", f"{HAVE[who.person]} {it}")


def things_are() -> Iterator[Pair]:
    for noun, owner, adjective in thin(5, product(WARES, ("the", "this", "my", "your", "their"), ALL_SUITS)):
        if adjective in suits(noun):
            for thing in numbers_of([noun]):
                pair = {"the": the, "this": this}[owner](thing) if owner in ("the", "this") else owned(owner, thing)
                form = adjective.agree(thing.gender, thing.plural)
                yield from being(noun_subject(pair, thing), adjective.en, form)


def food_is() -> Iterator[Pair]:
    for noun, choose in product([*w.FOODS, *MASS], (the, this)):
        for thing, adjective in product(numbers_of([noun]), suits(noun)):
            form = adjective.agree(thing.gender, thing.plural)
            yield from being(noun_subject(choose(thing), thing), adjective.en, form)


def comparisons() -> Iterator[Pair]:
    bigger, smaller = w.SUITS["s"]
    for (i, one), (j, two) in product(enumerate(w.ANIMALS), enumerate(w.ANIMALS)):
        if i != j:
            yield compare(noun_subject(the(phrase(one)), phrase(one)), bigger if i > j else smaller, phrase(two))
    for one, two in thin(3, product(WARES, WARES)):
        for adjective in suits(one):
            if one is not two and adjective in suits(two) and adjective.more and adjective not in (bigger, smaller):
                yield compare(noun_subject(the(phrase(one)), phrase(one)), adjective, phrase(two))
    for left, right, quality in thin(3, product(w.NAMES, [*w.NAMES, *w.COUPLES], w.QUALITIES)):
        if quality.more and left.en not in right.en:
            form = quality.agree(left.gender, False)
            yield sentence(f"{left.en} is {quality.more} than {right.en}", f"{left.it} è più {form} di {right.it}")


def compare(left: Subject, adjective: Adjective, right: Phrase) -> Pair:
    it = f"{left.it} è più {adjective.agree(left.gender, False)} {join('di', right)}"
    return sentence(f"{left.en} is {adjective.more} than the {right.en}", it)


def having() -> Iterator[Pair]:
    objects = [*described(SINGLE, False), *(phrase(noun) for noun in [*w.ANIMALS, *SINGLE])]
    for who, verb, thing in thin(11, product(SIMPLE, ("have", "want"), objects)):
        yield from doing(who, w.VERBS[verb], *a(thing))


def merits() -> Iterator[Pair]:
    """Adjectives before their noun change its article: "un vecchio specchio", "i begli orologi"."""
    for noun, adjective in product(OWNED, ALL_SUITS):
        if adjective.before and adjective in suits(noun):
            one, many = phrase(noun, False, adjective), phrase(noun, True, adjective)
            (this_, questo), (these, questi) = this_alone(one), this_alone(many)
            yield sentence(f"{this_} is {a(one)[0]}", f"{questo} è {a(one)[1]}")
            yield sentence(f"{these} are {many.en}", f"{questi} sono {many.it}")
            yield sentence(f"{these} are the {many.en}", f"{questi} sono {the(many)[1]}")


def counting() -> Iterator[Pair]:
    plurals = [phrase(noun, True) for noun in [*w.ANIMALS, *OWNED, *w.FOODS]] + list(described(OWNED, True))
    choices = product(SIMPLE, ("have", "see", "buy"), list(w.NUMBERS.items())[:6], plurals)
    for who, verb, (en, it), thing in thin(37, choices):
        third, form = present(w.VERBS[verb], who)
        yield sentence(f"{who.en} {third} {en} {thing.en}", f"{who.it} {form} {it} {thing.it}")


def places_of(thing: Noun) -> Iterator[Pair]:
    """Where a small thing, an animal or food may lie: "in the bag", "nella borsa"."""
    for en, preposition, spot in w.SPOTS:
        if spot.en != thing.en and not (thing in w.FOODS and en in ("under", "behind")):
            there = phrase(spot)
            it = join(preposition, there) if preposition in ("su", "in") else f"{preposition} {join('', there)}"
            yield f"{en} the {spot.en}", it


def there_is() -> Iterator[Pair]:
    for thing in [*SMALL, *w.FOODS, CAT]:
        one, many = a(phrase(thing)), phrase(thing, True)
        for en, it in places_of(thing):
            yield sentence(f"there is {one[0]} {en}", f"c'è {one[1]} {it}")
        for (en, it), (number, numero) in thin(3, product(places_of(thing), list(w.NUMBERS.items())[:5])):
            yield sentence(f"there are {number} {many.en} {en}", f"ci sono {numero} {many.it} {it}")
    for (en, it), (spot, posto) in product([some(phrase(drink)) for drink in w.DRINKS], places_of(w.FOODS[0])):
        if spot.startswith("on "):
            yield sentence(f"there is {en} {spot}", f"c'è {it} {posto}")


def lying() -> Iterator[Pair]:
    for noun in [*SMALL, *w.FOODS, CAT]:
        for thing, place in thin(3, product(numbers_of([noun]), list(places_of(noun)))):
            for pair in (the(thing), owned("my", thing), owned("her", thing)):
                yield from being(noun_subject(pair, thing), *place)


def where_is() -> Iterator[Pair]:
    places = [phrase(place) for _, _, place in w.PLACES]
    found = [noun_subject(the(thing), thing) for thing in [*numbers_of([*WARES, *w.ANIMALS, *w.PEOPLE]), *places]]
    found += [noun_subject(owned(o, x), x) for o, x in product(("my", "your", "our"), numbers_of(SMALL))]
    for thing in [*found, *FRIENDS, *FAMILY]:
        if thing.plural:
            yield sentence(f"where are {thing.en}", f"dove sono {thing.it}", "?")
        else:
            yield sentence(f"where is {thing.en}", f"dov'è {thing.it}", "?")
    for place in places:
        yield sentence(f"excuse me, where is {the(place)[0]}", f"scusi, dov'è {the(place)[1]}", "?")


def mine() -> Iterator[Pair]:
    things = [(thing, False) for thing in numbers_of([*WARES, CAT])] + [(x, True) for x in numbers_of(w.KIN)]
    for owner, (thing, kin) in product(("my", "your", "his", "her", "our", "their"), things):
        verb = ("are", "sono") if thing.plural else ("is", "è")
        (en, it), (these, queste) = owned(owner, thing, kin), this_alone(thing)
        yield sentence(f"{these} {verb[0]} {en}", f"{queste} {verb[1]} {it}")
        if not kin:
            yield sentence(f"{verb[0]} {these} {en}", f"{queste} {verb[1]} {it}", "?")
        if kin and not thing.plural:
            who = Subject("he", "lui", 2, "m") if thing.gender == "m" else Subject("she", "lei", 2, "f")
            yield from being(who, en, it)


def belonging() -> Iterator[Pair]:
    owners = [(f"{name.en}'s", f"di {name.it}") for name in w.NAMES]
    owners += [(f"the {person.en}'s", join("di", person)) for person in map(phrase, w.PEOPLE)]
    owners += [(f"my {person.en}'s", f"di {owned('my', person, kin=True)[1]}") for person in map(phrase, w.KIN)]
    for (en, it), thing in product(owners, numbers_of(WARES)):
        verb = ("are", "sono") if thing.plural else ("is", "è")
        these, queste = this_alone(thing)
        yield sentence(f"{these} {verb[0]} {en} {thing.en}", f"{queste} {verb[1]} {the(thing)[1]} {it}")
