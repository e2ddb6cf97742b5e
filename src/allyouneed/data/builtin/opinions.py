"""Short opinions written by rules, each positive, negative or neutral, with held-out combinations of words.

What can be learned from them: a negation turns a word around ("anything but dull"), the main clause or the one after
"but" decides, "not only" is no negation, what was is not what is, and who asks or reports has no opinion. So the words
alone do not tell: most of them stand in positive and in negative opinions alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import permutations, product

from allyouneed.data.builtin.heldout import Columns, choose, hold_out
from allyouneed.data.examples import LabelledText

SIZES = {"test": 500, "valid": 400}
LABEL = {1: "positive", -1: "negative", 0: "neutral"}


@dataclass(frozen=True)
class Topic:
    """What people judge, the words with which they praise and blame it, and what can be said without judging."""

    things: tuple[str, ...]
    good: tuple[str, ...]
    bad: tuple[str, ...]
    facts: tuple[str, ...]

    def words(self, sign: int) -> tuple[str, ...]:
        return (*self.good, *GOOD) if sign > 0 else (*self.bad, *BAD)


GOOD = ("wonderful", "excellent", "good", "lovely")
BAD = ("terrible", "awful", "bad", "disappointing")
TOPICS = (
    Topic(
        ("film", "plot", "music", "ending"),
        ("gripping", "moving", "funny", "clever"),
        ("dull", "silly", "predictable", "boring"),
        ("the film lasts two hours", "the film is on again at nine", "the director was born in Oslo"),
    ),
    Topic(
        ("soup", "bread", "fish", "pasta"),
        ("tasty", "fresh", "delicious", "mild"),
        ("bland", "stale", "greasy", "salty"),
        ("we ordered the soup and the fish", "the kitchen closes at ten", "the pasta comes with bread"),
    ),
    Topic(
        ("hotel", "room", "bathroom", "garden"),
        ("clean", "quiet", "bright", "spacious"),
        ("dirty", "noisy", "dark", "shabby"),
        ("the hotel has forty rooms", "breakfast is from seven to ten", "our room was on the third floor"),
    ),
    Topic(
        ("phone", "camera", "screen", "keyboard"),
        ("reliable", "handy", "sturdy", "elegant"),
        ("slow", "fragile", "clumsy", "useless"),
        ("the phone comes in three colours", "the camera is in the box", "I ordered the phone on Monday"),
    ),
    Topic(
        ("book", "story", "first chapter", "dialogue"),
        ("exciting", "witty", "touching", "original"),
        ("tedious", "confusing", "shallow", "flat"),
        ("the book has twelve chapters", "the story begins in Lima", "I borrowed the book from a friend"),
    ),
    Topic(
        ("train", "bus", "ferry", "tram"),
        ("punctual", "comfortable", "cheap", "fast"),
        ("late", "crowded", "bumpy", "expensive"),
        ("the train goes every hour", "the ferry leaves from the north side", "we took the bus back"),
    ),
    Topic(
        ("lesson", "course", "lecture", "workshop"),
        ("inspiring", "helpful", "lively", "useful"),
        ("chaotic", "tiring", "pointless", "unclear"),
        ("the course has ten lessons", "the lecture is on Friday", "the workshop was in the library"),
    ),
)
# A clause about a thing and a word, and whether it says the word or its opposite.
CLAUSES = {
    "the {} was {}": 1,
    "the {} was really {}": 1,
    "I found the {} {}": 1,
    "the {} turned out to be {}": 1,
    "the {} was not {}": -1,
    "the {} was never {}": -1,
    "the {} was anything but {}": -1,
    "the {} was far from {}": -1,
    "nobody could call the {} {}": -1,
    "I cannot say that the {} was {}": -1,
}
# Clause {1} decides, in any position.
CONTRASTS = (
    "{0}, but {1}",
    "although {0}, {1}",
    "{1}, although {0}",
    "{1}, even if {0}",
    "it is true that {0}, but {1}",
)
# The second word decides.
CHANGES = (
    "the {} was {} at first and {} in the end",
    "the {} used to be {}, but now it is {}",
    "I expected the {} to be {}, but it was {}",
    "years ago the {} was {}; today it is {}",
)
LATER_FIRST = ("the {0} is {2} now, though it used to be {1}", "the {0} is {2} these days; it was {1} before")
NO_OPINION = (
    "the {} was neither {} nor {}",
    "was the {} {} or {}",
    "some call the {} {}, others call it {}",
    "I do not know whether the {} is {} or {}",
)
ASKED = (
    "is the {} {}",
    "people say that the {} is {}, but I do not know it",
    "my brother asked whether the {} was {}",
    "please tell me if the {} is {}",
)
FACTS = ("{}", "{}, as far as I know", "by the way, {}", "{}, they told us", "I think that {}")


def opinion(text: str, sign: int) -> Columns:
    end = "?" if text.startswith(("is ", "was ")) else "."
    return text[0].upper() + text[1:] + end, LABEL[sign]


def clauses(topic: Topic, sign: int) -> Iterator[tuple[str, str]]:
    """Every clause of one topic that says good (1) or bad (-1), with the thing it is about."""
    for (form, turn), thing in product(CLAUSES.items(), topic.things):
        for word in topic.words(sign * turn):
            yield thing, form.format(thing, word)


def plain() -> Iterator[Columns]:
    for topic, sign in product(TOPICS, (1, -1)):
        for _, clause in clauses(topic, sign):
            yield opinion(clause, sign)


def not_only() -> Iterator[Columns]:
    for topic, sign in product(TOPICS, (1, -1)):
        for thing, (one, other) in product(topic.things, permutations(topic.words(sign), 2)):
            yield opinion(f"the {thing} was not only {one} but also {other}", sign)


def couples(topic: Topic, one: int, other: int, salt: int) -> Iterator[tuple[str, str]]:
    """Each clause that says `one` with some clause on another thing that says `other`."""
    first, last = list(clauses(topic, one)), list(clauses(topic, other))
    for place, (thing, clause) in enumerate(first):
        another, answer = last[(131 * place + 37 * salt) % len(last)]  # 131 has no factor in common with their number
        if thing != another:
            yield clause, answer


def contrasts() -> Iterator[Columns]:
    for topic, sign, (salt, form) in product(TOPICS, (1, -1), enumerate(CONTRASTS)):
        for clause, answer in couples(topic, -sign, sign, salt):
            yield opinion(form.format(clause, answer), sign)


def agreements() -> Iterator[Columns]:
    for topic, sign in product(TOPICS, (1, -1)):
        for clause, answer in couples(topic, sign, sign, 5):
            yield opinion(f"{clause}, and {answer}", sign)


def changes() -> Iterator[Columns]:
    for topic, sign, form in product(TOPICS, (1, -1), (*CHANGES, *LATER_FIRST)):
        for thing, before, after in product(topic.things, topic.words(-sign), topic.words(sign)):
            yield opinion(form.format(thing, before, after), sign)


def hearsay() -> Iterator[Columns]:
    for topic, sign in product(TOPICS, (1, -1)):
        for thing, word in product(topic.things, topic.words(sign)):
            yield opinion(f"they told me that the {thing} was {word}, and it was", sign)
            yield opinion(f"they told me that the {thing} was {word}, and it was not", -sign)
            if sign > 0:
                yield opinion(f"I wish the {thing} had been {word}", -1)


def undecided() -> Iterator[Columns]:
    for topic in TOPICS:
        for form, thing, good, bad in product(NO_OPINION, topic.things, topic.words(1), topic.words(-1)):
            yield opinion(form.format(thing, good, bad), 0)
            yield opinion(form.format(thing, bad, good), 0)
        for form, thing, word in product(ASKED, topic.things, (*topic.words(1), *topic.words(-1))):
            yield opinion(form.format(thing, word), 0)


def facts() -> Iterator[Columns]:
    for topic, form in product(TOPICS, FACTS):
        for fact in topic.facts:
            yield opinion(form.format(fact), 0)


def opinions() -> dict[str, list[LabelledText]]:
    """The splits "train", "valid" and "test"."""
    found = dict.fromkeys(example for examples, limit in _chapters() for example in choose(examples, limit))
    splits = hold_out(list(found), SIZES)
    return {name: [LabelledText(*columns) for columns in splits[name]] for name in ("train", "valid", "test")}


def _chapters() -> list[tuple[Iterable[Columns], int]]:
    """Each kind of opinion, and how many of it there are at most."""
    return [
        (plain(), 1500),
        (not_only(), 350),
        (contrasts(), 1500),
        (agreements(), 300),
        (changes(), 700),
        (hearsay(), 400),
        (undecided(), 1300),
        (facts(), 105),
    ]
