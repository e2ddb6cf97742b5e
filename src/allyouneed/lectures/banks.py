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
from allyouneed.lectures.base import Lecture
from allyouneed.models.elmo import ELMo

WORDS = {
    "who": ("he", "she", "the boy", "the girl", "a man", "a woman", "my friend", "the teacher"),
    "water": ("river", "stream", "canal", "lake"),
    "money": ("loan", "account", "cheque", "card"),
    "hope": ("result", "weather", "promise", "answer"),
}
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
SENTENCES = {
    "by the water": (
        "they sat on the bank of the river .",
        "the boat came to the bank of the lake .",
        "trees grow on the bank of the canal .",
    ),
    "with the money": (
        "the bank gave my friend a loan .",
        "she went to the bank for a card .",
        "the bank closed the account of a man .",
    ),
    "to count on": (
        "they should not bank on the result .",
        "you should never bank on a promise .",
        "we can bank on this answer .",
    ),
}
SETTINGS = ("train.steps=400", "train.batch_tokens=2048", "train.eval_every=200")


def show(lecture: Lecture, settings: Sequence[str] = SETTINGS) -> dict[str, Any]:
    """A small ELMo reads sentences made by the rules above; then the vectors of "bank" are compared, layer by layer."""
    data = None if lecture.run else write_text(lecture.out / "banks.txt")
    run = lecture.trained("lm/elmo", *settings, data=data, name="banks-elmo")
    model = cast(ELMo, run.model)
    senses, texts = zip(*((sense, text) for sense, several in SENTENCES.items() for text in several))
    words = [text.split() for text in texts]
    vectors = torch.stack([model.embed(text)[:, text.index("bank")] for text in words], dim=1)  # (layers + 1, N, D)
    same = torch.tensor([[a == b for b in senses] for a in senses])
    others = ~torch.eye(len(senses), dtype=torch.bool)
    rows, layers = [], []
    for k in range(len(vectors)):
        rest = vectors[k] - vectors[k].mean(0) if k else vectors[k]  # in layer 0 all nine are equal
        cosines = torch.nn.functional.cosine_similarity(rest[:, None], rest[None], dim=-1)
        rows.append((k, cosines[same & others].mean().item(), cosines[~same].mean().item()))
        layers.append((f"layer {k}" + (", minus the mean" if k else ": the spelling"), cosines.cpu()))
    head = ["layer (minus the mean)", "same meaning", "other meaning"]
    lecture.table(head, [[k or "0 (as it is)", f"{a:.3f}", f"{b:.3f}"] for k, a, b in rows])
    labels = [text.replace(" .", "") for text in texts]
    groups = [list(SENTENCES).index(sense) for sense in senses]
    title = "“bank” in nine sentences: cosines of its vectors in ELMo"
    lecture.draw(lambda out: similarity(layers, labels, groups, out, title), title)
    return {"sentences": texts, "senses": senses, "layers": [cosines.tolist() for _, cosines in layers]}


def write_text(path: Path, count: int = 6000) -> Path:
    """Write sentences made by rules that are drawn at random, one per line."""
    rng = random.Random(1)
    rules = [rule for several in RULES.values() for rule in several]
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [
        rng.choice(rules).format(**{key: rng.choice(choices) for key, choices in WORDS.items()}) for _ in range(count)
    ]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path
