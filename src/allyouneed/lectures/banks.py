"""One spelling, three meanings: the bank of a river, the bank with the money, and to bank on something, in ELMo.

word2vec has one vector for "bank". So has ELMo's layer 0, which sees only the spelling; in its upper layers the vectors
of one meaning are similar and those of different meanings are not. The mean of all nine vectors is subtracted before
they are compared: it belongs to the word, and the rest depends on the sentence.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch

from allyouneed.figures.heatmaps import similarity
from allyouneed.lectures.base import Classroom
from allyouneed.models.elmo import ELMo

WATER = ("river", "stream", "canal", "lake")
MONEY = ("loan", "account", "cheque", "card")
HOPE = ("result", "weather", "promise", "answer")
PEOPLE = ("he", "she", "the boy", "the girl", "a man", "a woman", "my friend", "the teacher")
# Words in braces are drawn at random. The last rules use the same nouns without "bank", to teach their meaning.
RULES: dict[str, tuple[str, ...]] = {
    "by the water": (
        "{who} sat on the bank of the {water} .",
        "the boat came to the bank of the {water} .",
        "{who} walked along the {water} bank .",
        "the {water} rose over its bank .",
        "trees grow on the bank of the {water} .",
    ),
    "with the money": (
        "{who} went to the bank for a {money} .",
        "the bank gave {who} a {money} .",
        "{who} paid the {money} into the bank .",
        "the bank closed the {money} of {who} .",
        "{who} works in a bank and knows every {money} .",
    ),
    "to count on": (
        "{who} did not bank on the {hope} .",
        "you should never bank on a {hope} .",
        "{who} will bank on the {hope} .",
        "we can bank on this {hope} .",
        "{who} must not bank on any {hope} .",
    ),
    "": (
        "{who} swam across the {water} .",
        "the {water} is cold and deep .",
        "{who} asked for a new {money} .",
        "the {money} was too small .",
        "{who} waited for the {hope} .",
        "the {hope} was good .",
    ),
}
SENTENCES = (
    ("by the water", "they sat on the bank of the river ."),
    ("by the water", "the boat came to the bank of the lake ."),
    ("by the water", "trees grow on the bank of the canal ."),
    ("with the money", "the bank gave my friend a loan ."),
    ("with the money", "she went to the bank for a card ."),
    ("with the money", "the bank closed the account of a man ."),
    ("to count on", "they should not bank on the result ."),
    ("to count on", "you should never bank on a promise ."),
    ("to count on", "we can bank on this answer ."),
)
SETTINGS = ("train.steps=400", "train.batch_tokens=2048", "train.eval_every=200")


def show(room: Classroom, settings: Sequence[str] = SETTINGS) -> dict[str, Any]:
    """A small ELMo reads sentences made by the rules above; then the vectors of "bank" are compared, layer by layer."""
    run = room.trained("lm/elmo", *settings, data=None if room.run else write_text(room.out / "banks.txt"), kind="elmo")
    model, texts = cast(ELMo, run.model), [text.split() for _, text in SENTENCES]
    vectors = torch.stack([model.embed(words)[:, words.index("bank")] for words in texts], dim=1)  # (layers + 1, N, D)
    senses = [sense for sense, _ in SENTENCES]
    same = torch.tensor([[a == b for b in senses] for a in senses])
    others = ~torch.eye(len(senses), dtype=torch.bool)
    rows, layers = [], []
    for k in range(len(vectors)):
        rest = vectors[k] - vectors[k].mean(0) if k else vectors[k]  # in layer 0 all nine are equal
        cosines = torch.nn.functional.cosine_similarity(rest[:, None], rest[None], dim=-1)
        rows.append((k, cosines[same & others].mean().item(), cosines[~same].mean().item()))
        layers.append((f"layer {k}" + (", minus the mean" if k else ": the spelling"), cosines.cpu()))
    head = ["layer (minus the mean)", "same meaning", "other meaning"]
    room.table(head, [[k or "0 (as it is)", f"{a:.3f}", f"{b:.3f}"] for k, a, b in rows])
    labels = [text.replace(" .", "") for _, text in SENTENCES]
    groups = [list(RULES).index(sense) for sense in senses]
    title = "“bank” in nine sentences: cosines of its vectors in ELMo"
    similarity(layers, labels, groups, room.picture("banks"), title)
    return {"sentences": [text for _, text in SENTENCES], "senses": senses, "layers": [m.tolist() for _, m in layers]}


def write_text(path: Path, lines: int = 6000) -> Path:
    """Write sentences drawn from the rules, one per line."""
    draw = random.Random(1)
    everything = [rule for rules in RULES.values() for rule in rules]
    words = {"who": PEOPLE, "water": WATER, "money": MONEY, "hope": HOPE}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (
        draw.choice(everything).format(**{key: draw.choice(choice) for key, choice in words.items()})
        for _ in range(lines)
    )
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path
