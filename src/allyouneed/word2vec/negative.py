"""Negative sampling, learned in place: gradient steps on two matrices of word vectors, without autograd.

For inputs x and the word w that they predict, against drawn words k: loss = -log σ(x·u_w) - Σ_k log σ(-x·u_k), so
u_w += rate (1 - σ(x·u_w)) x,  u_k -= rate σ(x·u_k) x,  x += rate [(1 - σ(x·u_w)) u_w - Σ_k σ(x·u_k) u_k].
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allyouneed.word2vec.draws import noise
from allyouneed.word2vec.kernels import load_kernel

PART = 4096  # words that a thread takes at once
FURTHEST = 1.0  # of the rates that move one row of a block, added up
SETS = 64  # of drawn words that a word may have, where each neighbour has its own: the kernel's MOST


class Reading(NamedTuple):
    """The N words of a text that are read, in order, with `window` empty places (line -1) before and after them."""

    words: Tensor  # (N + 2 window,)
    line: Tensor  # (N + 2 window,) on which each stands: no word looks beyond its line
    reach: Tensor  # (N,) how far each looks

    @property
    def window(self) -> int:
        return (len(self.words) - len(self.reach)) // 2


class Kernel:
    """negative.c, compiled for these sizes. `problem` says why it is not there, where it is not."""

    def __init__(self, folder: Path, *, width: int, negatives: int, cbow: bool, sets: int) -> None:
        sizes = {"WIDTH": width, "NEGATIVES": negatives, "CBOW": int(cbow), "SETS": sets}
        library, self.problem = load_kernel(Path(__file__).with_name("negative.c"), folder, sizes)
        if library is None:
            return
        pointer, whole = ctypes.c_void_p, ctypes.c_int64
        self._learn = library.learn
        self._learn.argtypes = [*[pointer] * 3, whole, whole, *[pointer] * 3, whole, ctypes.c_uint64, ctypes.c_float]
        self._learn.argtypes += [pointer]
        self._learn.restype = None

    def learn(
        self, reading: Reading, v: Tensor, u: Tensor, table: Tensor, key: int, rate: float
    ) -> tuple[float, float]:
        """A step for every word, in order, on as many threads as torch has; with one of them the result is always the
        same, bit for bit. Returns the loss before each step, summed, and the number of predictions."""
        given = (*reading, v, u, table)
        if not all(t.is_contiguous() and t.device.type == "cpu" for t in given):
            raise ValueError("the kernel takes contiguous tensors on the CPU")
        count, threads = len(reading.reach), torch.get_num_threads()
        words, line = (t.data_ptr() + t.element_size() * reading.window for t in reading[:2])

        def work(start: int, stop: int) -> tuple[float, float]:
            seen = (ctypes.c_double * 2)()
            self._learn(
                words, line, reading.reach.data_ptr(), start, stop,
                v.data_ptr(), u.data_ptr(), table.data_ptr(), len(table), key, rate, seen,
            )  # fmt: skip
            return seen[0], seen[1]

        if threads == 1:
            return work(0, count)
        starts = range(0, count, PART)
        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(lambda start: work(start, min(start + PART, count)), starts))
        return sum(loss for loss, _ in parts), sum(made for _, made in parts)


def around(reading: Reading, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """The words start - window … stop - 1 + window (N + 2 window,), and which of the C = 2 window + 1 places around it,
    its own in the middle, each of the words start … stop - 1 looks at (N, C)."""
    window = reading.window
    words, line = (t[start : stop + 2 * window] for t in reading[:2])
    away = torch.arange(-window, window + 1, device=line.device).abs()
    same = line.unfold(0, 2 * window + 1, 1) == line[window : len(line) - window, None]
    return words.long(), same & (away > 0) & (away <= reading.reach[start:stop, None])


@torch.no_grad()
def learn_block(
    reading: Reading,
    start: int,
    stop: int,
    v: Tensor,
    u: Tensor,
    drawn: Tensor,
    *,
    negatives: int,
    rate: float | Tensor,
    cbow: bool,
) -> Tensor:
    """A step on the words start … stop - 1 at once, as a few products of matrices: for a GPU, and where there is no
    compiler. All share the M drawn words, each of which counts negatives / M times; a word may meet itself among them.
    The rates of all predictions that a row takes part in add up to FURTHEST at most, and are lowered where they are
    more: made from the same old values, they would throw a frequent word far beyond its goal. Returns (loss before the
    step, predictions)."""
    words, near = around(reading, start, stop)
    centre = words[reading.window : len(words) - reading.window]
    rows, target, others = v[words], u[centre], u[drawn]  # (N + 2W, D), (N, D), (M, D)
    places = rows.unfold(0, near.size(1), 1)  # (N, D, C)
    near = near.to(v)
    made = near.sum(1, keepdim=True)  # (N, 1)
    if cbow:
        share = near / made.clamp(min=1)
        x = (places @ share[..., None]).squeeze(-1)  # (N, D)
        right = (x * target).sum(1, keepdim=True)  # (N, 1)
        near = made = often = made.clamp(max=1)
        seen = spread(share, often)
    else:
        x = rows
        right = (target[:, None] @ places).squeeze(1)  # (N, C)
        often = seen = spread(near, torch.ones_like(made))  # in how many predictions each x takes part
    wrong = x @ others.T  # (·, M)
    part = negatives / len(drawn)
    total = made.sum()
    loss = (F.softplus(wrong) * often).sum() * part - (F.logsigmoid(right) * near).sum()
    g = near * torch.sigmoid(-right)
    h = -part * often * torch.sigmoid(wrong)
    if cbow:
        d_target = g * x
        d_rows = spread(share, g * target + h @ others)
    else:
        d_target = (places @ g[..., None]).squeeze(-1)
        d_rows = spread(g, target) + h @ others
    add_moves(v, words, d_rows, seen, rate)
    meetings = torch.cat([made, (part * total).expand(len(drawn), 1)])
    add_moves(u, torch.cat([centre, drawn]), torch.cat([d_target, h.T @ x]), meetings, rate)
    return torch.stack([loss, total])


class Recorder:
    """learn_block on a CUDA device, recorded once and played back: to start its many small kernels one by one takes
    longer than their work. Of each block of `size` words all share the M = `shared` drawn ones."""

    problem = ""

    def __init__(self, size: int, shared: int, *, negatives: int, cbow: bool) -> None:
        self.size, self.shared, self.negatives, self.cbow = size, shared, negatives, cbow
        self.known: tuple[int, ...] = ()  # what the recording was made for

    def learn(
        self, reading: Reading, v: Tensor, u: Tensor, table: Tensor, key: int, rate: float
    ) -> tuple[Tensor, Tensor]:
        """A step for every block, in order: (loss before each step, summed; predictions)."""
        if self.known != (v.data_ptr(), u.data_ptr(), reading.window):
            self._record(reading, v, u)
        starts = range(0, len(reading.reach), self.size)
        drawn = noise(table, key, torch.arange(len(starts) * self.shared, device=v.device))
        self.rate.fill_(rate)
        self.seen.zero_()
        for start, words in zip(starts, drawn.split(self.shared)):
            self._take(reading, start, words)
            self.graph.replay()
        return self.seen[0].clone(), self.seen[1].clone()

    def _record(self, reading: Reading, v: Tensor, u: Tensor) -> None:
        room = (self.size + 2 * reading.window, self.size + 2 * reading.window, self.size)
        self.block = Reading(*(t.new_empty(length) for t, length in zip(reading, room)))
        self.drawn = torch.empty(self.shared, dtype=torch.long, device=v.device)
        self.rate, self.seen = v.new_zeros(()), v.new_zeros(2)
        self._take(reading, 0, torch.zeros_like(self.drawn))

        def step() -> None:
            self.seen += learn_block(
                self.block, 0, self.size, v, u, self.drawn, negatives=self.negatives, rate=self.rate, cbow=self.cbow
            )

        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # once as it is, at the rate 0: a recording wants everything to be set up
            step()
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            step()
        self.known = v.data_ptr(), u.data_ptr(), reading.window

    def _take(self, reading: Reading, start: int, drawn: Tensor) -> None:
        """Fill what the recording reads; behind the last word there is nothing, and nobody who looks there."""
        for mine, theirs, empty in zip(self.block, reading, (0, -1, 0)):
            piece = theirs[start : start + len(mine)]
            mine[: len(piece)].copy_(piece)
            mine[len(piece) :].fill_(empty)
        self.drawn.copy_(drawn)


def add_moves(matrix: Tensor, rows: Tensor, moves: Tensor, seen: Tensor, rate: float | Tensor) -> None:
    """Add rate · moves (N, D) to the rows (N,), at a lower rate where a row is seen (N, 1) too often."""
    often = matrix.new_zeros(len(matrix), 1).index_add_(0, rows, seen)[rows]
    matrix.index_add_(0, rows, moves * (FURTHEST / often.clamp(min=1)).clamp(max=rate))


def spread(weights: Tensor, x: Tensor) -> Tensor:
    """What each x gives to the C places around it: y_j = Σ_i weights[i, j - i] x_i for weights (N, C) and x (N, D),
    (N + C - 1, D)."""
    more = weights.size(1) - 1
    padded = F.pad(weights.flip(1), (0, 0, more, more))  # row i + more, column m: weights[i, more - m]
    bands = padded.as_strided((len(x) + more, more + 1), (more + 1, more + 2))  # row j, column m: padded[j + m, m]
    return (F.pad(x, (0, 0, more, more)).unfold(0, more + 1, 1) @ bands[..., None]).squeeze(-1)
