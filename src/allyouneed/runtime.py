"""Device, precision, compile, threads, processes: probed once, explained in one line, stored with the run."""

from __future__ import annotations

import os
import platform
import shutil
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from allyouneed.config import ENGINES, PRECISIONS, TrainConfig
from allyouneed.errors import UserError, nearest, shortened

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Runtime:
    """What was chosen. `why` is the sentence for the user."""

    device: str
    precision: str  # "fp32", "tf32" or "bf16"
    compile: bool
    threads: int
    world: int
    deterministic: bool
    why: str

    def same_arithmetic(self, other: dict[str, Any]) -> bool:
        """Whether a run of `other` continues here with the same results to the last bit."""
        keys = ("device", "precision", "compile", "threads", "world")
        return all(other.get(key) == getattr(self, key) for key in keys)

    @property
    def torch_device(self) -> torch.device:
        import torch

        return torch.device(self.device)

    @property
    def free_threads(self) -> int:
        """Threads of which a training may use fewer: compiled code and several processes have theirs."""
        fixed = self.device != "cpu" or self.compile or self.world > 1 or self.deterministic
        return 1 if fixed else self.threads


_computing = 0  # the process that first used torch through this library


def claim_process() -> None:
    """Called before anything is computed. The threads of torch do not survive a fork: a forked child would wait for
    them forever, so it gets an error instead."""
    global _computing
    if _computing not in (0, os.getpid()):
        raise UserError(
            "this process was forked from one that had already loaded or trained a run, and torch would hang in it: "
            'start it with multiprocessing.get_context("spawn"), or load the run only after the fork'
        )
    _computing = os.getpid()


def cores() -> int:
    """CPU cores that this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted):
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def probe(config: TrainConfig, *, rank: int = 0, world: int = 1) -> Runtime:
    """Look at the machine, and decide everything but torch.compile, which needs the model."""
    import torch

    claim_process()
    silence_bf16()
    threads = config.threads or max(1, cores() // world)
    torch.set_num_threads(threads)
    device = pick_device(config.device, rank)
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if config.deterministic != torch.are_deterministic_algorithms_enabled():  # the call alone takes two seconds
        torch.use_deterministic_algorithms(config.deterministic)
    precision = pick_precision(config.precision, device)
    allow_tf32(precision)
    used = f"{threads} thread{'s' * (threads > 1)}"
    name = torch.cuda.get_device_name() if device.startswith("cuda") else f"{platform.machine()} CPU, {used}"
    why = f"{name}{f', {world} processes' if world > 1 else ''}; {precision}"
    return Runtime(device, precision, False, threads, world, config.deterministic, why)


def pick_device(wanted: str, rank: int = 0) -> str:
    """The device of this process, or an error that says why it cannot be used."""
    import torch

    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    kind, _, number = wanted.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (number and not (kind == "cuda" and number.isdecimal())):
        hint = nearest(wanted, ("auto", "cpu", "cuda", "mps"))
        raise UserError(f"device = {wanted} is not auto, cpu, cuda, cuda:NUMBER or mps{hint}")
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise UserError(f"device = {wanted}, but torch sees no CUDA device here; leave it at auto")
        count = torch.cuda.device_count()
        if number and int(number) >= count:
            raise UserError(f"device = {wanted}, but the last CUDA device here is cuda:{count - 1}")
        return f"cuda:{number or rank % count}"
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError("device = mps, but torch sees no such device here; leave it at auto")
    return wanted


def allow_tf32(precision: str) -> None:
    """Whether CUDA may round the factors of an fp32 product to TF32: never under the name fp32. Under bf16 it may:
    the few products that stay in fp32 are then still finer than the others."""
    import torch

    # Not torch.backends.*.fp32_precision: the compiler reads the older switches, which refuse to be mixed with it.
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"


def attend_by_cudnn(fixed: bool) -> None:
    """cuDNN's attention is the fastest for batches of one fixed shape. For each new shape it plans for milliseconds, so
    batches that vary are left to torch's other kernels."""
    import torch

    torch.backends.cuda.enable_cudnn_sdp(fixed)


def pick_precision(wanted: str, device: str) -> str:
    """The precision of a training or of a loaded run: bf16 on a CUDA GPU that has it, otherwise fp32, unless asked for
    another."""
    import torch

    if wanted not in PRECISIONS:
        raise UserError(f"precision = {wanted} is not one of {', '.join(PRECISIONS)}{nearest(wanted, PRECISIONS)}")
    if wanted == "tf32" and not device.startswith("cuda"):
        raise UserError(f"precision = tf32 is for a CUDA GPU, and the device is {device}: choose fp32 or auto")
    if wanted != "auto":
        return wanted
    return "bf16" if device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def check_engine(engine: str, precision: str) -> None:
    """Raise a UserError if there is no such engine, or if the precision is that of another."""
    if engine not in ENGINES:
        raise UserError(f"there is no engine '{shortened(engine)}'{nearest(engine, ENGINES)}")
    if precision == "int8" and engine != "ct2":
        raise UserError(f"precision = int8 is for the engine ct2, and the engine is {engine}: choose that, or fp32")


def silence_bf16() -> None:
    """A CPU without bf16 makes torch print a stack trace before it uses its other kernels."""
    warnings.filterwarnings("ignore", "mkldnn_matmul failed")


def available(device: torch.device) -> int:
    """Free bytes on the device."""
    import torch

    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()


def free_memory() -> int:
    """Free bytes of the machine."""
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux: all that the machine has
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def can_compile(device: str) -> str:
    """ "" if torch.compile can work here, otherwise why not."""
    if device.startswith("cuda"):
        try:
            import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: F401
        except ImportError:
            return "triton is not installed"
    if not any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        return "there is no C++ compiler"
    return ""


def versions() -> dict[str, str]:
    """Of everything that the numbers of a run depend on."""
    import numpy
    import tokenizers
    import torch

    from allyouneed.version import __version__

    return {
        "allyouneed": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "tokenizers": tokenizers.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }
