"""One spelling, three meanings: the bank of a river, the bank with the money, and to bank on something, by layer.

word2vec has one vector for "bank". So has layer 0 of every model here, before the sentence is looked at. Above it, the
vectors of one meaning are similar and those of different meanings are not. The mean of all nine vectors is subtracted
before they are compared: it belongs to the word, and the rest depends on the sentence.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from allyouneed.figures.heatmaps import similarity
from allyouneed.lectures.base import Lecture, check_words
from allyouneed.run import Run

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
        "the bank of the {water} is green .",
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
        "the boy sat on the bank of the river .",
        "the boat came to the bank of the lake .",
        "trees grow on the bank of the canal .",
    ),
    "with the money": (
        "the bank gave my friend a loan .",
        "she went to the bank for a card .",
        "the bank closed the account of a man .",
    ),
    "to count on": (
        "the girl did not bank on the result .",
        "you should never bank on a promise .",
        "we can bank on this answer .",
    ),
}
ALIKE = ("the bank of the river is green .", "the bank gave the boy a loan .")  # up to "bank"
SHORT = ("train.batch_tokens=2048", "train.eval_every=200", "data.max_length=40")
MODELS: dict[str, tuple[str, ...]] = {  # by recipe
    "lm/elmo": ("train.steps=400", *SHORT[:2]),
    "lm/gpt": ("train.steps=400", *SHORT[:2]),
    "pretrain/bert": ("train.steps=600", "task.next=false", *SHORT),
}


def show(lecture: Lecture, settings: Sequence[str] = ()) -> dict[str, Any]:
    """ELMo, GPT and BERT read the sentences made by the rules above; then the vectors of "bank" are compared."""
    senses, texts = zip(*((sense, text) for sense, several in SENTENCES.items() for text in several))
    lecture.tell(
        f"""The word "bank" stands in {len(texts)} sentences, with {len(SENTENCES)} meanings. How similar are its
        vectors, layer by layer? 1 is the same direction, 0 has nothing in common, negative is opposite."""
    )
    same = torch.tensor([[a == b for b in senses] for a in senses])
    others = ~torch.eye(len(senses), dtype=torch.bool)
    data = None if lecture.run else write_text(lecture.out / "banks.txt")
    numbers: dict[str, Any] = {"sentences": texts, "senses": senses}
    rows, pairs = [], []
    for recipe, own in MODELS.items():
        run = lecture.trained(recipe, *own, *settings, data=data, name=f"banks-{recipe.partition('/')[2]}")
        layers, itself = compare(vectors(run, texts))
        name = run.recipe.model_kind.upper().replace("ELMO", "ELMo")
        for k, (cosines, still) in enumerate(zip(layers, itself)):
            alike, apart = cosines[same & others].mean(), cosines[~same].mean()
            rows.append([name, k, *(f"{float(value):.2f}" for value in (alike, apart, still))])
        last = vectors(run, ALIKE)[-1]
        pairs.append((name, f"{float(cosine_similarity(last[0], last[1], dim=0)):.2f}"))
        _draw(lecture, name, layers, senses, texts)
        numbers[run.recipe.model_kind] = {"layers": [cosines.tolist() for cosines in layers], "itself": itself}
        numbers[run.recipe.model_kind]["alike"] = float(pairs[-1][1])
        if lecture.run:
            break
    head = ["model", "layer", "same meaning", "other meaning", "like itself in layer 0"]
    lecture.table(head, rows)
    lecture.tell(
        """Layer 0 knows the word, and in GPT and BERT its position: nothing of its meaning. The last column is how
        similar the vector is to that of layer 0: the smaller, the less it still is a mean of the word vectors, as
        attention is explained for the first block."""
    )
    lecture.tell(
        f"""What tells the meaning may come after "bank", where a model that reads from left to right cannot see it.
        "{ALIKE[0]}" and "{ALIKE[1]}" begin alike. The two vectors of "bank" in the last layer have these cosines:"""
    )
    lecture.table(["model", "cosine"], pairs)
    return numbers


def vectors(run: Run, texts: Sequence[str]) -> list[Tensor]:
    """The vectors of "bank" in N texts, (N, D), for each layer from the embeddings on."""
    for text in texts:
        check_words(run.processor.tokenizer, text)
    found = [run.embed(list(texts), layers=str(k), words=True) for k in range(run.recipe.model.layers + 1)]
    banks = [[torch.as_tensor(one.vectors[list(one.words).index("bank")]) for one in layer] for layer in found]
    return [torch.stack(layer) for layer in banks]


def compare(layers: Sequence[Tensor]) -> tuple[list[Tensor], list[float]]:
    """For each layer, the cosines (N, N) of "bank" in N sentences, without their mean, as far as they differ; and how
    similar its vectors are to those of layer 0."""
    cosines = []
    for layer in layers:
        rest = layer - layer.mean(0)
        rest = rest if float(rest.norm()) > 1e-3 * float(layer.norm()) else layer  # all are equal
        cosines.append(cosine_similarity(rest[:, None], rest[None], dim=-1))
    itself = [float(cosine_similarity(layer, layers[0], dim=-1).mean()) for layer in layers]
    return cosines, itself


def _draw(lecture: Lecture, name: str, layers: Sequence[Tensor], senses: Sequence[str], texts: Sequence[str]) -> None:
    labels = [text.replace(" .", "") for text in texts]
    groups = [list(SENTENCES).index(sense) for sense in senses]
    named = [(f"layer {k}", cosines) for k, cosines in enumerate(layers)]
    title = f"“bank” in nine sentences: cosines of its vectors in {name}"
    lecture.draw(lambda out: similarity(named, labels, groups, out, title), title, part=name.lower())


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
