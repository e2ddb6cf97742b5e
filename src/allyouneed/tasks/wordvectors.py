"""wordvectors: a vector for every word, learned from the words around it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from allyouneed.config import DecodeConfig, option
from allyouneed.data import wordtests
from allyouneed.data.batches.base import Batch
from allyouneed.data.batches.windows import TokenChunks
from allyouneed.data.builtin import family
from allyouneed.data.fetch import cache_folder
from allyouneed.data.report import Report
from allyouneed.data.vectors import Vectors, write_vectors
from allyouneed.data.wordtests import WordTests
from allyouneed.errors import UserError
from allyouneed.figures import word_map
from allyouneed.format import human_bytes
from allyouneed.metrics import Score, analogy_answers, analogy_score, similarity_score
from allyouneed.metrics.cosines import Question
from allyouneed.models.word2vec import Word2Vec
from allyouneed.predict.base import answered
from allyouneed.predict.words import WordsProcessor, usual_words
from allyouneed.randomness import make_key
from allyouneed.recipe import Recipe
from allyouneed.runtime import available, pick_device
from allyouneed.tasks.base import WHOLE, Carry, Losses, Moment, Sample, Task, TestBudget
from allyouneed.tasks.lm import RunningText
from allyouneed.terminal import Say
from allyouneed.text import Tokenizer
from allyouneed.word2vec.blocks import Blocks
from allyouneed.word2vec.kernels import Kernel

FREQUENT = 100  # the rank of the first word that is shown as a sample, at most: more frequent ones mean little
REAL = 2000  # the smallest vocabulary that takes the public tests


@dataclass(frozen=True)
class WordVectorsOptions:
    binary: bool = option(False, "write vectors.bin (word2vec's binary format), not vectors.txt (its text format)")
    questions: str = option("", "own tests: a file with lines of four words (analogies), or of two words and a number")

    def __post_init__(self) -> None:
        if self.questions:  # absolute, so that the run finds it from any folder
            object.__setattr__(self, "questions", os.path.abspath(os.path.expanduser(self.questions)))


class WordVectors(WordsProcessor, RunningText[Word2Vec]):
    """king → queen 0.85, prince 0.80, …; man + aunt - uncle → woman"""

    Options = WordVectorsOptions
    unit, length_unit = "word", "words"
    eval_cost = 9.0  # learning has a kernel of its own
    predicts = True
    weights: ClassVar[dict[str, float]] = {"words": 1.0}
    unknown_advice = ""  # rare words are left out on purpose, by text.min_count
    compiled: Kernel | Blocks | None = None
    vectors: Vectors | None = None  # of the last test
    analogies: list[tuple[str, Question]]  # of the last test, each with the name of its set

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

    def examples(self, split: str) -> TokenChunks:
        t = self.tokenizer
        return TokenChunks(
            self.stream(split).tokens, [id for id in (t.eos, t.line) if id is not None], t.need("unk", "for rare words")
        )

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
        t, counts = self.tokenizer, self.token_counts("train")
        counts[[id for id in (t.pad, t.bos, t.eos, t.unk, t.line) if id is not None]] = 0
        if not counts.any():
            raise UserError("the training text has no word of the vocabulary: give more text, or lower text.min_count")
        return counts

    def losses(self, model: Word2Vec, batch: Batch, at: Moment | None = None, carry: Carry | None = None) -> Losses:
        """The mean loss per prediction, times the number of words: so the mean over the words is that over the
        predictions. For evaluation only: no word is skipped, and every window is whole."""
        return self._sums([self._loss(model, batch)], [batch])

    def _loss(self, model: Word2Vec, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum over all predictions, and their number."""
        return model.loss(model.read(batch.tensors["tokens"], 0, every=True), 0)

    def update(self, model: Word2Vec, pieces: list[Batch], rate: float, at: Moment) -> Losses | None:
        device, seed = model.inputs.weight.device, self.recipe.train.seed
        sums = [
            model.learn(piece.to(device).tensors["tokens"], make_key(seed, at.step, number), rate, self.compiled)
            for number, piece in enumerate(pieces)
        ]
        return self._sums(sums, pieces)

    def _sums(self, sums: list[tuple[Tensor, Tensor]], pieces: list[Batch]) -> Losses:
        loss, predictions = (torch.stack(column).sum() for column in zip(*sums))
        return {"words": loss / predictions.clamp(min=1) * sum(piece.size.counts["words"] for piece in pieces)}

    @torch.inference_mode()
    def test(
        self, model: Word2Vec, split: str, decode: DecodeConfig, say: Say, budget: TestBudget = WHOLE
    ) -> list[Score]:
        """The loss per prediction, analogies, and the correlation with how similar people find words."""
        every = [WordTests({"family": family.questions()}), *self._public(model, say), *self._own()]
        examples, sums, words, self.covered = self.examples(split), np.zeros(2), 0.0, 0
        examples = examples.first(budget.limit) if budget.limit else examples
        for numbers in examples.cover(self.recipe.train.batch_tokens):
            if budget.over() and self.covered:
                break
            self.covered += len(numbers)
            batch = examples.collate(numbers).to(model.inputs.weight.device)
            sums += [float(value) for value in self._loss(model, batch)]
            words += batch.size.counts["words"]
        c, self.vectors = model.config, self.predictor(model).vectors()
        self.analogies = [
            (name, question) for tests in every for name, some in tests.analogies.items() for question in some
        ]
        against = f"negatives:{c.negatives}" if c.loss == "negative" else "softmax"
        detail = f"nats/prediction|{c.method}|{against}|window:{c.window}|tok:terms-{len(self.tokenizer)}|split:{split}"
        scores = [Score("loss", float(sums[0] / max(1.0, sums[1])), f"{detail}|words:{words:.0f}")]
        known = self.vectors.words, self.vectors.matrix
        for tests in every:
            found = {name: analogy_score(*known, some, f"questions:{name}") for name, some in tests.analogies.items()}
            found |= {name: similarity_score(*known, some, f"pairs:{name}") for name, some in tests.similarity.items()}
            for name, score in found.items():
                if score is not None:
                    scores.append(score)
                elif name != "family":
                    say(f"left out: {name}, because this run knows the words of too few of its questions")
        return scores

    def predictions(self) -> Iterator[dict[str, Any]]:
        assert self.vectors is not None
        answers = analogy_answers(self.vectors.words, self.vectors.matrix, [question for _, question in self.analogies])
        for (name, question), answer in zip(self.analogies, answers):
            yield {"questions": name, "words": question[:3], "prediction": answer, "reference": question[3]}

    def _public(self, model: Word2Vec, say: Say) -> list[WordTests]:
        """The public tests, if the vocabulary is large enough for them."""
        words = len(self.predictor(model).words())
        if words >= REAL:
            return [wordtests.read(self.recipe.data.mirror, say)]
        why = f"they need {REAL:,} words, and this run has {words:,}"
        say(f"left out: the public analogies and WordSim-353, because {why}")
        return []

    def _own(self) -> list[WordTests]:
        """The user's own questions, for any vocabulary."""
        return [wordtests.read_own(Path(self.options.questions))] if self.options.questions else []

    def export(self, model: Word2Vec, folder: Path, say: Say) -> list[Path]:
        binary = self.options.binary
        file = folder / f"vectors.{'bin' if binary else 'txt'}"
        write_vectors(file, self.predictor(model).vectors(), binary)
        say(f"the vectors are in {file}, in word2vec's {'binary' if binary else 'text'} format")
        return [file]

    def write_figures(self, folder: Path, mark: str) -> list[Path]:
        """A map of words, the same for every split."""
        found = usual_words(self.vectors) if self.vectors is not None else None
        if found is None:
            return []
        word_map(found.words, found.vectors, folder / "words.png", found.arrows, folder.name, found.shown)
        return [folder / "words.png"]

    def samples(self, model: Word2Vec, split: str, decode: DecodeConfig, most: int) -> list[Sample]:
        """The words nearest to frequent ones; there is no reference."""
        predictor = self.predictor(model)
        words = predictor.words()
        ranks = [max(1, min(FREQUENT, len(words) // 20)) * (number + 1) for number in range(most)]
        asked = [self.tokenizer.token(int(words[rank])) for rank in ranks if rank < len(words)]
        found = answered(predictor.answers([predictor.read(word, decode) for word in asked], decode))
        return [Sample(word, ", ".join(one.text for one in (a, *a.others[:4]))) for word, a in zip(asked, found)]
