"""The compiled kernel of negative sampling (negative.c), and how a C file is compiled and kept in a cache folder.

Loading a library runs its code. So a library from the cache is loaded only if it and its folder belong to this user or
to root, nobody else can write to them, and its bytes have the SHA-256 in its name. Otherwise it is compiled again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a process that only loads a kernel needs no torch
    from torch import Tensor

    from allyouneed.word2vec.sampling import SampledText

# Each is tried until one works. Not -ffast-math: with some compilers it changes the arithmetic of the whole process.
FLAGS = (("-O3", "-march=native"), ("-O3", "-mcpu=native"), ("-O3",), ("-O2",))
SECONDS = 120  # that the compiler may take
# The kernel has arrays of these sizes, and is compiled with them: negative.c refuses sizes that do not fit together.
MAX_WIDTH, MAX_WINDOW, MAX_NEGATIVES, MAX_NEIGHBOURS = 10_000, 30, 30, 64
CHUNK = 4096  # words that a thread takes at once


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
        from torch import get_num_threads

        self._check(text, v, u, table)
        count, threads = len(text.radii), get_num_threads()
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
        expected: dict[str, tuple[Tensor, str, tuple[int, ...]]] = {
            "words": (text.words, "torch.int32", (count + 2 * window,)),
            "lines": (text.lines, "torch.int32", (count + 2 * window,)),
            "radii": (text.radii, "torch.int32", (count,)),
            "v": (v, "torch.float32", (vocab, self.width)),
            "u": (u, "torch.float32", (vocab, self.width)),
            "table": (table, "torch.int32", (vocab, 2)),
        }
        for name, (t, dtype, shape) in expected.items():
            if str(t.dtype) != dtype or t.shape != shape or not t.is_contiguous() or t.device.type != "cpu":
                order = "" if t.is_contiguous() else ", not contiguous"
                given = f"{t.dtype} of shape {tuple(t.shape)} on {t.device}{order}"
                raise ValueError(f"{name} must be {dtype} of shape {shape} on cpu, contiguous; it is {given}")
        ranges = {"words": (text.words, vocab - 1), "radii": (text.radii, min(window, MAX_WINDOW))}
        for name, (t, most) in (ranges | {"table": (table[:, 1], vocab - 1)}).items():
            low, high = map(int, t.aminmax()) if t.numel() else (0, most)
            if low < 0 or high > most:
                raise ValueError(f"{name} must hold numbers from 0 to {most}, not from {low} to {high}")


def load_kernel(source: Path, folder: Path, sizes: Mapping[str, int]) -> tuple[ctypes.CDLL | None, str]:
    """The library of a C file with these sizes defined: from `folder`, or compiled and kept there. If the folder cannot
    be trusted or written to, the library is compiled for this process alone. None and the reason if there is none."""
    defined = [f"-D{name}={value}" for name, value in sizes.items()]
    key = hashlib.sha256("\n".join([source.read_text(encoding="utf-8"), *defined, _machine()]).encode()).hexdigest()
    prefix = f"{source.stem}-{key[:20]}"
    cached = _find(folder, prefix)
    if cached is not None:
        with suppress(OSError):  # made for another system, though for the same processor
            return ctypes.CDLL(str(cached)), ""
    try:
        cache = _usable(folder)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=cache) as private:
            library = Path(private) / "kernel.so"
            problem = _compile(source, library, defined)
            if problem:
                return None, problem
            library.chmod(0o700)  # whatever the umask: `_is_private` must hold
            if cache is not None:  # renamed, so that it is whole or not there, even if several processes make it
                library = library.replace(cache / f"{prefix}-{_checksum(library)}.so")
            return ctypes.CDLL(str(library)), ""
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{source.name} cannot be compiled and loaded ({error})"


def _find(folder: Path, prefix: str) -> Path | None:
    """A library of this prefix that can be trusted and is whole."""
    with suppress(OSError):
        if _is_private(folder):
            for library in sorted(folder.glob(f"{prefix}-*.so")):
                if _is_private(library) and library.stem == f"{prefix}-{_checksum(library)}":
                    return library
    return None


def _is_private(path: Path) -> bool:
    """Whether a folder or file belongs to this user or to root, and nobody else can write to it."""
    found = path.lstat()
    kind = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)  # a link may lead anywhere
    return kind and found.st_uid in (os.geteuid(), 0) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _usable(folder: Path) -> Path | None:
    """The folder, made if need be, or None if it cannot be trusted or written to."""
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_private(folder) and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return None


def _checksum(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def _compile(source: Path, library: Path, defined: list[str]) -> str:
    """Compile, with the first flags that work. Returns "", or why there is no library."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        return "there is no C compiler"
    for flags in FLAGS:
        command = [compiler, *flags, *defined, "-std=gnu11", "-fPIC", "-shared", str(source), "-o", str(library), "-lm"]
        if subprocess.run(command, capture_output=True, timeout=SECONDS, check=False).returncode == 0:
            return ""
    return f"{compiler} cannot compile {source.name}"


def _machine() -> str:
    """What code for the native processor depends on: machines with different processors may share a folder."""
    facts = [platform.system(), platform.machine()]
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = ("model name", "flags", "Features", "CPU part")
        facts += sorted({line for line in lines if line.startswith(names)})
    return "\n".join(facts)
