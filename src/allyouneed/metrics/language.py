"""Language model scores: loss, perplexity, bits per byte."""

from __future__ import annotations

import math

from allyouneed.metrics.score import Score


def language_scores(nll_sum: float, tokens: int, bytes: int | None, detail: str, unknown: int = 0) -> list[Score]:
    """Three scores from one sum, the negative log-likelihood of a text in nats.

    loss = nll / tokens, perplexity = e^loss, bits per byte = nll / (ln 2 · bytes). The first two depend on the
    tokenizer, so `detail` must name it and the window, for example "tok:bpe-8000|window:256|stride:128". If some tokens
    are `unknown`, the model has not predicted every byte: then there are no bits per byte, nor if `bytes` is None.
    """
    if tokens < 1 or (bytes is not None and bytes < 1):
        raise ValueError(f"there is nothing to score: {tokens} tokens, {bytes} bytes")
    loss = nll_sum / tokens
    try:
        perplexity = math.exp(loss)
    except OverflowError:
        perplexity = math.inf
    if unknown:
        detail += f"|unknown:{unknown / tokens:.2%}"
    scores = [
        Score("loss", loss, f"nats/token|{detail}|tokens:{tokens}"),
        Score("perplexity", perplexity, f"exp(loss)|{detail}|tokens:{tokens}"),
    ]
    if not unknown and bytes is not None:
        scores.append(Score("bits per byte", nll_sum / (math.log(2) * bytes), f"bits/byte|{detail}|bytes:{bytes}"))
    return scores
