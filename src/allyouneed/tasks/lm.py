"""lm: predict the next token of a text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from allyouneed import catalog
from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches import Batch, Streams, Windows
from allyouneed.data.report import Report, describe
from allyouneed.data.store import Ragged, tokenize_stream
from allyouneed.errors import UserError
from allyouneed.metrics import Score, language_scores
from allyouneed.tasks.answers import Prompt
from allyouneed.tasks.base import Carry, Guess, Moment, Say, Task, check_input, once
from allyouneed.text import Tokenizer


@dataclass(frozen=True)
class LMOptions:
    smoothing: float = option(0.0, "label smoothing", low=0.0, high=1.0)


class LM(Task):
    """loss = -Σ_t log p(x_t | x_<t)"""

    Options = LMOptions
    shape = "text"
    asks = "the beginning of a text"
    weights: ClassVar[dict[str, float]] = {"tokens": 1.0}

    def make_tokenizers(self) -> dict[str, Tokenizer]:
        text = self.recipe.text
        tokenizer = Tokenizer.load(text.path) if text.path else Tokenizer.train(self.data.splits["train"], text)
        return {"tokenizer.json": tokenizer}

    def check(self) -> None:
        super().check()
        if getattr(self.recipe.model, "bidirectional", False):
            raise UserError(
                "model.bidirectional = true: a language model would read what it is to predict; leave it at false"
            )

    def model_config(self) -> Any:
        return replace(self.recipe.model, vocab=len(self.tokenizer))

    def build_model(self) -> Any:
        model: Any = super().build_model()
        if getattr(model, "spelled", False) and not model.spelling.is_meta:  # it reads letters
            model.spell([self.tokenizer.token(id) for id in range(len(self.tokenizer))])
        return model

    @property
    def carries(self) -> bool:
        """Whether the model is recurrent: its state then goes on from window to window."""
        return getattr(catalog.model(self.recipe.model_kind), "recurrent", False)

    @once
    def stream(self, split: str) -> Ragged:
        """The tokens of a split; documents end with the end token."""
        documents = self.data.splits[split].documents()  # type: ignore[attr-defined]
        path, mark = self._store(split, "text", self.tokenizer)
        return tokenize_stream(documents, self.tokenizer, path, mark, separator=self.tokenizer.eos)

    def examples(self, split: str) -> Windows:
        tokens = self.stream(split).tokens
        context = self.recipe.model.context
        if len(tokens) < 2 or (split == "train" and len(tokens) <= context):
            raise UserError(
                f"the {split} text has {len(tokens)} tokens: less than one window of model.context = {context} "
                "and the token after it; give more text or a smaller model.context"
            )
        return Streams(tokens, context) if self.carries else Windows(tokens, context)

    def report(self) -> Report:
        lengths = {split: self.stream(split).lengths for split in self.data.splits}
        return describe(self.data, lengths, limit=None, unit="tokens")

    def losses(
        self, model: Any, batch: Batch, at: Moment | None = None, carry: Carry | None = None
    ) -> dict[str, Tensor]:
        smoothing = self.options.smoothing if model.training else 0.0
        ids, targets = batch.tensors["ids"], batch.tensors["targets"]
        if carry is None or not self.carries:
            return {"tokens": model.loss(ids, targets, smoothing)}
        lanes, fresh = batch.tensors["lanes"], batch.tensors["fresh"]
        kept = self._kept(model, carry)
        before = {name: t[lanes].masked_fill(fresh[:, None, None], 0) for name, t in kept.items()}
        loss, after = model.loss_after(before, ids, targets, smoothing)
        # Truncated backpropagation through time: the next window goes on from these values, its gradient ends there.
        for name, t in after.items():
            carry[name] = kept[name].index_copy(0, lanes, t.detach().to(kept[name].dtype))
        return {"tokens": loss}

    @property
    def _budget(self) -> int:
        """The most tokens a batch has, in training and in tests."""
        return max(self.recipe.train.batch_tokens, 4096)

    def _kept(self, model: Any, carry: Carry) -> Carry:
        """What each lane has read so far, (lanes, L, D); zeros at first, and when batches have become larger."""
        zeros = model.empty(max(1, self._budget // self.recipe.model.context), 0).parts
        return {name: carry[name] if name in carry and len(carry[name]) == len(t) else t for name, t in zeros.items()}

    @torch.inference_mode()
    def test(self, model: Any, split: str, decode: DecodeConfig, say: Say) -> list[Score]:
        """Loss, perplexity and bits per byte over the whole split, in windows that do not overlap. The state of a
        recurrent model goes on from window to window of a lane."""
        windows, total, count, carry = self.examples(split), 0.0, 0, Carry()
        cover = windows.cover(self._budget)
        for numbers in cover:
            batch = windows.collate(numbers).to(model.device)
            total += float(self.losses(model, batch, None, carry)["tokens"])
            count += batch.counts["tokens"]
        name, size = self.tokenizer.kind, len(self.tokenizer)
        state = f"state:carried|lanes:{len(cover[0])}|" if self.carries else ""
        detail = f"tok:{name}-{size}|window:{windows.context}|stride:{windows.context}|{state}split:{split}"
        detail += f"|{model.signature}" if hasattr(model, "signature") else ""
        tokenizer, tokens = self.tokenizer, self.stream(split).tokens
        unknown = int((tokens == tokenizer.unk).sum()) if tokenizer.unk != tokenizer.eos else 0
        return language_scores(total, count, self.data.splits[split].bytes, detail, unknown)

    def prompt(self, model: Any, text: str, decode: DecodeConfig) -> Prompt:
        ids = check_input(text, self.tokenizer, "prompt")
        if model.limit is not None and len(ids) > model.limit:
            raise UserError(
                f"the prompt has {len(ids)} tokens, this model's learned positions end at {model.limit}: shorten it"
            )
        return Prompt(ids, decode.max_new)

    @torch.inference_mode()
    def table(self, model: Any, text: str, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        ids = self.prompt(model, text, decode).ids
        return guesses(model(torch.tensor([ids], device=model.device))[0], ids, self.tokenizer, most)


def guesses(logits: Tensor, ids: list[int], tokenizer: Tokenizer, most: int) -> list[Guess]:
    """logits (T, V) after each of ids (T): the likely next tokens."""
    top = logits.float().softmax(-1).topk(min(most, logits.size(-1)))
    return [
        Guess(tokenizer.token(id), [(tokenizer.token(i), p) for i, p in zip(row, ps)])
        for id, row, ps in zip(ids, top.indices.tolist(), top.values.tolist())
    ]
