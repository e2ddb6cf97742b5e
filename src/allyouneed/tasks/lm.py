"""lm: predict the next token of a text.

Word vectors share how a text becomes one stream of tokens.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from allyouneed.batch import IGNORE
from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches.base import Batch
from allyouneed.data.batches.windows import Streams, TokenChunks, Windows
from allyouneed.data.store import BLOCK, Ragged, tokenize_stream
from allyouneed.errors import UserError
from allyouneed.metrics import Score, language_scores
from allyouneed.models.base import LanguageModel
from allyouneed.predict.answers import Prompt
from allyouneed.predict.base import answered
from allyouneed.predict.inputs import check_numbers
from allyouneed.predict.lm import LMProcessor
from allyouneed.tasks.base import WHOLE, Carry, Losses, M, Moment, Sample, Task, TestBudget, brief, once, sample_indices
from allyouneed.terminal import Say

READ, WRITTEN = 60, 40  # bytes of text that a sample reads and writes, about
NEAR = 400  # tokens in which a sample looks for the beginning of a line


class RunningText(Task[M]):
    """What lm and wordvectors share: the examples are cut out of one long text."""

    shape = "text"
    item_name = "windows"

    @once
    def stream(self, split: str) -> Ragged:
        """The tokens of a split; documents end with the end token."""
        documents = self.data.splits[split].documents()
        end = self.tokenizer.need("eos", "to end a document")
        return tokenize_stream(documents, self.tokenizer, self.token_key(split, "text"), separator=end)

    def token_counts(self, split: str) -> np.ndarray:
        """How often each token is in a split (V,)."""
        tokens, vocab = self.stream(split).tokens, len(self.tokenizer)
        counts = np.zeros(vocab, np.int64)
        for start in range(0, len(tokens), BLOCK):  # of a memory map that may be larger than the memory
            block = tokens[start : start + BLOCK]
            if block.max() >= vocab:
                raise UserError("the tokens in the cache are damaged: delete them, they are made again")
            counts += np.bincount(block, minlength=vocab)
        return counts

    def rows(self, split: str) -> list[Ragged]:
        return [self.stream(split)]

    def items(self, split: str) -> int:
        return len(self.examples(split))

    @abstractmethod
    def examples(self, split: str) -> Windows | TokenChunks: ...


@dataclass(frozen=True)
class LMOptions:
    smoothing: float = option(0.0, "label smoothing", low=0.0, high=1.0)


class LM(LMProcessor, RunningText[LanguageModel]):
    """loss = -Σ_t log p(x_t | x_<t)"""

    Options = LMOptions
    weights: ClassVar[dict[str, float]] = {"tokens": 1.0}

    def examples(self, split: str) -> Windows:
        tokens = self.stream(split).tokens
        context = self.recipe.model.context
        if len(tokens) < 2 or (split == "train" and len(tokens) <= context):
            raise UserError(
                f"the {split} text has {len(tokens)} tokens: less than one window of model.context = {context} "
                "and the token after it; give more text or a smaller model.context"
            )
        return Streams(tokens, context) if self.kind.carries else Windows(tokens, context)

    def losses(
        self, model: LanguageModel, batch: Batch, at: Moment | None = None, carry: Carry | None = None
    ) -> Losses:
        smoothing = self.options.smoothing if model.training else 0.0
        ids, targets = batch.tensors["ids"], batch.tensors["targets"]
        if carry is None or not self.kind.carries:
            return {"tokens": model.loss(ids, targets, smoothing)}
        lanes, fresh = batch.tensors["lanes"], batch.tensors["fresh"]
        before = carry or self.fresh_carry(model)
        state = model.empty(len(ids), 0)
        state.parts = {name: t[lanes].masked_fill(fresh[:, None, None], 0) for name, t in before.items()}
        loss = model.loss(ids, targets, smoothing, state)
        # Truncated backpropagation through time: the next window continues from these values, without their gradient.
        for name, t in state.parts.items():
            carry[name] = before[name].index_copy(0, lanes, t.detach().to(before[name].dtype))
        return {"tokens": loss}

    def fresh_carry(self, model: LanguageModel) -> Carry:
        """The initial state of every lane, (lanes, L, D)."""
        if not self.kind.carries:
            return {}
        parts: Carry = model.empty(max(1, self.test_tokens // self.recipe.model.context), 0).parts
        return parts

    @torch.inference_mode()
    def test(
        self, model: LanguageModel, split: str, decode: DecodeConfig, say: Say, budget: TestBudget = WHOLE
    ) -> list[Score]:
        """Loss, perplexity and bits per byte, in windows that do not overlap. A recurrent model carries its state from
        window to window of a lane. A part of a split is its beginning or, if the time is over, that of every lane."""
        windows, total, carry, self.covered = self.examples(split), 0.0, Carry(), 0
        whole = len(windows)
        windows = windows.first(budget.limit) if budget.limit else windows
        cover, seen = windows.cover(self.test_tokens), np.zeros(len(self.tokenizer), np.int64)
        for numbers in cover:
            if budget.over() and self.covered:
                break
            batch = windows.collate(numbers).to(model.device)
            total += float(self.losses(model, batch, None, carry)["tokens"])
            targets = batch.tensors["targets"].cpu().numpy()
            seen += np.bincount(targets[targets != IGNORE], minlength=len(seen))
            self.covered += int((targets != IGNORE).any(1).sum())
        check_numbers(torch.tensor(total))
        name, size = self.tokenizer.kind, len(self.tokenizer)
        state = f"state:carried|lanes:{len(cover[0])}|" if self.kind.carries else ""
        detail = f"tok:{name}-{size}|window:{windows.context}|stride:{windows.context}|{state}split:{split}"
        detail += f"|{model.signature}" if model.signature else ""
        unknown = int(seen[self.tokenizer.unk]) if self.tokenizer.unk is not None else 0
        used = self.data.splits[split].bytes if self.covered == whole else self._bytes(split, seen)
        return language_scores(total, int(seen.sum()), used, detail, unknown)

    def _bytes(self, split: str, seen: np.ndarray) -> int | None:
        """The bytes of text of a part of the split, which has each token so many times (V,). None if the tokens do not
        add up to the text, because the tokenizer drops some of it."""
        sizes = self.tokenizer.sizes
        whole = int(self.token_counts(split) @ sizes)
        return int(seen @ sizes) if whole == self.data.splits[split].bytes else None

    def samples(self, model: LanguageModel, split: str, decode: DecodeConfig, most: int) -> list[Sample]:
        """The beginnings of lines, and how they go on: about READ and WRITTEN bytes of text."""
        tokens, context = self.stream(split).tokens, self.recipe.model.context
        each = max(1.0, self.data.splits[split].bytes / max(1, len(tokens)))
        read, written = (max(1, min(round(size / each), context // 2)) for size in (READ, WRITTEN))
        found = []
        for place in sample_indices(max(0, len(tokens) - read - written))[:most]:
            ids = tokens[place : place + NEAR].tolist()
            line = next((i + 1 for i, id in enumerate(ids) if "\n" in self.tokenizer.token(id)), 0)
            first, last = place + line, place + line + read
            if last + written <= len(tokens):
                found.append((tokens[first:last].tolist(), tokens[last : last + written].tolist()))
        prompts, decoded = [Prompt(ids, len(true)) for ids, true in found], self.tokenizer.decode
        answers = answered(self.predictor(model).answers(prompts, brief(decode)))
        return [Sample(decoded(ids), answer.text, decoded(true)) for (ids, true), answer in zip(found, answers)]
