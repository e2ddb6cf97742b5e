"""One choice of tokens from given logits on a CPU: our `choose` against the logits processors of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allyouneed.decode.sample import choose, uniform
from allyouneed.predict.decoder import FEW
from bench.harness import OURS, Case, Peer, Prepared, same

HF = "transformers"
ROWS, VOCAB, TOP_K, TOP_P = 64, 50_257, 50, 0.9
CHECKED = 20  # choices


def draw_logits(rows: int, vocab: int) -> Tensor:
    """As spread as those of a language model: a few tokens are likely."""
    return 2.5 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0))


def our_choice(logits: Tensor) -> Callable[[], Tensor]:
    """As the Decoder calls it, with another random number each time."""
    rows = len(logits)
    temperature, top_p = torch.ones(rows), torch.full((rows,), TOP_P)
    top_k, seed, made = torch.full((rows,), TOP_K), torch.arange(rows), torch.zeros(rows, dtype=torch.long)

    def chosen() -> Tensor:
        made.add_(1)
        return choose(logits, temperature, top_k, top_p, uniform(seed, made), True, FEW)[0]

    return chosen


def their_warpers() -> Any:
    from transformers import LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper

    return LogitsProcessorList([TopKLogitsWarper(TOP_K), TopPLogitsWarper(TOP_P)])


def expected(logits: Tensor, u: Tensor) -> Tensor:
    """The first token, in the order of ids, at which the cumulative distribution that transformers leaves exceeds u."""
    left = their_warpers()(None, logits.clone()).double().softmax(-1).cumsum(-1)
    return (left <= u.double().unsqueeze(1)).sum(-1)


def prepare(peers: set[str], folder: Path, rows: str, vocab: str) -> Prepared:
    logits = draw_logits(int(rows), int(vocab))
    ours, count = our_choice(logits), len(logits)
    sides: dict[str, Callable[[], object]] = {OURS: lambda: ours().tolist()}
    checked = "nothing"
    if HF in peers:
        warpers = their_warpers()
        # None in place of the ids so far, which these two do not read; the logits are copied, as generate does.
        sides[HF] = lambda: torch.multinomial(warpers(None, logits.clone()).softmax(-1), 1).squeeze(1).tolist()
        seed = torch.arange(count)
        wanted = [expected(logits, uniform(seed, torch.full((count,), i + 1))) for i in range(CHECKED)]
        equal = float(torch.stack([ours() == tokens for tokens in wanted]).float().mean())
        checked = same(
            f"of {CHECKED * count:,} tokens of ours, {100 * equal:.2f} % are those that the distribution of "
            "transformers gives for the same random number",
            equal > 0.99,
        )
    return Prepared(sides, count, checked)


def case() -> Case:
    work = (
        f"One token for each of {ROWS} rows of logits over {VOCAB:,} tokens, fp32, CPU, with top_k = {TOP_K} and top_p "
        f"= {TOP_P}. Ours is `allyouneed.decode.sample.choose` as the Decoder calls it, which also gives the "
        "log-probability of each token; the peer is TopKLogitsWarper, TopPLogitsWarper, softmax and torch.multinomial, "
        "as `generate` calls them."
    )
    options, quick = {"rows": str(ROWS), "vocab": str(VOCAB)}, {"rows": "4"}
    return Case("sampling-cpu", work, "tokens", [Peer(HF, "transformers")], prepare, 0, options, quick)


CASES = (case(),)
