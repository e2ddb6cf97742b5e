"""What a body's vectors are turned into."""

from __future__ import annotations

from torch import Tensor, nn

from allyouneed.nn.losses import linear_cross_entropy


class LMHead(nn.Module):
    """Scores of every word of the vocabulary: logits = h W^T (+ b). W may be the embedding matrix itself."""

    def __init__(self, width: int, vocab: int, *, tie: nn.Embedding | None = None, bias: bool = False) -> None:
        super().__init__()
        self.out = nn.Linear(width, vocab, bias=bias)
        if tie is not None:
            self.out.weight = tie.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        return self.out(hidden)

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The cross-entropy summed over the targets that are not padding."""
        return linear_cross_entropy(hidden, self.out.weight, self.out.bias, targets, smoothing)
