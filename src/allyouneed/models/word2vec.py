"""word2vec: a word is known by the company it keeps (Mikolov et al., 2013)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allyouneed.config import option
from allyouneed.nn.losses import MOST_LOGITS, linear_cross_entropy
from allyouneed.randomness import make_key
from allyouneed.word2vec.draws import ALWAYS, keep_chances, noise, noise_table, reaches, thin
from allyouneed.word2vec.full_softmax import learn_against_all
from allyouneed.word2vec.negative import SETS, Kernel, Reading, Recorder, around, learn_block

ROWS = 1000  # words whose loss is computed at once
# Without the kernel: words that learn at once, and the drawn words that they share.
BLOCK = {"cuda": (2048, 2048), "cpu": (256, 128)}
SOFT = 128  # words that learn at once against all others


@dataclass(frozen=True)
class Word2VecConfig:
    """The choices of the paper's own program, except that the neighbours of a word share the words drawn for it."""

    vocab: int = option(0, "size of the vocabulary", low=0, high=2**24, derived=True)
    width: int = option(100, "width of the vectors", low=1, high=10**5)
    method: str = option("skipgram", "what predicts a word", choices=("skipgram", "cbow"))
    window: int = option(5, "most neighbours per side; their number is drawn for each word", low=1, high=30)
    loss: str = option("negative", "a word against drawn words, or against all words", choices=("negative", "softmax"))
    negatives: int = option(5, "words drawn per word", low=1, high=30)
    shared: bool = option(True, "skipgram: all neighbours of a word use the same drawn words")
    sample: float = option(1e-3, "words above this part of the text are skipped at times (0: never)", low=0.0, high=1.0)

    @property
    def context(self) -> int:
        return 2 * self.window + 1

    @property
    def sets(self) -> int:
        """Of drawn words, for each word."""
        return 1 if self.shared or self.method == "cbow" or self.loss == "softmax" else SETS

    @property
    def soft(self) -> int:
        """Words that learn at once against all others: fewer where there are very many others."""
        return max(1, min(SOFT, MOST_LOGITS // (self.context * max(1, self.vocab))))


class Word2Vec(nn.Module):
    """Every word has two vectors: v as a neighbour (`inputs`), u as the word that is predicted (`outputs`).

    skipgram: each neighbour c of a word w predicts it, x = v_c.
    cbow: their mean does, x = 1/C Σ_c v_c.
    negative: loss = -log σ(x·u_w) - Σ_k log σ(-x·u_k) for drawn words k, p(k) ∝ count(k)^0.75.
    softmax: loss = -log softmax(U x)_w over the words of the training text.
    """

    Config = Word2VecConfig
    tasks: ClassVar[tuple[str, ...]] = ("wordvectors",)
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "small": {"width": 100},
        "base": {"width": 200},
        "large": {"width": 300},
    }
    in_place: ClassVar[bool] = True  # it learns without an optimizer, and without gradients that must be kept
    counts: Tensor
    chances: Tensor
    table: Tensor

    def __init__(self, config: Word2VecConfig) -> None:
        super().__init__()
        self.config = config
        self.inputs = nn.Embedding(config.vocab, config.width)
        self.outputs = nn.Embedding(config.vocab, config.width)
        nn.init.uniform_(self.inputs.weight, -0.5 / config.width, 0.5 / config.width)
        nn.init.zeros_(self.outputs.weight)
        self.register_buffer("counts", torch.zeros(config.vocab, dtype=torch.long))
        self.register_buffer("chances", torch.zeros(config.vocab, dtype=torch.int))
        self.register_buffer("table", torch.zeros(config.vocab, 2, dtype=torch.int))

    def remembered(self, tokens: int) -> int:
        """Values kept at once for a step."""
        c = self.config
        if c.loss == "softmax":
            return min(tokens, c.soft) * c.context * (3 * c.width + 3 * c.vocab) + 2 * c.vocab * c.width
        block, shared = BLOCK["cuda"]
        return min(tokens, block) * (16 * c.width + 6 * shared)

    def flops(self) -> int:
        """Of the predictions that a word takes part in: window + 1 neighbours on average, against each word drawn."""
        c = self.config
        goals, neighbours = (c.vocab if c.loss == "softmax" else 1 + c.negatives), c.window + 1
        if c.method == "cbow":
            return c.width * neighbours + 2 * c.width * goals
        return 2 * c.width * goals * neighbours

    def count(self, counts: Tensor) -> None:
        """How often each word (V,) is in the training text; 0 for what is no word."""
        self.counts.copy_(counts)
        self.chances.copy_(keep_chances(counts, self.config.sample))
        self.table.copy_(noise_table(counts))

    def kernel(self, folder: Path) -> Kernel | Recorder | None:
        """The fast steps of negative sampling for a model of these sizes on its device; what is compiled is kept in
        `folder`."""
        c, device = self.config, self.inputs.weight.device.type
        if c.loss == "softmax" or device not in BLOCK:
            return None
        if device == "cuda":
            return Recorder(*BLOCK[device], negatives=c.negatives, cbow=c.method == "cbow")
        return Kernel(folder, width=c.width, negatives=c.negatives, cbow=c.method == "cbow", sets=c.sets)

    def read(self, tokens: Tensor, key: int, every: bool = False) -> Reading:
        """Draw which words of a text are read and how far each looks; or `every` word, as far as it may. In `tokens`,
        -1 ends a line."""
        chances = self.chances.masked_fill(self.chances >= 0, ALWAYS) if every else self.chances
        words, line = thin(tokens, chances, make_key(key, 0))
        window = self.config.window
        reach = reaches(len(words), window, make_key(key, 1), words.device)
        edge = (window, window)
        return Reading(F.pad(words, edge), F.pad(line, edge, value=-1), reach.fill_(window) if every else reach)

    def loss(self, reading: Reading, key: int) -> tuple[Tensor, Tensor]:
        """The sum over all predictions, and how many they are."""
        loss = predictions = self.inputs.weight.new_zeros(())
        for start in range(0, len(reading.reach), ROWS):
            part, made = self._loss(reading, start, min(start + ROWS, len(reading.reach)), make_key(key, 2))
            loss, predictions = loss + part, predictions + made
        return loss, predictions

    def _loss(self, reading: Reading, start: int, stop: int, key: int) -> tuple[Tensor, Tensor]:
        words, near = around(reading, start, stop)
        x = self.inputs(words.unfold(0, self.config.context, 1))  # (N, C, D)
        words = words[self.config.window : len(words) - self.config.window]  # (N,)
        if self.config.method == "cbow":
            x = near[:, None].to(x) @ x / near.sum(1).clamp(min=1)[:, None, None]  # (N, 1, D)
            near = near.any(1, keepdim=True)
        if self.config.loss == "softmax":
            targets = words[:, None].expand_as(near)
            return linear_cross_entropy(x[near], self.outputs.weight, self._bias(), targets[near]), near.sum()
        drawn = self._noise(near, start, key)  # (N, S, K): one set for each word, or for each neighbour
        y = self.outputs(drawn)
        right = (x @ self.outputs(words)[..., None]).squeeze(-1)  # (N, C)
        wrong = x @ y[:, 0].mT if self.config.sets == 1 else (y @ x[..., None]).squeeze(-1)  # (N, C, K)
        counted = near[..., None] & (drawn != words[:, None, None])
        return -(F.logsigmoid(right) * near).sum() - (F.logsigmoid(-wrong) * counted).sum(), near.sum()

    def _bias(self) -> Tensor:
        """-∞ for what is no word of the training text (V,): it is never predicted."""
        return self.inputs.weight.new_zeros(len(self.counts)).masked_fill(self.counts == 0, -torch.inf)

    def _noise(self, near: Tensor, start: int, key: int) -> Tensor:
        place = torch.arange(start, start + len(near), device=near.device)[:, None] * self.config.sets
        if self.config.sets > 1:
            place = place + (near.cumsum(1) - 1).clamp(min=0)
        each = torch.arange(self.config.negatives, device=near.device)
        return noise(self.table, key, place[..., None] * self.config.negatives + each)

    @torch.no_grad()
    def learn(
        self, tokens: Tensor, key: int, rate: float, kernel: Kernel | Recorder | None = None
    ) -> tuple[Tensor, Tensor]:
        """A step of gradient descent for every word that is read: word by word with the kernel, without it block by
        block. Returns the loss before each step, summed, and the number of predictions."""
        reading, v, u = self.read(tokens, key), self.inputs.weight, self.outputs.weight
        key, count, cbow = make_key(key, 2), len(reading.reach), self.config.method == "cbow"
        if kernel is not None:
            loss, made = kernel.learn(reading, v, u, self.table, key, rate)
            return torch.as_tensor(loss), torch.as_tensor(made)
        seen = torch.zeros(2, device=v.device)
        if self.config.loss == "softmax":
            bias = self._bias()
            for start in range(0, count, self.config.soft):
                stop = min(start + self.config.soft, count)
                seen += learn_against_all(reading, start, stop, v, u, bias, rate=rate, cbow=cbow)
            return seen[0], seen[1]
        block, shared = BLOCK.get(v.device.type, BLOCK["cpu"])
        each = torch.arange(shared, device=v.device)
        for number, start in enumerate(range(0, count, block)):
            drawn = noise(self.table, key, number * shared + each)
            stop = min(start + block, count)
            seen += learn_block(
                reading, start, stop, v, u, drawn, negatives=self.config.negatives, rate=rate, cbow=cbow
            )
        return seen[0], seen[1]
