"""wordvectors: a vector for every word, learned from the words around it."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from allyouneed.config import DecodeConfig, option
from allyouneed.data import wordtests
from allyouneed.data.batches import Batch
from allyouneed.data.builtin import family
from allyouneed.data.fetch import cache_folder
from allyouneed.data.report import Report
from allyouneed.data.store import BLOCK
from allyouneed.data.stretches import Stretches
from allyouneed.data.vectors import Vectors, write_vectors
from allyouneed.data.wordtests import WordTests
from allyouneed.errors import UserError
from allyouneed.figures import word_map
from allyouneed.format import human_bytes
from allyouneed.metrics import Score, analogy_answers, analogy_score, similarity_score
from allyouneed.models.word2vec import Word2Vec
from allyouneed.predict.answers import Answer, Prompt
from allyouneed.randomness import make_key
from allyouneed.recipe import Recipe
from allyouneed.runtime import available, pick_device
from allyouneed.tasks.base import Carry, Guess, Moment, Say, Task
from allyouneed.tasks.extent import WHOLE, Extent
from allyouneed.tasks.running_text import RunningText
from allyouneed.tasks.samples import Sample
from allyouneed.tasks.wordmap import WordMap, chosen_words, usual_words
from allyouneed.text import Tokenizer
from allyouneed.word2vec.negative import Blocks, Kernel

NEAREST = 10  # words per answer
FREQUENT = 100  # the rank of the first word that is shown as a sample, at most: more frequent ones mean little
REAL = 2000  # the smallest vocabulary that takes the public tests


@dataclass(frozen=True)
class WordVectorsOptions:
    binary: bool = option(False, "write vectors.bin (word2vec's binary format), not vectors.txt (its text format)")
    questions: str = option("", "own tests: a file with lines of four words (analogies), or of two words and a number")

    def __post_init__(self) -> None:
        if self.questions:  # absolute, so that the run finds it from any folder
            object.__setattr__(self, "questions", os.path.abspath(os.path.expanduser(self.questions)))


class WordVectors(RunningText[Word2Vec]):
    """king → queen 0.85, prince 0.80, …; man + aunt - uncle → woman"""

    Options = WordVectorsOptions
    asks = "a word, or a sum such as man + aunt - uncle"
    expects = "nearest (cosine in per cent)"
    unit = "word"
    reading = 9.0  # learning has a kernel of its own
    full_precision = True
    weights: ClassVar[dict[str, float]] = {"words": 1.0}
    no_vectors = "it has one vector per word, and finds the words near to man + aunt - uncle"
    unknown_advice = ""  # rare words are left out on purpose, by text.min_count
    compiled: Kernel | Blocks | None = None
    tested: Vectors | None = None

    def check(self) -> None:
        super().check()
        if int(os.environ.get("WORLD_SIZE") or "1") > 1:
            raise UserError("word vectors are trained by one process, on all cores or one GPU: start without torchrun")
        self._own()

    def prepare(self, say: Say) -> Report:
        report = super().prepare(say)
        need = 2 * 4 * len(self.tokenizer) * self.recipe.model.width
        say(f"vectors: two for each of {len(self.tokenizer):,} tokens, {human_bytes(need)}")
        free = available(torch.device(pick_device(self.recipe.train.device)))
        if need > free:
            raise UserError(
                f"the vectors need {human_bytes(need)}, and {human_bytes(free)} are free: "
                "raise text.min_count, or lower text.vocab or model.width"
            )
        return report

    def on(self, recipe: Recipe) -> Task:
        raise UserError("word vectors are scored by questions, not on a text: give your own with task.questions=FILE")

    def make_tokenizers(self) -> dict[str, Tokenizer]:
        made = super().make_tokenizers()
        kind = made["tokenizer.json"].kind
        if kind != "terms":
            raise UserError(f"word vectors need a tokenizer of whole words: text.kind must be terms, not {kind}")
        return made

    def examples(self, split: str) -> Stretches:
        t = self.tokenizer
        return Stretches(
            self.stream(split).tokens, [id for id in (t.eos, t.line) if id is not None], t.need("unk", "for rare words")
        )

    def items(self, split: str) -> int:
        return len(self.examples(split))

    def begin(self, model: Word2Vec, say: Say) -> None:
        """Count the words, and compile the kernel."""
        model.count(torch.from_numpy(self.counts()))
        if self.recipe.train.optimizer != "sgd":
            say(f"word vectors learn by plain SGD: train.optimizer = {self.recipe.train.optimizer} is ignored")
        kernel = model.kernel(cache_folder() / "kernels")
        if kernel is not None and kernel.problem:
            say(f"training without the compiled kernel, which is slower: {kernel.problem}")
        else:
            self.compiled = kernel
        if not isinstance(self.compiled, Kernel) and model.config.noise_sets > 1:
            say("model.shared = false needs the compiled kernel: here all words of a block share their samples")
        if isinstance(self.compiled, Kernel) and torch.get_num_threads() > 1:
            say("several threads learn at once, so two runs differ slightly; with train.threads=1 they are equal")

    def counts(self) -> np.ndarray:
        """How often each word is in the training text, 0 for special tokens."""
        t, tokens = self.tokenizer, self.stream("train").tokens
        counts = np.zeros(len(t), np.int64)
        for start in range(0, len(tokens), BLOCK):
            block = tokens[start : start + BLOCK]
            if block.max() >= len(t):
                raise UserError("the tokens in the cache are damaged: delete them, they are made again")
            counts += np.bincount(block, minlength=len(t))
        counts[[id for id in (t.pad, t.bos, t.eos, t.unk, t.line) if id is not None]] = 0
        if not counts.any():
            raise UserError("the training text has no word of the vocabulary: give more text, or lower text.min_count")
        return counts

    def losses(
        self, model: Word2Vec, batch: Batch, at: Moment | None = None, carry: Carry | None = None
    ) -> dict[str, Tensor]:
        """The mean loss per prediction, times the number of words: so the mean over the words is that over the
        predictions. For evaluation only: no word is skipped, and every window is whole."""
        return self._sums([model.loss(model.read(batch.tensors["tokens"], 0, every=True), 0)], [batch])

    def update(self, model: Word2Vec, pieces: list[Batch], rate: float, at: Moment) -> dict[str, Tensor] | None:
        device = model.inputs.weight.device
        seen = [
            model.learn(piece.to(device).tensors["tokens"], self._key(at.step, number), rate, self.compiled)
            for number, piece in enumerate(pieces)
        ]
        return self._sums(seen, pieces)

    def _key(self, step: int, piece: int) -> int:
        return make_key(self.recipe.train.seed, step, piece)

    def _sums(self, seen: list[tuple[Tensor, Tensor]], pieces: list[Batch]) -> dict[str, Tensor]:
        loss, predictions = (torch.stack(column).sum() for column in zip(*seen))
        return {"words": loss / predictions.clamp(min=1) * sum(piece.size.counts["words"] for piece in pieces)}

    @torch.inference_mode()
    def test(self, model: Word2Vec, split: str, decode: DecodeConfig, say: Say, extent: Extent = WHOLE) -> list[Score]:
        """The loss per prediction, analogies, and the correlation with how similar people find words."""
        asked = [*self._public(model, say), *self._own()]
        examples, total, made, words, self.covered = self.examples(split), 0.0, 0.0, 0.0, 0
        examples = examples.first(extent.limit) if extent.limit else examples
        for numbers in examples.cover(self.recipe.train.batch_tokens):
            if extent.over() and self.covered:
                break
            self.covered += len(numbers)
            batch = examples.collate(numbers).to(model.inputs.weight.device)
            loss, predictions = model.loss(model.read(batch.tensors["tokens"], 0, every=True), 0)
            total, made, words = total + float(loss), made + float(predictions), words + batch.size.counts["words"]
        c, self.tested = model.config, self.vectors(model)
        against = f"negatives:{c.negatives}" if c.loss == "negative" else "softmax"
        detail = f"nats/prediction|{c.method}|{against}|window:{c.window}|tok:terms-{len(self.tokenizer)}|split:{split}"
        found: list[Score | None] = [Score("loss", total / max(1.0, made), f"{detail}|words:{words:.0f}")]
        known = (self.tested.words, self.tested.matrix)
        found.append(analogy_score(*known, family.questions(), "questions:family"))
        several = [("family", family.questions()), *(named for tests in asked for named in tests.analogies.items())]
        self._tested = lambda: (
            {"questions": name, "words": question[:3], "prediction": answer, "reference": question[3]}
            for name, questions in several
            for question, answer in zip(questions, analogy_answers(*known, questions))
        )
        for tests in asked:
            scores = {name: analogy_score(*known, some, f"questions:{name}") for name, some in tests.analogies.items()}
            scores |= {name: similarity_score(*known, some, f"pairs:{name}") for name, some in tests.similarity.items()}
            for name, score in scores.items():
                if score is None:
                    say(f"left out: {name}, because this run knows the words of too few of its questions")
            found += scores.values()
        return [score for score in found if score is not None]

    def _public(self, model: Word2Vec, say: Say) -> list[WordTests]:
        """The public tests, if the vocabulary is large enough for them."""
        words = len(self._words(model))
        if words >= REAL:
            return [wordtests.read(self.recipe.data.mirror, say)]
        why = f"they need {REAL:,} words, and this run has {words:,}"
        say(f"left out: the public analogies and WordSim-353, because {why}")
        return []

    def _own(self) -> list[WordTests]:
        """The user's own questions, for any vocabulary."""
        return [wordtests.read_own(Path(self.options.questions))] if self.options.questions else []

    def vectors(self, model: Word2Vec) -> Vectors:
        """The vectors of the words in the training text, the most frequent first."""
        ids = self._words(model)
        return Vectors(
            [self.tokenizer.token(id) for id in ids.tolist()], model.inputs.weight[ids].detach().cpu().numpy()
        )

    def _words(self, model: Word2Vec) -> Tensor:
        ids = model.counts.nonzero().squeeze(1)
        return ids[model.counts[ids].argsort(descending=True, stable=True)]

    def export(self, model: Word2Vec, folder: Path, say: Say) -> list[Path]:
        binary = self.options.binary
        file = folder / f"vectors.{'bin' if binary else 'txt'}"
        write_vectors(file, self.vectors(model), binary)
        say(f"the vectors are in {file}, in word2vec's {'binary' if binary else 'text'} format")
        return [file]

    def draw(self, folder: Path, mark: str) -> list[Path]:
        """A map of words, the same for every split."""
        found = usual_words(self.tested) if self.tested is not None else None
        if found is None:
            return []
        word_map(found.words, found.vectors, folder / "words.png", found.arrows, folder.name, found.shown)
        return [folder / "words.png"]

    def map_words(self, model: Word2Vec, words: Sequence[str]) -> WordMap:
        ids = {word: self._id(model, word) for word in words}
        self._known(model, [word for word, id in ids.items() if id is None])
        known = list(dict.fromkeys(self.tokenizer.token(id) for id in ids.values() if id is not None))
        vectors = self.vectors(model)
        found = chosen_words(vectors, known) if known else usual_words(vectors)
        if found is None or len(found.words) < 2:
            raise UserError("a map needs at least two words: give more of them")
        return found

    def prompt(self, model: Word2Vec, text: str, decode: DecodeConfig) -> Prompt:
        ids = [id for _, id in self._sum(model, text)]
        return Prompt(ids, 1)

    def _sum(self, model: Word2Vec, text: str) -> list[tuple[int, int]]:
        """ "man + aunt - uncle" -> the sign and the id of each word."""
        terms: list[tuple[int, str]] = []
        sign = 0  # no sign before the next word yet
        for piece in re.findall(r"[+\-−–]|[^\s+\-−–]+", text):
            if piece in "+-−–":
                if sign:
                    raise UserError(f"'{text}' has two signs in a row: write a sum such as man + aunt - uncle")
                sign = 1 if piece == "+" else -1
                continue
            terms.append((sign or 1, piece))
            sign = 0
        if sign or not terms:
            raise UserError(f"'{text}' is not {self.asks}")
        ids = {word: self._id(model, word) for _, word in terms}
        strange = [word for word, id in ids.items() if id is None]
        left, _, right = text.partition("=")
        if any("=" in word for word in strange):
            side, rest = ("left", right) if len(right) > len(left) else ("right", left)
            raise UserError(f"leave out '=' and what is {side} of it: {rest.strip()}")
        self._known(model, strange)
        return [(sign, id) for sign, word in terms if (id := ids[word]) is not None]

    def _id(self, model: Word2Vec, word: str) -> int | None:
        ids = self.tokenizer.encode(word)
        return ids[0] if len(ids) == 1 and model.counts[ids[0]] > 0 else None

    def _known(self, model: Word2Vec, strange: list[str]) -> None:
        """Raise a UserError for words that the run does not have, each with similar spellings."""
        words = [self.tokenizer.token(id) for id in self._words(model).tolist()] if strange else []
        told = []
        for word in strange:
            close = difflib.get_close_matches(word.lower(), words, n=3, cutoff=0.6)
            hint = f"; similar spellings: {', '.join(close)}" if close else ""
            told.append(f"'{word}' is not among the {len(words):,} words of this run{hint}")
        if told:
            raise UserError(". ".join(told))

    @torch.inference_mode()
    def predict(
        self, model: Word2Vec, inputs: Iterable[str], decode: DecodeConfig, show: Callable[[str], None] | None = None
    ) -> Iterator[Answer]:
        """The words with the largest cosine to a word or a sum of words, without those in the input."""
        for text in inputs:
            near = self._nearest(model, self._sum(model, text), NEAREST)
            if not near:
                raise UserError(f"'{text}' has no nearest word: its sum is zero, or there is no other word; change it")
            details = {"nearest": [{"word": self.tokenizer.token(id), "cosine": round(c, 6)} for id, c in near]}
            answers = [Answer(self.tokenizer.token(id), [id], 0.0, "stop", cosine) for id, cosine in near]
            yield replace(answers[0], others=answers[1:], details=details)

    def sampled(self, split: str) -> None:
        """Nothing is read: a sample is a word."""

    def samples(self, model: Word2Vec, split: str, decode: DecodeConfig, most: int) -> list[Sample]:
        """The words nearest to frequent ones; there is no reference."""
        words = self._words(model)
        ranks = [max(1, min(FREQUENT, len(words) // 20)) * (number + 1) for number in range(most)]
        asked = [self.tokenizer.token(int(words[rank])) for rank in ranks if rank < len(words)]
        found = self.predict(model, asked, decode)
        return [Sample(word, ", ".join(one.text for one in (a, *a.others[:4]))) for word, a in zip(asked, found)]

    def _nearest(self, model: Word2Vec, terms: list[tuple[int, int]], most: int) -> list[tuple[int, float]]:
        """cos(v, Σ ± v_i / |v_i|), the largest first."""
        ids = self._words(model)
        vectors = torch.nn.functional.normalize(model.inputs.weight)
        goal = sum((sign * vectors[id] for sign, id in terms), torch.zeros_like(vectors[0]))
        if goal.norm() < 1e-6:
            return []
        ids = ids[~torch.isin(ids, torch.tensor([id for _, id in terms], device=ids.device))]
        cosines = vectors[ids] @ (goal / goal.norm())
        best = cosines.topk(min(most, len(ids)))
        return list(zip(ids[best.indices].tolist(), best.values.tolist()))

    @torch.inference_mode()
    def table(self, model: Word2Vec, text: str, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """The words nearest to each word."""
        ids = [id for _, id in self._sum(model, text)]
        near = [self._nearest(model, [(1, id)], most) for id in ids]
        return [
            Guess(self.tokenizer.token(id), [(self.tokenizer.token(other), cosine) for other, cosine in row])
            for id, row in zip(ids, near)
        ]
