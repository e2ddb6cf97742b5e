"""Device, precision, compile, threads, ranks: probed once, explained in one line, stored with the run."""

from __future__ import annotations

import os
import platform
import shutil
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from allyouneed.config import TrainConfig
from allyouneed.errors import UserError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Runtime:
    """What was chosen. `why` is the sentence for the person."""

    device: str
    precision: str  # "fp32" or "bf16"
    compile: bool
    threads: int
    world: int
    deterministic: bool
    why: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def same_arithmetic(self, other: dict[str, Any]) -> bool:
        """Whether a run of `other` can go on here bit for bit."""
        return all(
            other.get(key) == getattr(self, key) for key in ("device", "precision", "compile", "threads", "world")
        )

    @property
    def torch_device(self) -> torch.device:
        import torch

        return torch.device(self.device)

    def decided(self, compile: bool, why: str) -> Runtime:
        return replace(self, compile=compile, why=f"{self.why}; {why}")


def cores() -> int:
    """CPU cores that this process may use."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    if told.isdigit() and int(told):
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def probe(config: TrainConfig, *, rank: int = 0, world: int = 1) -> Runtime:
    """Look at the machine, and decide everything but torch.compile, which needs the model."""
    import torch

    threads = config.threads or max(1, cores() // world)
    torch.set_num_threads(threads)
    device = pick_device(config.device, rank)
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.deterministic)
    precision, why = _precision(config.precision, device)
    used = f"{threads} thread{'s' * (threads > 1)}"
    name = torch.cuda.get_device_name() if device.startswith("cuda") else f"{platform.machine()} CPU, {used}"
    return Runtime(
        device=device,
        precision=precision,
        compile=False,
        threads=threads,
        world=world,
        deterministic=config.deterministic,
        why=f"{name}{f', {world} processes' if world > 1 else ''}; {precision}: {why}",
    )


def pick_device(wanted: str, rank: int = 0) -> str:
    """The device of this process, or the sentence why it cannot be had."""
    import torch

    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if wanted == "cuda":
        if not torch.cuda.is_available():
            raise UserError("train.device = cuda, but torch sees no CUDA device here; leave it at auto")
        return f"cuda:{rank % torch.cuda.device_count()}"
    if wanted == "mps" and not torch.backends.mps.is_available():
        raise UserError("train.device = mps, but torch sees no such device here; leave it at auto")
    return wanted


def _precision(wanted: str, device: str) -> tuple[str, str]:
    if wanted != "auto":
        return wanted, "as asked"
    if device == "mps":
        return "fp32", "bf16 is not tried on this device"
    gain = _bf16_gain(device)
    return (
        ("bf16", f"a product is {gain:.1f}x as fast as in fp32")
        if gain > 1.2
        else (
            "fp32",
            f"bf16 runs at {gain:.2g}x its speed here",
        )
    )


def _bf16_gain(device: str) -> float:
    """How much faster a matrix product is in bf16. Small, because on some CPUs it is hundreds of times slower."""
    import torch

    size = 4096 if device.startswith("cuda") else 128

    def seconds(dtype: torch.dtype) -> float:
        a = torch.randn(size, size, device=device).to(dtype)
        best = float("inf")
        for _ in range(4):
            start = time.perf_counter()
            b = a @ a
            b[0, 0].item()
            best = min(best, time.perf_counter() - start)
        return best

    return seconds(torch.float32) / seconds(torch.bfloat16)


def available(device: torch.device) -> int:
    """Free bytes on the device."""
    import torch

    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 8 << 30


def can_compile(device: str) -> str:
    """ "" when torch.compile can work here, otherwise why not."""
    if device.startswith("cuda"):
        try:
            import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: F401
        except ImportError:
            return "triton is not installed"
    if not any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        return "there is no C++ compiler"
    return ""


def versions() -> dict[str, str]:
    """What the numbers of a run depend on."""
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
