"""The tensors of a batch, by name: what a task may give to a model."""

from __future__ import annotations

from typing import TypedDict

from torch import Tensor

IGNORE = -100  # a target that does not count: padding, or a label that is not there


class Tensors(TypedDict, total=False):
    """Rows are padded on the right. A batch holds only what its task needs."""

    ids: Tensor  # (B, T) tokens to read
    lengths: Tensor  # (B,) real tokens per row of `ids`, `chars` or `source`
    segments: Tensor  # (B, T) 0 in the first text, 1 in the second
    chars: Tensor  # (B, T, C) the letters of each word, for bodies that read letters
    pixels: Tensor  # (B, C, H, W) images: bytes, or what is left of them after normalising
    codes: Tensor  # (B, N) of images, row by row
    keys: Tensor  # (B,) of the randomness of each image
    other: Tensor  # (B, C, H, W) images to mix into `pixels`
    other_targets: Tensor  # (B,) the labels of `other`
    other_weights: Tensor  # of each of them
    targets: Tensor  # (B, T), (B,), (N,) or (B, 2) what is to be predicted; IGNORE where nothing is
    weights: Tensor  # of each of `targets`; 1 if they are not there
    allowed: Tensor  # (B, T) bool: where an answer may stand, and the token that means "no answer"
    chosen: Tensor  # (N,) where `targets` were before they were hidden: places in the flattened `ids`
    follows: Tensor  # (B,) 0 if the second text follows the first, 1 if not; IGNORE if there is one text
    source: Tensor  # (B, S) tokens of the sentence to translate
    target: Tensor  # (B, T) tokens of its translation, one later than `targets`
    target_lengths: Tensor  # (B, G) real tokens per row of `target`, where `source` and `target` are (B, G, T)
    same: Tensor  # (B, G, G) bool: another pair of the group has the same source or target, so it is no wrong answer
    lanes: Tensor  # (B,) the lane of running text that a row continues
    fresh: Tensor  # (B,) bool: the row begins its lane
    tokens: Tensor  # (N,) running text without rows; -1 ends a line
