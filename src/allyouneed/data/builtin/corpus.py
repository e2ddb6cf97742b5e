"""A corpus of simple English sentences written by rules: who does what, to what, where, and because of what.

What can be learned from it: verbs and be agree with their subject, pronouns point back at it (he, she, it, they; his,
her, its, their), verbs choose their objects (a cow eats grass, a mouse eats cheese), and reasons fit what they explain.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator

from allyouneed.data.builtin.grammar import PLURAL, Kinds, Phrase, WordFile, article, word_file
from allyouneed.data.builtin.heldout import hold_out

Reason = namedtuple("Reason", "act state")  # what one does, and the state that makes one do it
Use = namedtuple("Use", "act thing own")  # what one does with a thing, and whether with one's own


def corpus() -> dict[str, str]:
    """The splits "train", "valid" and "test", each one text with one sentence per line."""
    file = word_file("corpus")
    splits = hold_out(file.collect(_kinds(file)), test=600, valid=600, train=file.rows("fixed"))
    return {split: "".join(f"{line}\n" for (line,) in found) for split, found in splits.items()}


def _actors(file: WordFile) -> Iterator[Phrase]:
    """Names and couples, and every noun as "the dog", "a dog", "the old dog", "the dogs", "two dogs"."""
    names, adjectives = file.table("names"), file.table("adjectives")
    yield from (Phrase(name, gender=gender, kind="person") for gender in names for name in names[gender])
    yield from (Phrase(f"{a} and {b}", person=PLURAL, kind="person") for a, b in zip(names["m"], names["f"]))
    for one, many, gender, kind in (line.split(", ") for line in file.sections["nouns"]):
        looks = adjectives[_class(kind)]
        for words in (f"the {one}", article(one), *(f"the {look} {one}" for look in looks)):
            yield Phrase(words, gender=gender, kind=kind)
        for words in (f"the {many}", f"two {many}", f"the {looks[0]} {many}"):
            yield Phrase(words, gender=gender, person=PLURAL, kind=kind)


def _class(kind: str) -> str:
    return "person" if kind == "person" else "animal"


def _kinds(file: WordFile) -> Kinds:
    yield "fixed", file.rows("fixed")
    actors = list(_actors(file))
    for kind in dict.fromkeys(who.kind for who in actors):
        yield from _of_all(file, kind, [who for who in actors if who.kind == kind])
    people = [who for who in actors if who.kind == "person"]
    yield from _of_people(file, people)
    yield from _of_banks(file, people)
    yield from _of_the_world(file, people)
    looks, things, spots = file.items("looks"), file.items("things"), file.items("spots")
    free = lambda look, thing, spot: thing not in spot
    yield "spot", file.write("spot", when=free, look=looks, thing=things, spot=spots)


def _of_all(file: WordFile, kind: str, actors: list[Phrase]) -> Kinds:
    """What people do, or animals of one kind."""

    def fitting(section: str) -> list[str]:
        table = file.table(section)
        return [item for name in dict.fromkeys((_class(kind), kind)) for item in table.get(name, ())]

    times = ["", *(f" {time}" for time in file.items("times"))]
    meals, locations = file.table("meals")[kind], fitting("places")
    yield "meal", file.write("meal", who=actors, meal=meals, time=times)
    yield "no meal", file.write("no meal", who=actors, meal=[meal.replace("some ", "any ") for meal in meals])
    yield "care", file.write("care", who=actors, act=file.table("care of the body")[kind], time=times)
    for who in actors:
        yield "activity", file.write("activity", share=2, who=who, act=fitting("activities"), place=locations)
    yield "place", file.write("place", who=actors, place=locations)
    states = file.items("states")
    yield "state", file.write("state", who=actors, state=states, when=lambda who, state: state not in who.en)
    yield "chase", file.write("chase", who=actors, prey=fitting("prey"))
    table = file.table(f"reasons of {article(_class(kind))}")
    reasons = [Reason(act, state) for act, states in table.items() for state in states]
    yield "reason", file.write("reason", who=actors, why=reasons)


def _of_people(file: WordFile, people: list[Phrase]) -> Kinds:
    things, looks = file.items("things"), file.items("looks")
    for weather, acts in file.table("reactions to the weather").items():
        yield "weather", file.write("weather", who=people, weather=weather, act=acts)
    uses = [Use(act, thing, True) for act, used in file.table("uses").items() for thing in used]
    uses += [Use(act, thing, False) for act in file.items("ways to get") for thing in things]
    yield "use", file.write("use", share=7, who=people, use=uses, look=looks)
    yield "use", file.write("own use", share=7, who=people, use=uses, look=looks, when=lambda who, use, look: use.own)
    spots = file.items("spots")
    free = lambda who, thing, spot: thing not in spot
    yield "search", file.write("search", share=3, when=free, who=people, thing=things, spot=spots)
    apart = lambda who, other, thing: who.en not in other.en and other.en not in who.en and other.en[:2] != "a "
    yield "gift", file.write("gift", share=17, when=apart, who=people, other=people, thing=things)
    animals = [animal for animal in file.table("meals") if animal != "person"]
    yield "pet", file.write("pet", share=3, who=people, act=file.items("love"), animal=animals)


def _of_banks(file: WordFile, people: list[Phrase]) -> Kinds:
    """The three meanings of bank."""
    who = [Phrase("he"), Phrase("she", gender="f"), Phrase("they", person=PLURAL), Phrase("the captain"), *people]
    yield "bank of a river", file.write("bank of a river", who=who, river=file.items("banks"))
    yield "bank with money", file.write("bank with money", who=who, paper=file.items("bank papers"))
    yield "bank on", file.write("bank on", who=who, hope=file.items("hopes"))


def _of_the_world(file: WordFile, people: list[Phrase]) -> Kinds:
    """One's own animals, water and weather, greetings, machines, and what brings what."""
    plurals = {one: many for one, many, *_ in (line.split(", ") for line in file.sections["nouns"])}
    for animal, acts in file.table("own animals").items():
        for owner in file.items("owners"):
            who = [Phrase(f"{owner} {animal}"), Phrase(f"{owner} {plurals[animal]}", person=PLURAL)]
            yield "own animal", file.write("state", who=who, state=[*file.items("states"), *acts])
    changes = [f"{state} {weather}" for weather, states in file.table("changes of water").items() for state in states]
    surfaces, colours, waters = (file.items(name) for name in ("surfaces", "colours of water", "waters"))
    yield "water", file.write("water", surface=surfaces, colour=colours, water=waters, change=changes)
    named = [who.en for who in people if who.en[0].isupper()]
    yield "greeting", file.write("greeting", greeting=file.items("greetings"), name=named)
    times = ["", *(f" {time}" for time in file.items("times"))]
    for kind, acts in file.table("machines").items():
        who = [Phrase(f"{words}{kind} machine") for words in ("a ", "the ", "the new ")]
        who += [Phrase(f"{words}{kind} machines", person=PLURAL) for words in ("", "two ", "the ")]
        yield "machine", file.write("machine", who=who, act=acts, time=times)
    for virtue, outcomes in file.table("virtues").items():
        yield "virtue", file.write("virtue", virtue=virtue, outcome=outcomes)
    who = [Phrase("you", person=1), *(who for who in people if not who.en.startswith("a"))]
    yield "need", file.write("need", who=who, virtue=list(file.table("virtues")))
