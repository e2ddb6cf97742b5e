"""An English-Italian phrasebook written by rules, with held-out combinations of words that training has seen.

One English sentence has one Italian translation. The conventions: a subject pronoun is always said ("Io non sono
italiano."), but a question with where, what or how many drops it unless it is lui or lei ("Dove vivi?", "Dove vive
lui?"); you is tu and you all is voi; whoever is not marked as feminine is masculine.
"""

from __future__ import annotations

from collections.abc import Iterable

from allyouneed.data.builtin import phrasebook_deeds as deeds
from allyouneed.data.builtin import phrasebook_things as things
from allyouneed.data.builtin import phrasebook_words as words
from allyouneed.data.builtin.heldout import choose, hold_out
from allyouneed.data.builtin.phrasebook_grammar import Pair
from allyouneed.data.examples import SentencePair

SIZES = {"test": 400, "valid": 300}
FIXED = [
    ("I am Italian.", "Io sono italiano."),
    ("Good morning.", "Buongiorno."),
    ("Good evening.", "Buonasera."),
    ("Good night.", "Buonanotte."),
    ("Thank you very much.", "Grazie mille."),
    ("You are welcome.", "Prego."),
    ("Excuse me.", "Mi scusi."),
    ("I am sorry.", "Mi dispiace."),
    ("How are you?", "Come stai?"),
    ("I am well, thank you.", "Io sto bene, grazie."),
    ("What is your name?", "Come ti chiami?"),
    ("My name is Anna.", "Io mi chiamo Anna."),
    ("My name is Marco.", "Io mi chiamo Marco."),
    ("Nice to meet you.", "Piacere di conoscerti."),
    ("Where are you from?", "Di dove sei?"),
    ("How old are you?", "Quanti anni hai?"),
    ("I am ten years old.", "Io ho dieci anni."),
    ("What time is it?", "Che ore sono?"),
    ("It is noon.", "È mezzogiorno."),
    ("It is midnight.", "È mezzanotte."),
    ("I do not understand.", "Io non capisco."),
    ("Can you help me?", "Tu puoi aiutarmi?"),
    ("The bill, please.", "Il conto, per favore."),
    ("How do you say it in Italian?", "Come si dice in italiano?"),
    ("See you tomorrow.", "A domani."),
    ("See you soon.", "A presto."),
    ("Have a good trip.", "Buon viaggio."),
    ("Enjoy your meal.", "Buon appetito."),
    ("Happy birthday.", "Buon compleanno."),
    ("Of course.", "Certo."),
    ("I love you.", "Ti amo."),
]


def phrasebook() -> dict[str, list[SentencePair]]:
    """The splits "train", "valid" and "test", from English to Italian."""
    splits = hold_out(_book(), SIZES, keep=FIXED)
    return {name: [SentencePair(en, it) for en, it in splits[name]] for name in ("train", "valid", "test")}


def _book() -> list[Pair]:
    """Every pair, each English sentence once."""
    book: dict[str, str] = {}
    for pairs, limit in _chapters():
        for en, it in choose(pairs, limit):
            if book.setdefault(en, it) != it:
                raise ValueError(f"two translations of '{en}': '{book[en]}' and '{it}'")
    return list(book.items())


def _chapters() -> list[tuple[Iterable[Pair], int]]:
    """Each kind of sentence, and how many of it the book holds at most."""
    return [
        (FIXED, len(FIXED)),
        (things.people_are(words.PRONOUNS), 500),
        (things.people_are([*words.NAMES, *words.COUPLES, *things.PERSONS, *things.FRIENDS, *things.FAMILY]), 650),
        (things.very(), 150),
        (things.two_qualities(), 120),
        (things.roles(), 320),
        (things.feelings(), 180),
        (things.things_are(), 550),
        (things.food_is(), 150),
        (things.comparisons(), 200),
        (things.having(), 350),
        (things.merits(), 300),
        (things.counting(), 200),
        (things.there_is(), 220),
        (things.lying(), 250),
        (things.where_is(), 200),
        (things.mine(), 300),
        (things.belonging(), 200),
        (deeds.consuming(), 200),
        (deeds.habits(), 150),
        (deeds.now(), 420),
        (deeds.now_alone(), 180),
        (deeds.past(), 420),
        (deeds.past_possessions(), 150),
        (deeds.past_moving(), 350),
        (deeds.going(), 130),
        (deeds.staying(), 200),
        (deeds.wishes(), 350),
        (deeds.likes(), 280),
        (deeds.origins(), 280),
        (deeds.acquaintances(), 120),
        (deeds.hours(), 50),
        (deeds.times(), 180),
        (deeds.open_questions(), 200),
        (deeds.who_questions(), 80),
        (deeds.how_many(), 120),
        (deeds.shopping(), 130),
        (deeds.table_manners(), 150),
    ]
