"""A corpus of simple English sentences written by rules: who does what, to what, where, and because of what.

What can be learned from it: verbs and be agree with their subject, pronouns point back at it (he, she, it, they; his,
her, its, their), verbs choose their objects (a cow eats grass, a mouse eats cheese), and reasons fit what they explain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from allyouneed.data.builtin.heldout import Columns, choose, hold_out, thin

SIZES = {"test": 600, "valid": 600}

NAMES = {"he": ("Tom", "Ben", "Sam", "Leo"), "she": ("Mia", "Emma", "Lily", "Zoe")}
PEOPLE = {
    "he": {"boy": "boys", "man": "men", "king": "kings", "farmer": "farmers"},
    "she": {"girl": "girls", "woman": "women", "queen": "queens", "teacher": "teachers"},
}
ANIMALS = {
    "dog": "dogs",
    "cat": "cats",
    "horse": "horses",
    "cow": "cows",
    "rabbit": "rabbits",
    "mouse": "mice",
    "bird": "birds",
    "duck": "ducks",
    "fox": "foxes",
    "frog": "frogs",
}
DESCRIBED = {"person": ("young", "tall", "kind", "clever"), "animal": ("small", "big", "brown", "white", "old")}
OWN = {"he": "his", "she": "her", "it": "its", "they": "their"}
IRREGULAR = {"go": "goes", "do": "does", "have": "has", "carry": "carries", "cry": "cries", "fly": "flies"}
ONE_EACH = ("tail", "head", "ear", "nose", "face", "mouth")

MEALS = {
    "person": ("an apple", "a cake", "some bread", "some soup", "some rice", "an egg", "some cheese", "a pear"),
    "dog": ("a bone", "some meat"),
    "cat": ("a fish", "some meat"),
    "horse": ("some hay", "some grass", "an apple"),
    "cow": ("some hay", "some grass"),
    "rabbit": ("a carrot", "some grass"),
    "mouse": ("some cheese", "some seeds"),
    "bird": ("some seeds", "a worm"),
    "duck": ("some bread", "a worm"),
    "fox": ("an egg", "some meat"),
    "frog": ("a fly", "a worm"),
}
BODY = {
    "person": ("wash {} hands", "wash {} face", "brush {} teeth", "brush {} hair", "shake {} head", "close {} eyes"),
    "dog": ("wag {} tail", "scratch {} ear", "lick {} nose", "shake {} head", "close {} eyes"),
    "cat": ("lick {} paws", "clean {} fur", "scratch {} ear", "wag {} tail", "close {} eyes"),
    "horse": ("shake {} head", "wag {} tail", "close {} eyes"),
    "cow": ("shake {} head", "wag {} tail", "lick {} nose"),
    "rabbit": ("clean {} fur", "scratch {} ear", "lick {} paws"),
    "mouse": ("clean {} fur", "lick {} paws", "scratch {} nose"),
    "bird": ("spread {} wings", "clean {} feathers", "shake {} head"),
    "duck": ("spread {} wings", "clean {} feathers", "shake {} head"),
    "fox": ("lick {} paws", "clean {} fur", "wag {} tail", "scratch {} nose"),
    "frog": ("close {} eyes", "open {} mouth"),
}
PLACES = {
    "person": ("in the garden", "at home", "in the kitchen", "at school", "in the park", "by the river"),
    "animal": ("in the garden", "under the tree", "by the river", "in the park", "behind the house", "on the grass"),
    "dog": ("on the sofa", "under the table", "by the door"),
    "cat": ("on the sofa", "under the table", "on the chair", "on the roof"),
    "mouse": ("under the table", "behind the door"),
    "bird": ("on the roof", "in the tree"),
    "horse": ("in the field", "in the stable"),
    "cow": ("in the field", "in the stable"),
    "frog": ("on a stone",),
    "duck": ("on the lake",),
}
STAY = {
    "person": ("sit", "play", "wait", "sing", "dance", "rest", "read"),
    "animal": ("sleep", "rest", "sit", "wait"),
    "dog": ("play", "run", "bark"),
    "cat": ("play", "hide"),
    "horse": ("run", "stand"),
    "cow": ("stand",),
    "rabbit": ("jump", "hide"),
    "mouse": ("hide", "run"),
    "bird": ("sing",),
    "duck": ("swim",),
    "frog": ("jump", "swim"),
    "fox": ("run", "hide"),
}
REASONS = {
    "person": {
        "smile": ("happy",),
        "laugh": ("happy",),
        "cry": ("sad", "afraid"),
        "go to bed": ("tired", "sick"),
        "stay at home": ("tired", "sick"),
        "go to the doctor": ("sick",),
        "run away": ("afraid",),
        "wear a coat": ("cold",),
        "light a fire": ("cold",),
        "drink some water": ("thirsty",),
        "drink some tea": ("thirsty", "cold"),
    },
    "animal": {
        "drink some water": ("thirsty",),
        "run away": ("afraid",),
        "hide": ("afraid",),
        "sleep": ("tired",),
        "rest": ("tired", "sick"),
        "jump": ("happy",),
        "look for food": ("hungry",),
        "come into the house": ("cold", "hungry"),
    },
}
THINGS = ("ball", "book", "hat", "key", "cup", "bag", "coat", "kite", "box", "doll", "umbrella", "letter")
LOOKS = ("red", "blue", "green", "yellow", "new", "old", "big", "small")
HANDLED = {
    "read": ("book", "letter"),
    "write": ("letter",),
    "wear": ("hat", "coat"),
    "open": ("box", "bag", "letter", "umbrella", "book"),
    "carry": ("bag", "box", "umbrella", "book", "cup"),
    "throw": ("ball",),
    "fly": ("kite",),
    "wash": ("cup", "coat", "doll"),
    "lose": ("key", "hat", "ball", "umbrella"),
    "find": ("key", "hat", "ball", "book", "letter"),
    "buy": THINGS,
    "want": THINGS,
    "have": THINGS,
}
SPOTS = ("under the bed", "in the box", "on the table", "behind the door", "in the bag", "on the chair")
CHASES = {"dog": ("cat", "fox", "duck"), "cat": ("mouse", "bird"), "fox": ("rabbit", "mouse"), "bird": ("frog",)}
WEATHER = {
    "it is raining": ("take an umbrella", "stay at home", "run home", "wear a coat"),
    "it is snowing": ("wear a coat", "stay at home", "light a fire"),
    "the sun is shining": ("go to the beach", "play in the garden", "go to the park", "wear a hat"),
    "it is late": ("go to bed", "go home", "close the door"),
    "the wind is strong": ("fly a kite", "close the door", "stay at home"),
}
TIMES = ("every day", "in the morning", "in the evening", "today", "on Sunday")


@dataclass(frozen=True)
class Actor:
    """Who acts: its words, the pronoun that points back at it, and what it is: "person" or the name of an animal."""

    words: str
    pronoun: str
    kind: str

    @property
    def plural(self) -> bool:
        return self.pronoun == "they"

    @property
    def sort(self) -> str:
        return "person" if self.kind == "person" else "animal"


def article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def actors() -> list[Actor]:
    """Names and couples, and every noun as "the dog", "a dog", "the old dog", "the dogs", "two dogs"."""
    found = [Actor(name, pronoun, "person") for pronoun, names in NAMES.items() for name in names]
    found += [Actor(f"{a} and {b}", "they", "person") for a, b in zip(NAMES["he"], NAMES["she"])]
    nouns = [(one, many, who, "person") for who, words in PEOPLE.items() for one, many in words.items()]
    nouns += [(one, many, "it", one) for one, many in ANIMALS.items()]
    for one, many, pronoun, kind in nouns:
        described = DESCRIBED["person" if kind == "person" else "animal"]
        found += [Actor(words, pronoun, kind) for words in (f"the {one}", article(one))]
        found += [Actor(f"the {look} {one}", pronoun, kind) for look in described]
        found += [Actor(words, "they", kind) for words in (f"the {many}", f"two {many}", f"the {described[0]} {many}")]
    return found


def people() -> list[Actor]:
    return [who for who in actors() if who.kind == "person"]


def agree(phrase: str, who: Actor) -> str:
    """The verb that begins the phrase, in the form that its subject asks for."""
    verb, _, rest = phrase.partition(" ")
    if not who.plural:
        verb = IRREGULAR.get(verb) or verb + ("es" if verb.endswith(("s", "sh", "ch", "x")) else "s")
    return f"{verb} {rest}".strip()


def be(who: Actor) -> str:
    return "are" if who.plural else "is"


def fitting(table: dict[str, tuple[str, ...]], who: Actor) -> tuple[str, ...]:
    """What suits every actor of this sort, and what suits this kind alone."""
    shared = table.get(who.sort, ())
    return shared if who.kind == who.sort else shared + table.get(who.kind, ())


def sentence(text: str) -> Columns:
    return (text[0].upper() + text[1:] + ".",)


def meals() -> Iterator[Columns]:
    for who in actors():
        for meal in MEALS[who.kind]:
            yield sentence(f"{who.words} {agree('eat', who)} {meal}")
            yield sentence(f"{who.words} {agree('eat', who)} {meal} because {who.pronoun} {be(who)} hungry")
            yield sentence(f"{who.words} {be(who)} hungry, so {who.pronoun} {agree('eat', who)} {meal}")
            for time in TIMES:
                yield sentence(f"{who.words} {agree('eat', who)} {meal} {time}")


def bodies() -> Iterator[Columns]:
    for who in actors():
        for act in BODY[who.kind]:
            done = agree(act.format(OWN[who.pronoun]), who)
            if who.plural and done.endswith(ONE_EACH):
                done += "s"
            yield sentence(f"{who.words} {done}")
            for time in TIMES:
                yield sentence(f"{who.words} {done} {time}")


def stays() -> Iterator[Columns]:
    for who in actors():
        for verb, place in thin(2, product(fitting(STAY, who), fitting(PLACES, who))):
            yield sentence(f"{who.words} {agree(verb, who)} {place}")


def whereabouts() -> Iterator[Columns]:
    for who in actors():
        for place in fitting(PLACES, who):
            yield sentence(f"{who.words} {be(who)} {place}")
            yield sentence(f"{who.words} {be(who)} not {place}")


def reasons() -> Iterator[Columns]:
    for who in actors():
        for act, states in REASONS[who.sort].items():
            for state in states:
                yield sentence(f"{who.words} {agree(act, who)} because {who.pronoun} {be(who)} {state}")
                yield sentence(f"{who.words} {be(who)} {state}, so {who.pronoun} {agree(act, who)}")


def weather() -> Iterator[Columns]:
    for who, (cause, acts) in product(people(), WEATHER.items()):
        for act in acts:
            yield sentence(f"{who.words} {agree(act, who)} because {cause}")
            yield sentence(f"{cause}, so {who.words} {agree(act, who)}")


def belongings() -> Iterator[Columns]:
    handled = [(verb, thing) for verb, things in HANDLED.items() for thing in things]
    for who, (verb, thing), look in thin(7, product(people(), handled, LOOKS)):
        yield sentence(f"{who.words} {agree(verb, who)} {article(f'{look} {thing}')}")
        if verb not in ("buy", "want", "have"):
            yield sentence(f"{who.words} {agree(verb, who)} {OWN[who.pronoun]} {look} {thing}")


def searches() -> Iterator[Columns]:
    for who, thing, spot in thin(3, product(people(), THINGS, SPOTS)):
        if thing not in spot:
            yield sentence(f"{who.words} {agree('look', who)} for {OWN[who.pronoun]} {thing} {spot}")


def gifts() -> Iterator[Columns]:
    for who, other, thing in thin(17, product(people(), people(), THINGS)):
        if who.words not in other.words and other.words not in who.words and not other.words.startswith("a "):
            yield sentence(f"{who.words} {agree('give', who)} {other.words} {article(thing)}")


def chases() -> Iterator[Columns]:
    for who in actors():
        for prey in CHASES.get(who.kind, ()):
            yield sentence(f"{who.words} {agree('chase', who)} the {prey}")
            yield sentence(f"{who.words} {agree('chase', who)} the {prey}, and the {prey} runs away")
            yield sentence(f"the {prey} hides because it is afraid of {who.words}")


def pets() -> Iterator[Columns]:
    for who, verb, animal in thin(3, product(people(), ("love", "feed", "help", "see"), ANIMALS)):
        yield sentence(f"{who.words} {agree(verb, who)} the {animal}")
        yield sentence(f"{who.words} {agree(verb, who)} {OWN[who.pronoun]} {animal}")
        yield sentence(f"{who.words} {be(who)} happy because {who.pronoun} {agree(verb, who)} the {animal}")


def denials() -> Iterator[Columns]:
    for who in actors():
        for meal in MEALS[who.kind]:
            food = meal.replace("some ", "any ")
            yield sentence(f"{who.words} {agree('do', who)} not eat {food}")
            yield sentence(f"{who.words} {agree('do', who)} not eat {food} because {who.pronoun} {be(who)} sick")


def states() -> Iterator[Columns]:
    for who, state in product(actors(), ("hungry", "thirsty", "tired", "cold", "happy", "sad", "afraid", "sick")):
        if state not in who.words:
            yield sentence(f"{who.words} {be(who)} {state}")
            yield sentence(f"{who.words} {be(who)} not {state}")


def places_of_things() -> Iterator[Columns]:
    for look, thing, spot in product(LOOKS, THINGS, SPOTS):
        if thing not in spot:
            yield sentence(f"the {look} {thing} is {spot}")


def corpus() -> dict[str, str]:
    """The splits "train", "valid" and "test", each one text with one sentence per line."""
    sentences = dict.fromkeys(line for lines, limit in _chapters() for line in choose(lines, limit))
    splits = hold_out(list(sentences), SIZES)
    return {name: "".join(f"{line}\n" for (line,) in splits[name]) for name in ("train", "valid", "test")}


def _chapters() -> list[tuple[Iterable[Columns], int]]:
    """Each kind of sentence, and how many of it the corpus holds at most."""
    return [
        (meals(), 1600),
        (bodies(), 1100),
        (stays(), 1500),
        (whereabouts(), 700),
        (reasons(), 1400),
        (weather(), 900),
        (belongings(), 1400),
        (searches(), 700),
        (gifts(), 800),
        (chases(), 200),
        (pets(), 900),
        (denials(), 400),
        (states(), 700),
        (places_of_things(), 300),
    ]
