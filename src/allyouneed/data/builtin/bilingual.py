"""Nouns, adjectives and verbs in English and Italian, and what stands before a noun."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from allyouneed.data.builtin.grammar import ITALIAN_VERBS, PLURAL, VOWELS, Phrase, article, italian
from allyouneed.data.builtin.wordfile import WordFile, word_file


class Noun(NamedTuple):
    """A noun in its numbers, one or two, and which adjectives suit it."""

    forms: list[Phrase]
    suits: list[str]

    @property
    def one(self) -> Phrase:
        return self.forms[0]

    @property
    def many(self) -> Phrase:
        return self.forms[1]


class Adjective(NamedTuple):
    """An adjective with its Italian forms, its English comparative, what it suits, and where it stands in Italian."""

    en: str
    it: str
    more: str
    suits: str
    before: bool


class Verb(NamedTuple):
    """A verb, perhaps with what follows it; `it` has the forms of the present."""

    en: str
    it: str
    ing: str
    past: str
    infinitive: str
    gerund: str
    participle: str
    auxiliary: str
    object: str = ""

    def to(self, what: tuple[Any, ...]) -> Verb:
        """The verb with its object, or with another phrase: "eat an apple"."""
        forms = (f"{form} {what[language]}" for form, language in zip(self, (0, 1, 0, 0, 1, 1, 1)))
        return Verb._make([*forms, self.auxiliary, what[0]])


def nouns(file: WordFile, section: str) -> list[Noun]:
    """Lines such as "egg, eggs = uovo, uova = m/f = taste, freshness"."""
    found = []
    for en, it, genders, *suits in file.rows(section):
        texts = zip(en.split(", "), it.split(", "), (genders[0], genders[-1]), (2, PLURAL))
        found.append(Noun([Phrase(*text, kind=section) for text in texts], suits[0].split(", ") if suits else []))
    return found


def adjectives(file: WordFile, section: str) -> list[Adjective]:
    """Lines such as "big, bigger = grande/grande/grandi/grandi = size, before"."""
    found = []
    for en, it, *rest in file.rows(section):
        (word, _, more), (suits, _, before) = en.partition(", "), (rest[0] if rest else "").partition(", ")
        found.append(Adjective(word, it, more, suits, bool(before)))
    return found


def verbs(file: WordFile, section: str) -> dict[str, Verb]:
    """Lines such as "eat, eating, ate = mangiare, mangiando, mangiato = mangio/mangi/mangia/mangiamo/…"."""
    found = {}
    for english_forms, italian_forms, present in file.rows(section):
        (base, ing, past), (infinitive, gerund, participle) = english_forms.split(", "), italian_forms.split(", ")
        auxiliary = ITALIAN_VERBS["essere" if "/" in participle else "avere"]
        found[base] = Verb(base, present, ing, past, infinitive, gerund, participle, auxiliary)
    return found


def opening(word: str) -> int:
    """How a word begins, for the articles: 0 plain, 1 z, s + consonant and similar, 2 vowel."""
    word = word.lower()
    if word[0] in VOWELS:
        return 2
    hard = word[0] in "zxy" or word.startswith(("gn", "ps", "pn")) or (word[0] == "s" and word[1] not in VOWELS)
    return int(hard)


def join(preposition: str, noun: Phrase) -> str:
    """Preposition, definite article and noun in one: "nello zaino", "dell'acqua"; "the" is the article alone."""
    forms = word_file("phrasebook").table("articles")[preposition]
    start = opening(noun.it)
    if noun.gender == "m":
        form = forms[4 + (start > 0)] if noun.plural else forms[start]
    else:
        form = forms[6] if noun.plural else forms[2 if start == 2 else 3]
    return form + noun.it if form.endswith("'") else f"{form} {noun.it}"


def indefinite(noun: Phrase) -> str:
    """un, uno, una or un' and the noun."""
    start = opening(noun.it)
    if noun.gender == "m":
        return ("uno " if start == 1 else "un ") + noun.it
    return ("un'" if start == 2 else "una ") + noun.it


def determine(word: str, noun: Phrase) -> Phrase:
    """The noun with a, the, some, this or a possessive before it, each in its form."""
    en, gender, person = f"{word} {noun.en}", noun.gender, noun.person
    possessives = word_file("phrasebook").table("possessives")
    if word == "a":
        en, it = article(noun.en), indefinite(noun)
    elif word == "this":
        en = f"{'these' if noun.plural else 'this'} {noun.en}"
        it = f"{italian('questo/questa/questi/queste', gender, person)} {noun.it}"
    elif word in possessives:
        it = f"{italian(possessives[word][0], gender, person)} {noun.it}"
        if noun.kind != "kin" or noun.plural or word == "their":  # one relative takes no article: "mia sorella"
            it = join("the", noun._replace(it=it))
    else:
        it = join({"the": "the", "some": "di"}[word], noun)
    return noun._replace(en=en, it=it)


def determined(words: str, nouns: Iterable[Phrase]) -> list[Phrase]:
    """Every noun with each of the words before it."""
    return [determine(word, noun) for word in words.split() for noun in nouns]


def ones(nouns: Iterable[Noun]) -> list[Phrase]:
    """The singular of each noun."""
    return [noun.one for noun in nouns]


def forms(nouns: Iterable[Noun]) -> list[Phrase]:
    """The singular and, if it has one, the plural of each noun."""
    return [form for noun in nouns for form in noun.forms]


def describe(noun: Phrase, adjective: Adjective) -> Phrase:
    """The noun with its adjective, which stands before it or behind it in Italian."""
    form = italian(adjective.it, noun.gender, noun.person)
    it = f"{form} {noun.it}" if adjective.before else f"{noun.it} {form}"
    if adjective.en == "beautiful":  # before its noun, bello follows the pattern of the definite article
        bel = ("bei", "begli", "begli") if noun.plural else ("bel", "bello", "bell'")
        word = f"{bel[opening(noun.it)]} " if noun.gender == "m" else f"{form} "
        it = word.replace("' ", "'") + noun.it
    return noun._replace(en=f"{adjective.en} {noun.en}", it=it)
