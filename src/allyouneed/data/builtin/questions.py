"""Short texts about what people did with a thing, where and when, and questions about them, written by rules.

What can be learned from them: to find the sentence that a question is about, and in it the words that answer. Each text
has two people, things, colours, places and days, so the kind of a question alone does not tell its answer. An eighth of
the questions have none: they are about somebody else, or another thing. A few texts are long.

Whoever does something with a thing in valid or test never does so in train.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple, TypeVar

from allyouneed.data.builtin.grammar import word_file
from allyouneed.data.builtin.heldout import number_below
from allyouneed.data.examples import Question

T = TypeVar("T")
Asked = tuple[str, tuple[tuple[int, str], ...]]  # a question and its answers
TEXTS = {"train": 3000, "valid": 75, "test": 125}
ASKED = 4  # questions about each text
UNANSWERED = 8  # one question in so many has no answer
LONG = 60  # one text in so many is long
EVENTS, OTHERS = 2, 30  # sentences of a text; only long ones have others than events


class Event(NamedTuple):
    """Somebody did something with a thing."""

    name: str
    verb: str
    thing: str
    colour: str
    place: str
    day: str

    def text(self) -> str:
        return word_file("questions").sections["event"][0].format(**self._asdict())

    def question(self, kind: str) -> str:
        (base,) = word_file("questions").table("verbs")[self.verb]
        return word_file("questions").table("questions")[kind][0].format(**self._asdict(), base=base)

    def answer(self, kind: str, context: str) -> tuple[int, str]:
        """Where the answer begins in the context, and its text."""
        texts = {"who": self.name, "where": self.place, "when": self.day, "colour": self.colour}
        answer, text = texts.get(kind, f"{self.colour} {self.thing}"), self.text()
        found = re.search(rf"\b{answer}\b", text)  # not the "red" of "repaired"
        assert found is not None
        return context.index(text) + found.start(), answer


@cache
def held_out(name: str, thing: str) -> bool:
    """Whether this person has this thing in valid and test only: a quarter of all combinations."""
    file = word_file("questions")
    return (file.items("names").index(name) + file.items("things").index(thing)) % 4 == 0


class Sampler:
    """Random choices that depend on a name alone."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1."""
        self.count += 1
        return number_below(limit, (self.name, str(self.count)), "questions")

    def take(self, options: list[T]) -> T:
        """Removes one of the options."""
        return options.pop(self.below(len(options)))

    def some(self, options: Iterable[T], count: int) -> list[T]:
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
    sampler, unseen = Sampler(f"{split}-{number}"), split != "train"
    events, others = _events(sampler, unseen)[:EVENTS], _events(sampler, unseen)
    sentences = [*(event.text() for event in events), *(() if number % LONG else _other_sentences(sampler))]
    context = " ".join(sampler.some(sentences, len(sentences)))
    kinds = word_file("questions").table("questions")
    answered: list[Asked] = [
        (event.question(kind), (event.answer(kind, context),)) for event in events for kind in kinds
    ]
    people, things = {event.name for event in events}, {event.thing for event in events}
    strange = [event for event in others if event.name not in people and event.thing not in things]
    unanswered: list[Asked] = [(event.question(kind), ()) for event in strange for kind in kinds]
    for i in range(ASKED):
        asked, answers = sampler.take(unanswered if not sampler.below(UNANSWERED) and unanswered else answered)
        yield Question(asked, context, answers, f"{sampler.name}-{i}")


def _events(sampler: Sampler, unseen: bool) -> list[Event]:
    """Each has its own name, thing, colour, place and day. `unseen`: nobody has the thing in train."""
    file = word_file("questions")
    names, colours, towns, days = (
        sampler.some(file.items(words), 4) for words in ("names", "colours", "places", "days")
    )
    things: list[str] = []
    for name in names:
        allowed = [thing for thing in file.items("things") if held_out(name, thing) == unseen and thing not in things]
        things.append(sampler.take(allowed))
    verbs = [sampler.take(list(file.table("verbs"))) for _ in names]
    return [Event(*facts) for facts in zip(names, verbs, things, colours, towns, days)]


def _other_sentences(sampler: Sampler) -> list[str]:
    """Sentences that no question asks about. None says the same of the same, so that they do not contradict."""
    file, made = word_file("questions"), []
    every = [(form, who) for form in file.sections["about people"] for who in file.items("names")]
    every += [(form, who) for form in file.sections["about places"] for who in file.items("places")]
    for form, who in sampler.some(every, OTHERS):
        towns = [town for town in file.items("places") if town != who]
        place, colour, day = (sampler.take(list(words)) for words in (towns, file.items("colours"), file.items("days")))
        made.append(form.format(who=who, place=place, colour=colour, day=day))
    return made
