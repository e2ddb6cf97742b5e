"""Short texts about what people did with a thing, where and when, and questions about them, written by rules.

What can be learned from them: to find the sentence that a question is about, and in it the words that answer. Each text
has two people, things, colours, places and days, so the kind of a question alone does not tell its answer. An eighth of
the questions have none: they are about somebody else, or another thing. A few texts are long.

Whoever does something with a thing in valid or test never does so in train.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple, TypeVar

from allyouneed.data.builtin.heldout import rank
from allyouneed.data.examples import Question

T = TypeVar("T")
Asked = tuple[str, tuple[tuple[int, str], ...]]  # a question and its answers
TEXTS = {"train": 3000, "valid": 75, "test": 125}
ASKED = 4  # questions about each text
SILENT = 8  # one question in so many has no answer
LONG = 60  # one text in so many is long
EVENTS, FILLERS = 2, 30  # of a text; only long ones have fillers
NAMES = (
    *("Anna", "Omar", "Laura", "Peter", "Yuki", "Nina", "Daniel", "Grace"),
    *("Paul", "Mia", "Leo", "Ruth", "Ivan", "Clara", "Hugo", "Sara"),
)
THINGS = (
    *("lamp", "chair", "clock", "bag", "coat", "hat", "kite", "guitar"),
    *("mirror", "bicycle", "table", "boat", "drum", "vase", "tent", "camera"),
)
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "grey")
PLACES = ("Oslo", "Rome", "Lima", "Kyoto", "Paris", "Cairo", "Dublin", "Porto", "Geneva", "New York", "Cape Town")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
VERBS = {"bought": "buy", "sold": "sell", "lost": "lose", "painted": "paint", "repaired": "repair"}
# None of these says where or when somebody did something, or which colour a thing has.
FILLER = {
    NAMES: (
        *("{0} lives in {place}.", "{0} has a friend in {place}.", "{0} likes {colour} flowers."),
        *("{0} was tired on {day}.", "{0} sings every {day}."),
    ),
    PLACES: ("It rained in {0} on {day}.", "The houses in {0} are {colour}.", "The road from {0} to {place} is long."),
}
QUESTIONS = {
    "who": "Who {verb} the {thing}?",
    "what": "What did {name} {base}?",
    "where": "Where did {name} {base} the {thing}?",
    "when": "When did {name} {base} the {thing}?",
    "colour": "What colour is the {thing} that {name} {verb}?",
}


class Event(NamedTuple):
    """Somebody did something with a thing."""

    name: str
    verb: str
    thing: str
    colour: str
    place: str
    day: str

    @property
    def told(self) -> str:
        return f"{self.name} {self.verb} a {self.colour} {self.thing} in {self.place} on {self.day}."


def held_out(name: str, thing: str) -> bool:
    """Whether this person has this thing in valid and test only: a quarter of all combinations."""
    return (NAMES.index(name) + THINGS.index(thing)) % 4 == 0


class Draw:
    """Random choices that depend on a name alone."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1."""
        self.count += 1
        return int.from_bytes(rank((self.name, str(self.count)), "questions")[:4], "big") % limit

    def take(self, options: list[T]) -> T:
        """Removes one of the options."""
        return options.pop(self.below(len(options)))

    def some(self, options: Sequence[T], count: int) -> list[T]:
        """Different options, in any order."""
        left = list(options)
        return [self.take(left) for _ in range(count)]


def questions() -> dict[str, list[Question]]:
    """The splits "train", "valid" and "test"; the questions about a text follow each other."""
    return {
        split: [question for number in range(texts) for question in _about(split, number)]
        for split, texts in TEXTS.items()
    }


def _about(split: str, number: int) -> Iterator[Question]:
    """The questions about one text."""
    draw, held = Draw(f"{split}-{number}"), split != "train"
    told, others = _events(draw, held)[:EVENTS], _events(draw, held)
    sentences = [*(event.told for event in told), *(() if number % LONG else _fillers(draw))]
    context = " ".join(draw.some(sentences, len(sentences)))
    answered: list[Asked] = [
        (_ask(kind, event), (_answer(kind, event, context),)) for event in told for kind in QUESTIONS
    ]
    people, things = {event.name for event in told}, {event.thing for event in told}
    strange = [event for event in others if event.name not in people and event.thing not in things]
    silent: list[Asked] = [(_ask(kind, event), ()) for event in strange for kind in QUESTIONS]
    for i in range(ASKED):
        asked, answers = draw.take(silent if not draw.below(SILENT) and silent else answered)
        yield Question(asked, context, answers, f"{draw.name}-{i}")


def _events(draw: Draw, held: bool) -> list[Event]:
    """Each has its own name, thing, colour, place and day."""
    names, colours, places, days = (draw.some(options, 4) for options in (NAMES, COLOURS, PLACES, DAYS))
    things: list[str] = []
    for name in names:
        things.append(draw.take([thing for thing in THINGS if held_out(name, thing) == held and thing not in things]))
    verbs = [draw.take(list(VERBS)) for _ in names]
    return [Event(*facts) for facts in zip(names, verbs, things, colours, places, days)]


def _fillers(draw: Draw) -> list[str]:
    """Sentences that no question asks about. None says the same of the same, so that they do not contradict."""
    every = [(form, who) for subjects, forms in FILLER.items() for form, who in product(forms, subjects)]
    made = []
    for form, who in draw.some(every, FILLERS):
        places = [place for place in PLACES if place != who]
        place, colour, day = (draw.take(list(options)) for options in (places, COLOURS, DAYS))
        made.append(form.format(who, place=place, colour=colour, day=day))
    return made


def _ask(kind: str, event: Event) -> str:
    return QUESTIONS[kind].format(**event._asdict(), base=VERBS[event.verb])


def _answer(kind: str, event: Event, context: str) -> tuple[int, str]:
    """Where the answer begins, and its text."""
    texts = {"who": event.name, "where": event.place, "when": event.day, "colour": event.colour}
    answer = texts.get(kind, f"{event.colour} {event.thing}")
    found = re.search(rf"\b{answer}\b", event.told)  # not the "red" of "repaired"
    assert found is not None
    return context.index(event.told) + found.start(), answer
