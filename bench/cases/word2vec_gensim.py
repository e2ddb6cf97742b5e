"""Skip-gram word vectors of Wikipedia's text against gensim: words per second, and scores on analogies and similarity.

The text is the beginning of enwik8 without its markup. Of each article only the part between <text> and </text> is
used. Redirects, comments, references, tags, tables, templates, images, categories, links to other languages and
addresses are removed; of any other link its visible words stay. Then the text is put in lower case, and all characters
but a-z and 0-9 become spaces. A line of the article is a line of the text, and neighbours are on one line; empty lines
are removed.
"""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from allyouneed.config import DataConfig
from allyouneed.data import wordtests
from allyouneed.data.opening import open_data
from allyouneed.errors import UserError
from allyouneed.metrics import analogy_score, similarity_score
from allyouneed.models.word2vec import Word2Vec
from allyouneed.recipe import Recipe
from allyouneed.tasks.base import Moment
from allyouneed.tasks.wordvectors import WordVectors
from allyouneed.training.optim import learning_rate
from bench.harness import OURS, Case, Peer, Prepared, same

GENSIM = "gensim"
WIDTH, WINDOW, NEGATIVES, MIN_COUNT, RATE, LAST = 200, 5, 5, 5, 0.025, 0.0001
SEEDS = (1, 2, 3)
NOISE = ("shared", "each")
WORK = (
    f"Skip-gram with negative sampling on enwik8's text: {WIDTH} wide, window {WINDOW}, {NEGATIVES} negatives, words "
    f"that occur {MIN_COUNT} times, rate {RATE} to {LAST}; one call trains from the beginning with a seed of its own. "
    "gensim draws negatives for every pair and reads the text from its file; ours reads ids, made once, and with "
    "noise=shared the neighbours of a word share its negatives, with noise=each they do not."
)
Scores = dict[str, dict[str, list[float]]]


def plain(xml: Iterator[str]) -> Iterator[str]:
    """The text in Wikipedia's XML, line by line, cleaned as described above."""
    body: list[str] | None = None
    for line in _lines(xml):
        if body is None and "<text" in line:
            body, line = [], line.partition("<text")[2].partition(">")[2]
        if body is None:
            continue
        body.append(line.partition("</text>")[0])
        if "</text>" in line:
            yield from _article("\n".join(body))
            body = None


def _lines(chunks: Iterator[str]) -> Iterator[str]:
    rest = ""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split("\n")
        yield from lines
    yield rest


def _article(text: str) -> Iterator[str]:
    text = html.unescape(html.unescape(text))
    if re.match(r"\s*#redirect", text, re.I):
        return
    text = re.sub(r"<!--.*?-->|<ref[^>]*/>|<ref.*?</ref>|<math>.*?</math>|\{\|.*?\|\}", " ", text, flags=re.S | re.I)
    text = re.sub(r"<[^>]*>", " ", text)
    text = _innermost(r"\{\{[^{}]*\}\}", " ", text)
    text = _innermost(r"\[\[(?:image|file|category|[a-z]{2,3}|[a-z]{2,3}-[a-z]+):[^\[\]]*\]\]", " ", text)
    text = re.sub(r"\[\[(?:[^\[\]|]*\|)?([^\[\]]*)\]\]", r"\1", text)
    text = _innermost(r"\[\[(?:image|file|category):[^\[\]]*\]\]", " ", text)  # whose captions had links
    text = re.sub(r"\[?\bhttps?://[^\s\]]*", " ", text)
    for line in re.sub(r"[^a-z0-9\n]+", " ", text.lower()).split("\n"):
        if line.strip():
            yield line.strip()


def _innermost(pattern: str, by: str, text: str) -> str:
    """Replace nested matches from the innermost outwards, until none is left."""
    count = 1
    while count:
        text, count = re.subn(pattern, by, text, flags=re.I)
    return text


def write_text(path: Path, size: int) -> None:
    """Write the first `size` bytes of the text, to the end of a line."""
    data = open_data(DataConfig(name="enwik8"), "text")
    with path.open("w", encoding="ascii") as out:
        for line in plain(chunk for split in data.splits.values() for chunk in split):
            out.write(f"{line}\n")
            if out.tell() >= size:
                return


def recipe(path: Path, epochs: int, sample: float, device: str, noise: str) -> Recipe:
    return Recipe.parse(
        {
            "task": {"kind": "wordvectors"},
            "model": {"kind": "word2vec", "width": WIDTH, "window": WINDOW, "negatives": NEGATIVES,
                      "sample": sample, "shared": noise == "shared"},
            "text": {"kind": "terms", "vocab": 1 << 24, "min_count": MIN_COUNT},
            "data": {"path": [str(path)], "valid_part": 0.0, "test_part": 0.0},
            "train": {
                "epochs": epochs, "batch_tokens": 200_000, "lr": RATE, "min_lr": LAST / RATE, "schedule": "linear",
                "warmup": 0, "device": device,
            },
        }
    )  # fmt: skip


def train(task: WordVectors, model: Word2Vec, device: torch.device) -> None:
    """The loop of our library without evaluations and checkpoints."""
    config = task.recipe.train
    examples = task.examples("train")
    plans = [examples.plan(config.seed, epoch, config.batch_tokens) for epoch in range(int(config.epochs))]
    total = sum(map(len, plans))
    sums = None
    for step, numbers in enumerate(numbers for plan in plans for numbers in plan):
        rate = learning_rate(step, total, config)
        sums = task.update(model, [examples.collate(numbers)], rate, Moment(step, step / total))
    assert sums is not None
    sums["words"].item()  # waits for the device


def prepare(
    peers: set[str], folder: Path, megabytes: str, epochs: str, sample: str, device: str, noise: str
) -> Prepared:
    if noise not in NOISE:
        raise UserError(f"noise = {noise} is none of {', '.join(NOISE)}")
    path = folder / "text.txt"
    write_text(path, int(float(megabytes) * 1e6))
    task = WordVectors(recipe(path, int(epochs), float(sample), device, noise))
    start = time.perf_counter()
    task.prepare(lambda line: None)
    made = time.perf_counter() - start
    words = int(task.counts().sum())
    tests = wordtests.read("", _refuse)

    def begin(seed: int) -> tuple[WordVectors, Word2Vec]:
        own = WordVectors(task.recipe.with_(train=replace(task.recipe.train, seed=seed)))
        own.tokenizers = task.tokenizers
        torch.manual_seed(seed)
        model: Any = own.build_model().to(torch.device(device))
        own.begin(model, lambda line: None)
        if own.compiled is None:
            raise UserError("the kernel cannot be compiled here")
        return own, model

    ready: dict[str, list[Callable[[], Any]]] = {OURS: []}
    ours = [begin(seed) for seed in SEEDS]
    ready[OURS] = [partial(train, own, model, torch.device(device)) for own, model in ours]
    known: dict[str, Callable[[int], tuple[list[str], Any]]] = {}
    known[OURS] = lambda i: (lambda v: (v.words, v.matrix))(ours[i][0].predictor(ours[i][1]).vectors())
    size = len(task.predictor(ours[0][1]).vectors().words)
    checked = f"{words:,} words of the text are in the vocabulary of {size:,}; ours made its ids once, in {made:.1f} s"
    if GENSIM in peers:
        theirs = [_gensim(path, seed, int(epochs), float(sample)) for seed in SEEDS]
        counts = {word: theirs[0].wv.get_vecattr(word, "count") for word in theirs[0].wv.index_to_key}
        mine = ours[0][0].predictor(ours[0][1]).vectors().words
        same("both have the same vocabulary", set(counts) == set(mine))
        same("both count the same words", sum(counts.values()) == words)
        checked += "; the same words, as often, on both sides"
        ready[GENSIM] = [partial(_train_gensim, model, path) for model in theirs]
        known[GENSIM] = lambda i: (theirs[i].wv.index_to_key, theirs[i].wv.vectors)

    turns = {name: iter(calls) for name, calls in ready.items()}

    def scores() -> Scores:
        return {name: _scores([known[name](i) for i in range(len(SEEDS))], tests) for name in ready}

    sides = {name: (lambda calls=calls: next(calls)()) for name, calls in turns.items()}
    return Prepared(sides, words * int(epochs), checked, scores)


def _refuse(line: str) -> None:
    raise UserError(line)


def _gensim(path: Path, seed: int, epochs: int, sample: float) -> Any:
    from gensim.models import Word2Vec as Theirs

    model = Theirs(
        vector_size=WIDTH, window=WINDOW, negative=NEGATIVES, min_count=MIN_COUNT, sample=sample, sg=1, alpha=RATE,
        min_alpha=LAST, workers=torch.get_num_threads(), seed=seed, epochs=epochs,
    )  # fmt: skip
    model.build_vocab(corpus_file=str(path))
    return model


def _train_gensim(model: Any, path: Path) -> None:
    """Train from the file, which gensim's threads read without Python: faster than from a list of sentences."""
    model.train(
        corpus_file=str(path),
        total_words=model.corpus_total_words,
        total_examples=model.corpus_count,
        epochs=model.epochs,
    )


def _scores(vectors: list[tuple[list[str], Any]], tests: wordtests.WordTests) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for words, matrix in vectors:
        for name, questions in tests.analogies.items():
            score = analogy_score(words, matrix, questions, name)
            found.setdefault(f"analogies {name}, %", []).append(score.value if score else 0.0)
        for name, pairs in tests.similarity.items():
            score = similarity_score(words, matrix, pairs, name)
            found.setdefault(f"{name}, ρ", []).append(score.value if score else 0.0)
    return found


CASES = (
    Case(
        "word2vec-gensim",
        WORK,
        "words",
        [Peer(GENSIM, "gensim")],
        prepare,
        rounds=len(SEEDS),
        options={"megabytes": "20", "epochs": "5", "sample": "1e-3", "device": "cpu", "noise": "shared"},
        quick={"megabytes": "2", "epochs": "1"},
    ),
)
