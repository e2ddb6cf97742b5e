"""Sentences with persons, places, organisations and products, written by rules, with held-out combinations of words.

What can be learned from them: the same name is a person who laughs, a place with two airports, a company whose shares
fall or a thing with a battery, as its neighbours tell (Florence, Orion, Lincoln); a capital letter alone makes no name
(May is a month, Will you?); and a name may have several words, one of which is another name (Florence University).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from allyouneed.data.builtin.heldout import Columns, choose, hold_out, rank
from allyouneed.data.examples import TaggedSentence

SIZES = {"test": 400, "valid": 300}
MOST = 5000  # sentences with names

# Some first names are places, too, some are words; some last names are places.
FIRST = (
    *("Anna", "Omar", "Laura", "Peter", "Yuki", "Nina", "Daniel"),
    *("Florence", "Sydney", "Victoria", "Austin", "Georgia", "Jordan", "Rose", "Mark", "Will", "May", "Grace"),
)
LAST = ("Berg", "Rossi", "Novak", "Silva", "Tanaka", "Lincoln", "London", "Hill", "Bell", "Carter")
BOTH = ("Orion", "Atlas", "Nova", "Falcon", "Comet", "Breeze")  # of organisations and products
NAMES = {
    "person": (*FIRST, *(f"{first} {last}" for first, last in product(FIRST, LAST))),
    "surname": LAST,
    "place": (
        *("Oslo", "Lima", "Kyoto", "Cape Town", "New York", "San Marino", "London", "Lincoln"),
        *("Florence", "Sydney", "Victoria", "Austin", "Georgia", "Jordan"),
    ),
    "organisation": (
        *(*BOTH, *BOTH),  # as often as the others together
        *("Florence University", "Georgia Airlines", "Bell Motors", "Carter and Sons", "Rose Books", "Northwind"),
        *("Lincoln College", "Sydney Opera", "Oslo Trams", "Hill Foods", "New York Press", "Tanaka Brothers"),
    ),
    "product": (*BOTH, *(f"{name} {model}" for name in BOTH for model in ("3", "Mini", "Pro"))),
}
KIND = {"surname": "person"}  # the other kinds have the name of their slot

# {slots} for names, and (one|of|these) choices.
FORMS = (
    "{person} (laughed|smiled|waited|was tired after dinner|is my neighbour) .",
    "(Yesterday|Today|In May) I met {person} at the (station|market) .",
    "{person} , who is a (doctor|baker) , lives in {place} .",
    "{person} was born in {place} (in May|in June|years ago) .",
    "{person} and {person} (got married|danced|had lunch) in {place} .",
    "Please ask {person} for the (key|map|book) .",
    "{person} told {person} a (joke|story) .",
    "(Mr|Mrs|Doctor) {surname} reads (the paper|a book|letters) every (morning|evening) .",
    "(Mr|Mrs|Doctor) {surname} moved to {place} .",
    "(Mr|Mrs|Doctor) {surname} (is here|is tired|works for {organisation}|told {person} a story) .",
    "(Mr|Mrs|Doctor) {surname} and {person} left {organisation} .",
    "{person} is (here|tired|in the office|in {place}) .",
    "{person} met (Mr|Mrs|Doctor) {surname} in (May|June) .",
    "We had lunch with (Mr|Mrs|Doctor) {surname} in {place} .",
    "{place} (has two airports|is a lovely town|was cold this year) .",
    "We spent a (week|month) in {place} (yesterday|in June|years ago) .",
    "The (train|road|flight) to {place} was (late|long|empty) .",
    "It (rains|snows) a lot in {place} .",
    "{place} is (near|far from) {place} .",
    "{person} (loves|left) {place} , and {person} (loves|left) {place} , too .",
    "They (flew|drove|walked) from {place} to {place} .",
    "The mayor of {place} met {person} (yesterday|today|in May) .",
    "The (streets|trains) of {place} were (empty|cold|late) .",
    "{organisation} hired (three|two) hundred people in {place} .",
    "{organisation} (opened|closed) an office in {place} .",
    "The shares of {organisation} (fell|rose) by (two|three) percent .",
    "{person} (works|will work) for {organisation} .",
    "{person} left {organisation} and went to {organisation} .",
    "The head of {organisation} is {person} .",
    "{organisation} , based in {place} , makes (bicycles|bells|maps) .",
    "{organisation} and {organisation} signed a contract (today|in June) .",
    "{organisation} (is a good company|hired {person}|lost a lot of money) .",
    "I bought a new {product} (yesterday|today|in May) .",
    "The (battery|screen) of my {product} is (empty|old|too dark) .",
    "{person} repaired the old {product} .",
    "{organisation} sells the {product} for (ninety|two hundred) euros .",
    "Have you (tried|seen) the {product} ?",
    "The {product} is a good (phone|camera) .",
    "{person} bought a {product} from {organisation} in {place} .",
    "My {product} broke in {place} .",
    "{person} lost a {product} on the way to {place} .",
    "(Will|Can) you come (in May|in June|today) ?",
    "May I (mark|close|open) the (book|map|office) ?",
    "She (will|can) mark the (letters|maps|books) (in May|in June|today) .",
    "May was (cold|long|lovely) this year .",
    "The (rose|hill|bell|atlas|falcon) is (old|lovely|too dark) .",
    "A (rose|bell|falcon|comet) (rose|fell) over the (hill|market|road) .",
    "A (cold|lovely) breeze came from the (hill|market|road) .",
    "We danced with (grace|joy) (yesterday|today|in June) .",
    "I bought a new (atlas|bell|book|map) (yesterday|today|in May) .",
    "The (doctor|mayor|baker) reads (the paper|a book|letters) every (morning|evening) .",
    "Mark the (road|hill|station) on the (map|atlas) .",
)
WAYS = 300  # to fill the slots, shared by the choices of a form


def expanded(form: str) -> list[str]:
    """The form with every choice made in every way."""
    return ["".join(chosen) for chosen in product(*(piece.split("|") for piece in re.split(r"[()]", form)))]


def filled(form: str, number: int) -> Columns | None:
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
        drawn = int.from_bytes(rank((form, str(number), str(len(words))), "fill")[:4], "big")
        name = NAMES[slot][drawn % len(NAMES[slot])].split()
        if used & set(name):
            return None
        used |= set(name)
        kind = KIND.get(slot, slot)
        words += name
        tags += [f"B-{kind}", *[f"I-{kind}"] * (len(name) - 1)]
    return " ".join(words), " ".join(tags)


def sentences(names: bool) -> Iterator[Columns]:
    """Those with names, or those without."""
    for form in FORMS:
        if names == ("{" in form):
            choices = expanded(form)
            made = (filled(choice, number) for choice in choices for number in range(WAYS // len(choices)))
            yield from (example for example in made if example is not None)


def entities() -> dict[str, list[TaggedSentence]]:
    """The splits "train", "valid" and "test"; the tags are IOB2."""
    splits = hold_out([*choose(sentences(names=True), MOST), *dict.fromkeys(sentences(names=False))], SIZES)
    return {
        name: [TaggedSentence(tuple(words.split()), tuple(tags.split())) for words, tags in splits[name]]
        for name in ("train", "valid", "test")
    }
