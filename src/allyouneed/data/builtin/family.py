"""A text about families written by rules, for word vectors: what a person is called tells two things, what they are in
the family (an aunt and an uncle visit, a king and a queen reign) and whether they are he or she.

So the step from "uncle" to "aunt" is the step from "man" to "woman", and `questions` asks for every such step.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

from allyouneed.data.builtin.heldout import Columns, choose, hold_out

SIZES = {"test": 400, "valid": 400}
SENTENCES = 9000

# Each couple of words, and what only these two do.
ROLES: dict[tuple[str, str], tuple[str, ...]] = {
    ("man", "woman"): (
        "works in an office", "drives a car", "pays the rent", "reads the newspaper", "waits for the train",
        "has a new job", "buys a house",
    ),
    ("boy", "girl"): (
        "goes to school", "plays with a ball", "does homework", "climbs a tree", "learns to swim",
        "is ten years old", "has a new teacher",
    ),
    ("father", "mother"): (
        "puts the baby to bed", "cooks for the children", "takes the children to school", "sings to the baby",
        "packs the lunch of the children", "feeds the baby", "has three children",
    ),
    ("son", "daughter"): (
        "looks like both parents", "calls both parents every week", "asks the parents for money",
        "thanks the parents for everything", "is the only child of the parents", "leaves the house of the parents",
    ),
    ("brother", "sister"): (
        "shares a room with the twins", "quarrels with the twins", "is older than the twins",
        "wears the old clothes of the twins", "sleeps in the upper bunk", "hides the toys of the twins",
    ),
    ("uncle", "aunt"): (
        "visits the family on Sunday", "brings presents for the cousins", "comes to the birthday party",
        "lives in another town", "sends a postcard to the cousins", "takes the cousins to the zoo",
    ),
    ("nephew", "niece"): (
        "spends the summer with relatives", "gets presents from relatives", "writes a letter to relatives",
        "travels alone to the relatives", "misses the relatives", "stays on the farm of the relatives",
    ),
    ("grandfather", "grandmother"): (
        "tells stories of long ago", "sits in the old armchair", "has grey hair", "walks with a stick",
        "needs new glasses", "remembers the war", "sleeps after lunch",
    ),
    ("husband", "wife"): (
        "plans the wedding", "wears a wedding ring", "remembers the anniversary", "signs the marriage papers",
        "books the honeymoon", "dances at the wedding",
    ),
    ("king", "queen"): (
        "wears a golden crown", "rules the country", "sits on the throne", "reigns over the people",
        "signs the new law", "opens the parliament", "commands the army",
    ),
    ("prince", "princess"): (
        "will inherit the throne", "grows up in the castle", "rides out with the guards", "waits for the coronation",
        "lives behind the castle walls", "is the heir of the country",
    ),
}  # fmt: skip
# The words of him and of her, in the same order.
HIM = {"he": "he", "his": "his", "him": "him", "himself": "himself", "sir": "sir", "male": "male", "mr": "Mr"}
HER = {"he": "she", "his": "her", "him": "her", "himself": "herself", "sir": "madam", "male": "female", "mr": "Mrs"}
NAMES = (("Tom", "Ben", "Sam", "Leo", "Max", "Jack"), ("Mia", "Emma", "Lily", "Zoe", "Anna", "Ruth"))
# What anybody does, with a word that shows whether it is he or she.
ANYBODY = (
    "washes {his} hands", "looks for {his} coat", "talks to {himself}", "loves {his} dog",
    "laughs when {he} is happy", "rests when {he} is tired",
)  # fmt: skip
TOLD = (
    "the {who} {does}",
    "{he} is a {who} and {he} {does}",
    "{name} is a {who} and {does}",
    "the {who} {does} and {he} is happy",
    "we know the {who} and we like {him} because {he} {does}",
    "everybody says that the {who} {does} by {himself}",
    "good morning {sir} said the {who} who {does}",
    "a {who} is a {male} person who {does}",
    "{mr} {name} the {who} {does}",
)


def family() -> dict[str, str]:
    """The splits "train", "valid" and "test", each one text with one sentence per line."""
    splits = hold_out(choose(_sentences(), SENTENCES), SIZES)
    return {name: "".join(f"{line}\n" for (line,) in splits[name]) for name in ("train", "valid", "test")}


def _sentences() -> Iterator[Columns]:
    for (couple, deeds), she in product(ROLES.items(), (0, 1)):
        words = HER if she else HIM
        deeds += tuple(deed.format(**words) for deed in ANYBODY)
        for told, does, name in product(TOLD, deeds, NAMES[she]):
            text = told.format(who=couple[she], does=does, name=name, **words)
            text = text.replace("a uncle", "an uncle").replace("a aunt", "an aunt")
            yield (text[0].upper() + text[1:] + ".",)


def questions() -> list[tuple[str, str, str, str]]:
    """a is to b as c is to d: uncle is to aunt as man is to woman."""
    return [(a, b, c, d) for (a, b), (c, d) in permutations(ROLES, 2)]
