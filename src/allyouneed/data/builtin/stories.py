"""Short stories written by rules, for pretraining: each is one document about one person at one place.

What stands in a sentence follows from the ones before it: the person is he or she all along, and at the store nobody
feeds the penguins. So a hidden word can be found from its text, and a passage from another story does not fit.
"""

from __future__ import annotations

from itertools import product

from allyouneed.data.builtin.family import HER, HIM, ROLES
from allyouneed.data.builtin.heldout import rank

TELLINGS = 14  # stories of each person at each place
LENGTH = 7  # sentences of a story after the first one
HELD = {"test": 1, "valid": 1}  # of the tellings of each

# What happens at each place; every line may come anywhere in the story.
PLACES: dict[str, tuple[str, ...]] = {
    "store": (
        "{He} bought a gallon of milk.", "The bread was still warm.", "{He} put six eggs into the basket.",
        "The cheese was too expensive.", "{He} paid at the counter.", "The seller weighed two pounds of apples.",
        "{He} asked for the price of the butter.", "There was a long line at the counter.",
        "{He} carried {his} heavy bags home.", "The shelves were full of cans.",
    ),
    "zoo": (
        "Penguins are flightless birds.", "{He} fed the penguins.", "The lion slept behind the bars.",
        "A monkey stole {his} hat.", "{He} took a picture of the elephant.", "The keeper cleaned the cage.",
        "{He} looked for the giraffes.", "The tiger walked up and down.", "{He} was afraid of the snakes.",
        "The seals jumped for the fish.",
    ),
    "school": (
        "The teacher wrote on the board.", "{He} read a page of the book.", "The lesson began at nine.",
        "{He} forgot {his} pencil.", "The pupils learned a poem.", "{He} raised {his} hand.",
        "The test was easy.", "{He} drew a map of the country.", "The bell rang.", "{He} knew every answer.",
    ),
    "lake": (
        "The water was cold.", "{He} swam to the other side.", "A boat lay in the reeds.",
        "{He} caught three fish.", "The waves were small.", "{He} dried {himself} with a towel.",
        "Ducks came to the shore.", "{He} rowed around the island.", "The sand was hot.", "{He} jumped from the pier.",
    ),
    "station": (
        "The train was late.", "{He} bought a ticket to the capital.", "The conductor blew a whistle.",
        "{He} found a seat by the window.", "People waited on the platform.", "{He} missed the express.",
        "The engine made a loud noise.", "{He} lost {his} suitcase.", "The tracks were covered with snow.",
        "{He} asked when the next train leaves.",
    ),
    "garden": (
        "The roses were in bloom.", "{He} watered the tomatoes.", "Bees flew from flower to flower.",
        "{He} dug a hole for the tree.", "The grass was wet.", "{He} pulled out the weeds.",
        "A snail sat on the lettuce.", "{He} planted a row of beans.", "The hedge was too high.",
        "{He} left {his} spade in the rain.",
    ),
    "kitchen": (
        "The soup was boiling.", "{He} cut the onions.", "The oven was hot.", "{He} burned {his} fingers on the pan.",
        "The recipe needed salt.", "{He} stirred the sauce.", "The dough was rising.", "{He} washed the dishes.",
        "The kettle whistled.", "{He} baked a cake.",
    ),
    "hospital": (
        "The doctor looked at the X-ray.", "{He} had a broken leg.", "The nurse brought the medicine.",
        "{He} stayed in bed for a week.", "The patients slept.", "{He} had a high fever.",
        "The operation went well.", "{He} got a bandage.", "The ambulance was fast.", "{He} felt better every day.",
    ),
    "theatre": (
        "The curtain rose.", "{He} clapped after the first act.", "The actors bowed.",
        "{He} sat in the last row.", "The stage was dark.", "{He} knew the play by heart.",
        "The singer forgot the words.", "{He} whispered during the play.", "The audience laughed.",
        "{He} bought a program.",
    ),
    "bank": (
        "The clerk counted the money.", "{He} opened an account.", "The interest was low.",
        "{He} signed the check.", "The safe was locked.", "{He} asked for a loan.", "The coins were new.",
        "{He} changed {his} dollars.", "A guard stood at the door.", "{He} saved half of {his} wage.",
    ),
}  # fmt: skip
BEGINNING = "The {who} went to the {place}."
ENDINGS = ("Then {he} went home.", "In the evening {he} told {his} friends about the {place}.")


def stories() -> dict[str, list[str]]:
    """The stories of the splits "train", "valid" and "test", each one text in one line."""
    splits: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for (couple, she), place in product(product(ROLES, (0, 1)), PLACES):
        who, words = couple[she], HER if she else HIM
        told = [_story(who, place, words, str(number)) for number in range(TELLINGS)]
        told = sorted(dict.fromkeys(told), key=lambda text: rank((text,), "split"))
        for split, count in HELD.items():
            splits[split] += told[:count]
            told = told[count:]
        splits["train"] += told
    return {split: sorted(texts, key=lambda text: rank((text,), "order")) for split, texts in splits.items()}


def _story(who: str, place: str, words: dict[str, str], number: str) -> str:
    told = sorted(PLACES[place], key=lambda line: rank((line, who, place), number))[:LENGTH]
    told.append(min(ENDINGS, key=lambda line: rank((line, who, place), number)))
    lines = [BEGINNING, *told]
    fits = {**words, "He": words["he"].capitalize(), "who": who, "place": place}
    return " ".join(line.format(**fits) for line in lines)
