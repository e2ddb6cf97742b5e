"""Negative sampling: gradient steps in place on two matrices of word vectors, without autograd.

For an input x and the word w that it predicts, against negative samples k: loss = -log σ(x·u_w) - Σ_k log σ(-x·u_k), so
u_w += rate (1 - σ(x·u_w)) x,  u_k -= rate σ(x·u_k) x,  x += rate [(1 - σ(x·u_w)) u_w - Σ_k σ(x·u_k) u_k].
plain.py has the same as loops that a reader of the paper recognises.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from allyouneed.word2vec.draws import SampledText, draw_negatives
from allyouneed.word2vec.kernels import load_kernel

# The kernel has arrays of these sizes, and is compiled with them: negative.c refuses sizes that do not fit together.
MAX_WIDTH, MAX_WINDOW, MAX_NEGATIVES, MAX_NEIGHBOURS = 10_000, 30, 30, 64
CHUNK = 4096  # words that a thread takes at once
MAX_ROW_RATE = 1.0  # the sum of the rates at which one step on a block may change one row


class Kernel:
    """negative.c, compiled for these sizes. `problem` is "", or says why there is no kernel. `noise_sets`: sets of
    negative samples per word, 1 or MAX_NEIGHBOURS."""

    def __init__(self, folder: Path, *, width: int, negatives: int, cbow: bool, noise_sets: int) -> None:
        self.width = width
        sizes = {"WIDTH": width, "NEGATIVES": negatives, "CBOW": int(cbow), "SETS": noise_sets}
        limits = {"MAX_WIDTH": MAX_WIDTH, "MAX_WINDOW": MAX_WINDOW, "MAX_NEGATIVES": MAX_NEGATIVES}
        sizes |= limits | {"MAX_NEIGHBOURS": MAX_NEIGHBOURS}
        library, self.problem = load_kernel(Path(__file__).with_name("negative.c"), folder, sizes)
        if library is None:
            return
        pointer, whole = ctypes.c_void_p, ctypes.c_int64
        self._learn = library.learn
        self._learn.argtypes = [*[pointer] * 3, whole, whole, *[pointer] * 3, whole, ctypes.c_uint64, ctypes.c_float]
        self._learn.argtypes += [pointer]
        self._learn.restype = None

    def learn(
        self, text: SampledText, v: Tensor, u: Tensor, table: Tensor, key: int, rate: float
    ) -> tuple[float, float]:
        """One step per word, in order, on as many threads as torch uses. One thread always gives the same result, bit
        for bit. Returns the loss before each step, summed, and the number of predictions."""
        self._check(text, v, u, table)
        count, threads = len(text.radii), torch.get_num_threads()
        words, lines = (t.data_ptr() + t.element_size() * text.window for t in text[:2])

        def work(start: int, stop: int) -> tuple[float, float]:
            sums = (ctypes.c_double * 2)()
            self._learn(
                words, lines, text.radii.data_ptr(), start, stop,
                v.data_ptr(), u.data_ptr(), table.data_ptr(), len(table), key, rate, sums,
            )  # fmt: skip
            return sums[0], sums[1]

        if threads == 1:
            return work(0, count)
        starts = range(0, count, CHUNK)
        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(lambda start: work(start, min(start + CHUNK, count)), starts))
        return sum(loss for loss, _ in parts), sum(predictions for _, predictions in parts)

    def _check(self, text: SampledText, v: Tensor, u: Tensor, table: Tensor) -> None:
        """A ValueError that names the tensor if C would read or write a wrong place, or numbers of another type."""
        count, window, vocab = text.radii.numel(), text.window, v.shape[:1].numel()
        expected: dict[str, tuple[Tensor, torch.dtype, tuple[int, ...]]] = {
            "words": (text.words, torch.int32, (count + 2 * window,)),
            "lines": (text.lines, torch.int32, (count + 2 * window,)),
            "radii": (text.radii, torch.int32, (count,)),
            "v": (v, torch.float32, (vocab, self.width)),
            "u": (u, torch.float32, (vocab, self.width)),
            "table": (table, torch.int32, (vocab, 2)),
        }
        for name, (t, dtype, shape) in expected.items():
            if t.dtype != dtype or t.shape != shape or not t.is_contiguous() or t.device.type != "cpu":
                order = "" if t.is_contiguous() else ", not contiguous"
                given = f"{t.dtype} of shape {tuple(t.shape)} on {t.device}{order}"
                raise ValueError(f"{name} must be {dtype} of shape {shape} on cpu, contiguous; it is {given}")
        ranges = {"words": (text.words, vocab - 1), "radii": (text.radii, min(window, MAX_WINDOW))}
        for name, (t, most) in (ranges | {"table": (table[:, 1], vocab - 1)}).items():
            low, high = map(int, t.aminmax()) if t.numel() else (0, most)
            if low < 0 or high > most:
                raise ValueError(f"{name} must hold numbers from 0 to {most}, not from {low} to {high}")


def neighbours(text: SampledText, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """The words start - window … stop - 1 + window (N + 2 window,), and for each of the words start … stop - 1 which of
    the C = 2 window + 1 places around it, its own in the middle, are its neighbours (N, C)."""
    window = text.window
    words, lines = (t[start : stop + 2 * window] for t in text[:2])
    distance = torch.arange(-window, window + 1, device=lines.device).abs()
    same = lines.unfold(0, 2 * window + 1, 1) == lines[window : len(lines) - window, None]
    return words.long(), same & (distance > 0) & (distance <= text.radii[start:stop, None])


@torch.no_grad()
def learn_block(
    text: SampledText,
    start: int,
    stop: int,
    v: Tensor,
    u: Tensor,
    samples: Tensor,
    *,
    negatives: int,
    rate: float | Tensor,
    cbow: bool,
) -> Tensor:
    """One step on the words start … stop - 1 together, as a few matrix products: for a GPU, and where there is no
    compiler. All words share the M samples, each with the weight negatives / M; a word may be among its own samples.

    All gradients come from the same old values, so a frequent word would overshoot. The rates of all predictions that
    use a row therefore add up to at most MAX_ROW_RATE. Returns (loss before the step, predictions)."""
    words, near = neighbours(text, start, stop)
    centre = words[text.window : len(words) - text.window]
    rows, target, others = v[words], u[centre], u[samples]  # (N + 2W, D), (N, D), (M, D)
    places = rows.unfold(0, near.size(1), 1)  # (N, D, C)
    near = near.to(v)
    predictions = near.sum(1, keepdim=True)  # (N, 1)
    if cbow:
        share = near / predictions.clamp(min=1)
        x = (places @ share[..., None]).squeeze(-1)  # (N, D)
        right = (x * target).sum(1, keepdim=True)  # (N, 1)
        near = predictions = x_uses = predictions.clamp(max=1)
        row_uses = scatter_to_neighbours(share, x_uses)
    else:
        x = rows
        right = (target[:, None] @ places).squeeze(1)  # (N, C)
        x_uses = row_uses = scatter_to_neighbours(near, torch.ones_like(predictions))  # predictions that use each x
    wrong = x @ others.T  # (·, M)
    weight = negatives / len(samples)
    total = predictions.sum()
    loss = (F.softplus(wrong) * x_uses).sum() * weight - (F.logsigmoid(right) * near).sum()
    g = near * torch.sigmoid(-right)
    h = -weight * x_uses * torch.sigmoid(wrong)
    if cbow:
        d_target = g * x
        d_rows = scatter_to_neighbours(share, g * target + h @ others)
    else:
        d_target = (places @ g[..., None]).squeeze(-1)
        d_rows = scatter_to_neighbours(g, target) + h @ others
    add_capped_updates(v, words, d_rows, row_uses, rate)
    u_uses = torch.cat([predictions, (weight * total).expand(len(samples), 1)])
    add_capped_updates(u, torch.cat([centre, samples]), torch.cat([d_target, h.T @ x]), u_uses, rate)
    return torch.stack([loss, total])


class Blocks:
    """learn_block for every block of `size` words, in order. The words of a block share `shared` negative samples."""

    problem = ""

    def __init__(self, size: int, shared: int, *, negatives: int, cbow: bool) -> None:
        self.size, self.shared, self.negatives, self.cbow = size, shared, negatives, cbow

    def learn(
        self, text: SampledText, v: Tensor, u: Tensor, table: Tensor, key: int, rate: float
    ) -> tuple[Tensor, Tensor]:
        """(loss before each step, summed; predictions)"""
        count, sums = len(text.radii), torch.zeros(2, device=v.device)
        step = partial(learn_block, negatives=self.negatives, rate=rate, cbow=self.cbow)
        for start, samples in self._blocks(count, table, key):
            sums += step(text, start, min(start + self.size, count), v, u, samples)
        return sums[0], sums[1]

    def _blocks(self, count: int, table: Tensor, key: int) -> Iterator[tuple[int, Tensor]]:
        """Where each block starts, and its negative samples."""
        starts = range(0, count, self.size)
        samples = draw_negatives(table, key, torch.arange(len(starts) * self.shared, device=table.device))
        return zip(starts, samples.split(self.shared))


class GraphedBlocks(Blocks):
    """The same as a CUDA graph: captured once, then replayed for every block, because launching its many small kernels
    one by one takes longer than their work."""

    captured_for: tuple[int, ...] = ()  # the matrices and the window of the graph

    def learn(
        self, text: SampledText, v: Tensor, u: Tensor, table: Tensor, key: int, rate: float
    ) -> tuple[Tensor, Tensor]:
        if self.captured_for != (v.data_ptr(), u.data_ptr(), text.window):
            self._capture(text, v, u)
        self.rate.fill_(rate)
        self.sums.zero_()
        for start, samples in self._blocks(len(text.radii), table, key):
            self._fill(text, start, samples)
            self.graph.replay()
        return self.sums[0].clone(), self.sums[1].clone()

    def _capture(self, text: SampledText, v: Tensor, u: Tensor) -> None:
        lengths = (self.size + 2 * text.window, self.size + 2 * text.window, self.size)
        self.block = SampledText(*(t.new_empty(length) for t, length in zip(text, lengths)))
        self.samples = torch.empty(self.shared, dtype=torch.long, device=v.device)
        self.rate, self.sums = v.new_zeros(()), v.new_zeros(2)
        self._fill(text, 0, torch.zeros_like(self.samples))

        def step() -> None:
            self.sums += learn_block(
                self.block, 0, self.size, v, u, self.samples, negatives=self.negatives, rate=self.rate, cbow=self.cbow
            )

        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # a warm-up at the rate 0, which changes nothing: a capture needs one
            step()
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            step()
        self.captured_for = v.data_ptr(), u.data_ptr(), text.window

    def _fill(self, text: SampledText, start: int, samples: Tensor) -> None:
        """Copy a block to where the graph reads it; places after the last word are empty."""
        for target, source, empty in zip(self.block, text, (0, -1, 0)):
            piece = source[start : start + len(target)]
            target[: len(piece)].copy_(piece)
            target[len(piece) :].fill_(empty)
        self.samples.copy_(samples)


def add_capped_updates(matrix: Tensor, rows: Tensor, updates: Tensor, uses: Tensor, rate: float | Tensor) -> None:
    """matrix[rows] += rate · updates (N, D), at a lower rate for a row whose uses (N, 1) add up to too many."""
    total = matrix.new_zeros(len(matrix), 1).index_add_(0, rows, uses)[rows]
    matrix.index_add_(0, rows, updates * (MAX_ROW_RATE / total.clamp(min=1)).clamp(max=rate))


def scatter_to_neighbours(weights: Tensor, x: Tensor) -> Tensor:
    """Every x_i is added to the C places around it: y_j = Σ_i weights[i, j - i] x_i for weights (N, C) and x (N, D),
    y (N + C - 1, D)."""
    more = weights.size(1) - 1
    padded = F.pad(weights.flip(1), (0, 0, more, more))  # row i + more, column m: weights[i, more - m]
    bands = padded.as_strided((len(x) + more, more + 1), (more + 1, more + 2))  # row j, column m: padded[j + m, m]
    return (F.pad(x, (0, 0, more, more)).unfold(0, more + 1, 1) @ bands[..., None]).squeeze(-1)
