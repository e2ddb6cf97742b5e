"""The grammar of the phrasebook: how words agree, and how articles and prepositions join them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Pair = tuple[str, str]  # the same words in English and in Italian
VOWELS = "aeiouàèéìòù"
ARTICLES = {
    "a": "al allo all' alla ai agli alle",
    "da": "dal dallo dall' dalla dai dagli dalle",
    "di": "del dello dell' della dei degli delle",
    "in": "nel nello nell' nella nei negli nelle",
    "su": "sul sullo sull' sulla sui sugli sulle",
    "": "il lo l' la i gli le",
}
POSSESSIVES = {
    "my": "mio mia miei mie",
    "your": "tuo tua tuoi tue",
    "his": "suo sua suoi sue",
    "her": "suo sua suoi sue",
    "our": "nostro nostra nostri nostre",
    "their": "loro loro loro loro",
}
BE = ["sono", "sei", "è", "siamo", "siete", "sono"]
HAVE = ["ho", "hai", "ha", "abbiamo", "avete", "hanno"]
STAY = ["sto", "stai", "sta", "stiamo", "state", "stanno"]


@dataclass(frozen=True)
class Noun:
    """A noun in both languages. `tags` say which adjectives suit it; a mass noun has no plural."""

    en: str
    en_plural: str
    it: str
    it_plural: str
    gender: str
    tags: str = ""
    plural_gender: str = ""


@dataclass(frozen=True)
class Adjective:
    """An adjective; `it` holds its four forms: m. sing., f. sing., m. plural, f. plural."""

    en: str
    it: str
    more: str = ""
    before: bool = False

    def agree(self, gender: str, plural: bool) -> str:
        return agree(self.it, gender, plural)


@dataclass(frozen=True)
class Phrase:
    """A noun, perhaps with its adjective, before any article."""

    en: str
    it: str
    gender: str
    plural: bool


@dataclass(frozen=True)
class Subject:
    """Who does it: `person` counts io, tu, lui/lei, noi, voi, loro from 0."""

    en: str
    it: str
    person: int
    gender: str

    @property
    def plural(self) -> bool:
        return self.person > 2


@dataclass(frozen=True)
class Verb:
    """English base, third person, -ing and past; Italian infinitive, gerund, participle and present."""

    base: str
    third: str
    ing: str
    past: str
    infinitive: str
    gerund: str
    participle: str
    present: str


def agree(forms: str, gender: str, plural: bool) -> str:
    """One of four forms: m. sing., f. sing., m. plural, f. plural."""
    return forms.split()[2 * plural + (gender == "f")]


def opening(word: str) -> int:
    """How a word begins, for the articles: 0 plain, 1 z, s + consonant and similar, 2 vowel."""
    word = word.lower()
    if word[0] in VOWELS:
        return 2
    hard = word[0] in "zxy" or word.startswith(("gn", "ps", "pn")) or (word[0] == "s" and word[1] not in VOWELS)
    return int(hard)


def join(preposition: str, phrase: Phrase) -> str:
    """Preposition, definite article and phrase in one: "nello zaino", "dell'acqua"; "" is the article alone."""
    forms = ARTICLES[preposition].split()
    start = opening(phrase.it)
    if phrase.gender == "m":
        article = forms[4 + (start > 0)] if phrase.plural else forms[start]
    else:
        article = forms[6] if phrase.plural else forms[2 if start == 2 else 3]
    return article + phrase.it if article.endswith("'") else f"{article} {phrase.it}"


def indefinite(phrase: Phrase) -> str:
    """un, uno, una or un' and the phrase."""
    start = opening(phrase.it)
    if phrase.gender == "m":
        return ("uno " if start == 1 else "un ") + phrase.it
    return ("un'" if start == 2 else "una ") + phrase.it


def beautiful(word: str, gender: str, plural: bool) -> str:
    """bello before its noun follows the pattern of the definite article: bel, bello, bell', bei, begli."""
    if gender == "f":
        return ("belle " if plural else "bella ") + word
    if plural:
        return ("begli " if opening(word) else "bei ") + word
    return ("bel ", "bello ", "bell'")[opening(word)] + word


def phrase(noun: Noun, plural: bool = False, adjective: Adjective | None = None) -> Phrase:
    """The noun in its number, with its adjective in the Italian position."""
    en, it = (noun.en_plural, noun.it_plural) if plural else (noun.en, noun.it)
    gender = noun.plural_gender or noun.gender if plural else noun.gender
    if adjective is not None:
        en, form = f"{adjective.en} {en}", adjective.agree(gender, plural)
        if adjective.en == "beautiful":
            it = beautiful(it, gender, plural)
        else:
            it = f"{form} {it}" if adjective.before else f"{it} {form}"
    return Phrase(en, it, gender, plural)


def the(phrase: Phrase) -> Pair:
    return f"the {phrase.en}", join("", phrase)


def a(phrase: Phrase) -> Pair:
    return f"{'an' if phrase.en[0] in VOWELS else 'a'} {phrase.en}", indefinite(phrase)


def some(phrase: Phrase) -> Pair:
    return f"some {phrase.en}", join("di", phrase)


def this(phrase: Phrase) -> Pair:
    """this or these, with the noun."""
    return f"{this_alone(phrase)[0]} {phrase.en}", f"{this_alone(phrase)[1]} {phrase.it}"


def this_alone(phrase: Phrase) -> Pair:
    """this or these, for the noun but without it: "Questa è la mia borsa."."""
    return "these" if phrase.plural else "this", agree("questo questa questi queste", phrase.gender, phrase.plural)


def owned(owner: str, phrase: Phrase, kin: bool = False) -> Pair:
    """A possessive with its noun; one relative takes no article ("mia sorella"), except with loro."""
    form = agree(POSSESSIVES[owner], phrase.gender, phrase.plural)
    it = f"{form} {phrase.it}"
    if not kin or phrase.plural or owner == "their":
        it = join("", Phrase(phrase.en, it, phrase.gender, phrase.plural))
    return f"{owner} {phrase.en}", it


def be(subject: Subject) -> str:
    return {0: "am", 2: "is"}.get(subject.person, "are")


def do(subject: Subject) -> str:
    return "does" if subject.person == 2 else "do"


def present(verb: Verb, subject: Subject) -> Pair:
    en = verb.third if subject.person == 2 else verb.base
    return en, verb.present.split()[subject.person]


def sentence(en: str, it: str, end: str = ".") -> Pair:
    return en[0].upper() + en[1:] + end, it[0].upper() + it[1:] + end


def moods(subject: Subject, helper: str, rest: str, plain: str, it: str) -> Iterator[Pair]:
    """A statement, its negation and its question, except those nobody says: "not … some", "Am I …?"."""
    yield sentence(f"{subject.en} {plain}", f"{subject.it} {it}")
    if "some " not in rest:
        yield sentence(f"{subject.en} {helper} not {rest}", f"{subject.it} non {it}")
    if subject.en != "I":
        yield sentence(f"{helper} {subject.en} {rest}", f"{subject.it} {it}", "?")


def being(subject: Subject, en: str, it: str) -> Iterator[Pair]:
    return moods(subject, be(subject), en, f"{be(subject)} {en}", f"{BE[subject.person]} {it}")


def doing(subject: Subject, verb: Verb, en: str, it: str) -> Iterator[Pair]:
    third, form = present(verb, subject)
    return moods(subject, do(subject), f"{verb.base} {en}", f"{third} {en}", f"{form} {it}")


def acting(subject: Subject, verb: Verb, en: str, it: str) -> Iterator[Pair]:
    """Right now: "I am eating", "Io sto mangiando"."""
    en, it = f"{verb.ing} {en}".strip(), f"{STAY[subject.person]} {verb.gerund} {it}".strip()
    return moods(subject, be(subject), en, f"{be(subject)} {en}", it)


def done(subject: Subject, verb: Verb, en: str, it: str, moving: bool = False) -> Iterator[Pair]:
    """Passato prossimo; verbs of moving take essere, and their participle agrees."""
    if moving:
        ending = agree("o a i e", subject.gender, subject.plural)
        it = f"{BE[subject.person]} {verb.participle[:-1]}{ending} {it}"
    else:
        it = f"{HAVE[subject.person]} {verb.participle} {it}"
    return moods(subject, "did", f"{verb.base} {en}", f"{verb.past} {en}", it)


def noun_subject(pair: Pair, spoken: Phrase) -> Subject:
    return Subject(*pair, 5 if spoken.plural else 2, spoken.gender)


def numbers_of(nouns: list[Noun]) -> Iterator[Phrase]:
    """Each noun in the singular and, if it has one, in the plural."""
    for noun in nouns:
        yield phrase(noun)
        if noun.it_plural:
            yield phrase(noun, plural=True)
