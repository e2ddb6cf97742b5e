"""word2vec: vectors of words, learned from their neighbours in a text (Mikolov et al., 2013)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allyouneed.config import option
from allyouneed.errors import UserError
from allyouneed.models.base import SIZES, Model
from allyouneed.nn.init import ZERO, init_weights, uniform
from allyouneed.nn.losses import MOST_LOGITS, linear_cross_entropy
from allyouneed.randomness import make_key
from allyouneed.word2vec import kernels
from allyouneed.word2vec.blocks import Blocks, GraphedBlocks, learn_full_softmax, neighbours
from allyouneed.word2vec.kernels import Kernel
from allyouneed.word2vec.sampling import ALWAYS, SampledText, alias_table, draw_negatives, keep_thresholds, sample_text

ROWS = 1000  # words whose loss is computed at once
# Without the compiled kernel: words per step, and the negative samples that they share.
BLOCK = {"cuda": (2048, 2048), "cpu": (256, 128)}
SOFTMAX_BLOCK = 128  # words per step of the full softmax


@dataclass(frozen=True)
class Word2VecConfig:
    """The defaults of the paper's own program, except that the neighbours of a word share its negative samples."""

    vocab: int = option(0, "size of the vocabulary", low=0, high=2**24, derived=True)
    width: int = option(100, "width of a word vector", low=1, high=kernels.MAX_WIDTH)
    method: str = option("skipgram", "predict from each neighbour, or from their mean", choices=("skipgram", "cbow"))
    window: int = option(5, "most neighbours on each side, drawn for every word", low=1, high=kernels.MAX_WINDOW)
    loss: str = option("negative", "negative sampling, or the full softmax", choices=("negative", "softmax"))
    negatives: int = option(5, "negative samples per word", low=1, high=kernels.MAX_NEGATIVES)
    shared: bool = option(True, "skipgram: the neighbours of a word share its negative samples")
    sample: float = option(1e-3, "words above this part of the text are skipped at times (0: never)", low=0.0, high=1.0)

    @property
    def context(self) -> int:
        return 2 * self.window + 1

    @property
    def noise_sets(self) -> int:
        """Sets of negative samples per word: one, or one for each neighbour."""
        return 1 if self.shared or self.method == "cbow" or self.loss == "softmax" else kernels.MAX_NEIGHBOURS

    @property
    def softmax_block(self) -> int:
        """Words per step of the full softmax: fewer if the vocabulary is very large."""
        return max(1, min(SOFTMAX_BLOCK, MOST_LOGITS // (self.context * max(1, self.vocab))))


class Word2Vec(Model):
    """Every word has two vectors: v as a neighbour (`inputs`), u as the word that is predicted (`outputs`).

    skipgram: each neighbour c of a word w predicts it, x = v_c.
    cbow: the mean of its neighbours predicts it, x = 1/C Σ_c v_c.
    negative: loss = -log σ(x·u_w) - Σ_k log σ(-x·u_k) for negative samples k, p(k) ∝ count(k)^0.75.
    softmax: loss = -log softmax(U x)_w over the words of the training text.
    """

    Config = Word2VecConfig
    tasks = ("wordvectors",)
    sizes = SIZES["word2vec"]
    in_place = True  # it learns without an optimizer and without stored gradients
    counts: Tensor
    thresholds: Tensor
    table: Tensor

    def __init__(self, config: Word2VecConfig) -> None:
        super().__init__()
        self.config = config
        self.inputs = nn.Embedding(config.vocab, config.width)
        self.outputs = nn.Embedding(config.vocab, config.width)
        init_weights(self, {"inputs.*": uniform(0.5 / config.width), "outputs.*": ZERO})
        self.register_buffer("counts", torch.zeros(config.vocab, dtype=torch.long))
        # Both follow from the counts, so no file holds them: the kernel trusts the words in the table.
        self.register_buffer("thresholds", torch.zeros(config.vocab, dtype=torch.int), persistent=False)
        self.register_buffer("table", torch.zeros(config.vocab, 2, dtype=torch.int), persistent=False)

    def tables(self) -> list[nn.Embedding]:
        """None: word vectors are what it learns."""
        return []

    def count(self, counts: Tensor) -> None:
        """Set how often each word (V,) is in the training text; 0 for tokens that are not words."""
        if counts.shape != self.counts.shape or bool((counts < 0).any()) or not bool(counts.any()):
            raise ValueError(f"counts must be {len(self.counts)} numbers of at least 0, and not all 0")
        self.counts.copy_(counts)
        counts = counts.cpu()  # in float64, which not every device has
        self.thresholds.copy_(keep_thresholds(counts, self.config.sample))
        self.table.copy_(alias_table(counts))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As in torch; what follows from the counts is computed again."""
        loaded = super().load_state_dict(state_dict, strict, assign)
        try:
            self.count(self.counts)
        except ValueError as error:
            raise UserError(f"the model file is damaged ({error}): use a copy of it, or train again") from error
        return loaded

    def kernel(self, folder: Path) -> Kernel | Blocks | None:
        """The fast steps of negative sampling on the model's device, if there are any. `folder` keeps compiled code."""
        c, device = self.config, self.inputs.weight.device.type
        if c.loss == "softmax" or device not in BLOCK:
            return None
        if device == "cuda":
            return GraphedBlocks(*BLOCK[device], negatives=c.negatives, cbow=c.method == "cbow")
        return Kernel(folder, width=c.width, negatives=c.negatives, cbow=c.method == "cbow", noise_sets=c.noise_sets)

    def read(self, tokens: Tensor, key: int, every: bool = False) -> SampledText:
        """Draw which words of a text are kept, and the radius of each window. With `every`, all words are kept, each
        with the whole window. In `tokens`, -1 ends a line."""
        thresholds = self.thresholds.masked_fill(self.thresholds >= 0, ALWAYS) if every else self.thresholds
        text = sample_text(tokens, thresholds, self.config.window, key)
        return text._replace(radii=torch.full_like(text.radii, self.config.window)) if every else text

    def loss(self, text: SampledText, key: int) -> tuple[Tensor, Tensor]:
        """The sum over all predictions, and their number."""
        loss = predictions = self.inputs.weight.new_zeros(())
        for start in range(0, len(text.radii), ROWS):
            part, made = self._loss(text, start, min(start + ROWS, len(text.radii)), make_key(key, 2))
            loss, predictions = loss + part, predictions + made
        return loss, predictions

    def _loss(self, text: SampledText, start: int, stop: int, key: int) -> tuple[Tensor, Tensor]:
        words, near = neighbours(text, start, stop)
        x = self.inputs(words.unfold(0, self.config.context, 1))  # (N, C, D)
        words = words[self.config.window : len(words) - self.config.window]  # (N,)
        if self.config.method == "cbow":
            x = near[:, None].to(x) @ x / near.sum(1).clamp(min=1)[:, None, None]  # (N, 1, D)
            near = near.any(1, keepdim=True)
        if self.config.loss == "softmax":
            targets = words[:, None].expand_as(near)
            return linear_cross_entropy(x[near], self.outputs.weight, self._bias(), targets[near]), near.sum()
        samples = self._samples(near, start, key)  # (N, 1, K), or (N, C, K) with a set for each neighbour
        y = self.outputs(samples)
        right = (x @ self.outputs(words)[..., None]).squeeze(-1)  # (N, C)
        wrong = x @ y[:, 0].mT if self.config.noise_sets == 1 else (y @ x[..., None]).squeeze(-1)  # (N, C, K)
        counted = near[..., None] & (samples != words[:, None, None])
        return -(F.logsigmoid(right) * near).sum() - (F.logsigmoid(-wrong) * counted).sum(), near.sum()

    def _bias(self) -> Tensor:
        """-∞ for tokens that are not words of the training text (V,): they are never predicted."""
        return self.inputs.weight.new_zeros(len(self.counts)).masked_fill(self.counts == 0, -torch.inf)

    def _samples(self, near: Tensor, start: int, key: int) -> Tensor:
        """The negative samples of the words from `start` on, with these neighbours (N, C)."""
        place = torch.arange(start, start + len(near), device=near.device)[:, None] * self.config.noise_sets
        if self.config.noise_sets > 1:
            place = place + (near.cumsum(1) - 1).clamp(min=0)
        each = torch.arange(self.config.negatives, device=near.device)
        return draw_negatives(self.table, key, place[..., None] * self.config.negatives + each)

    @torch.no_grad()
    def learn(
        self, tokens: Tensor, key: int, rate: float, kernel: Kernel | Blocks | None = None
    ) -> tuple[Tensor, Tensor]:
        """Gradient descent on the words that subsampling keeps: one step per word with the compiled kernel, else one
        step per block. Returns the loss before each step, summed, and the number of predictions."""
        c, text, v, u = self.config, self.read(tokens, key), self.inputs.weight, self.outputs.weight
        cbow = c.method == "cbow"
        if c.loss == "softmax":
            sums = learn_full_softmax(text, v, u, self._bias(), size=c.softmax_block, rate=rate, cbow=cbow)
            return sums[0], sums[1]
        if kernel is None:
            kernel = Blocks(*BLOCK.get(v.device.type, BLOCK["cpu"]), negatives=c.negatives, cbow=cbow)
        loss, predictions = kernel.learn(text, v, u, self.table, make_key(key, 2), rate)
        return torch.as_tensor(loss), torch.as_tensor(predictions)
