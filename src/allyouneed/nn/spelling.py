"""Words by their letters: every word has a vector, also a word that was not in the training data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

PADDING, BEGIN, END = 0, 257, 258  # byte b has the id b + 1
LETTERS, LETTER_WIDTH = 259, 16
WIDTHS = range(1, 7)  # of the convolutions


def spell(words: Sequence[str], most: int = 0) -> np.ndarray:
    """The UTF-8 bytes of each word between BEGIN and END: (N, C), padded on the right. `most` sets C; longer words are
    cut there."""
    rows = [[BEGIN, *(byte + 1 for byte in word.encode("utf-8", "replace")), END] for word in words]
    width = most or max(map(len, rows), default=0)
    letters = np.zeros((len(rows), width), dtype=np.int16)
    for i, row in enumerate(rows):
        letters[i, : len(row)] = row[:width]
    return letters


class Highway(nn.Module):
    """y = t ⊙ relu(W x + b) + (1 - t) ⊙ x, with the gate t = σ(W_t x + b_t), almost closed at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(width, 2 * width)
        nn.init.constant_(self.into.bias[width:], -2.0)

    def forward(self, x: Tensor) -> Tensor:
        new, gate = self.into(x).chunk(2, dim=-1)
        return torch.lerp(x, F.relu(new), torch.sigmoid(gate))


class LetterCNN(nn.Module):
    """The vector of a word, from its letters e_1 … e_C (Kim et al., 2016):

    f_w = max_i relu(W_w [e_i; …; e_{i+w-1}] + b_w),  w = 1 … 6, w · filters values each
    x = norm(P · highway(highway([f_1; …; f_6])))
    """

    def __init__(self, width: int, letters: int, filters: int) -> None:
        super().__init__()
        self.most = letters
        self.letters = nn.Embedding(LETTERS, LETTER_WIDTH, padding_idx=PADDING)
        self.convolutions = nn.ModuleList(nn.Conv1d(LETTER_WIDTH, w * filters, w) for w in WIDTHS)
        found = sum(WIDTHS) * filters
        self.highways = nn.Sequential(Highway(found), Highway(found))
        self.project = nn.Linear(found, width)
        self.norm = nn.LayerNorm(width)  # much of f is common to all words: without a norm they start too similar

    def forward(self, letters: Tensor) -> Tensor:
        """(..., C) -> (..., D); of a longer word only the first `most` letters are read."""
        rows = letters.reshape(-1, letters.size(-1))[:, : self.most]
        rows, where = rows.unique(dim=0, return_inverse=True)  # each different word is read once
        return F.embedding(where.view(letters.shape[:-1]), self._read(rows.long()))

    def _read(self, rows: Tensor) -> Tensor:
        """(N, C) -> (N, D)"""
        padding = (rows == PADDING)[:, None]
        x = self.letters(rows).transpose(1, 2)  # (N, K, C)
        found = []
        for w, convolution in zip(WIDTHS, self.convolutions):
            # A window starts at each letter and may extend into zeros; windows that start in the padding do not count.
            scores = convolution(F.pad(x, (0, w - 1))).masked_fill(padding, -torch.inf)
            found.append(F.relu(scores.amax(-1)))  # the same as the largest relu
        return self.norm(self.project(self.highways(torch.cat(found, dim=-1))))
