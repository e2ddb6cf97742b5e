"""Small C kernels, compiled by the machine's own compiler when they are first needed, and kept for the next time."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# Each is tried until one works. Not -ffast-math: with some compilers it changes the arithmetic of the whole process.
FLAGS = (("-O3", "-march=native"), ("-O3", "-mcpu=native"), ("-O3",), ("-O2",))
SECONDS = 120


def load_kernel(source: Path, folder: Path, sizes: Mapping[str, int]) -> tuple[ctypes.CDLL | None, str]:
    """The library made of a C file with these sizes defined, compiled into `folder` unless it is there; or None and
    the reason, in a few words."""
    defined = [f"-D{name}={value}" for name, value in sizes.items()]
    key = hashlib.sha256("\n".join([source.read_text(encoding="utf-8"), *defined, _machine()]).encode()).hexdigest()
    library = folder / f"{source.stem}-{key[:20]}.so"
    if library.is_file():
        with suppress(OSError):  # damaged: it is made anew
            return ctypes.CDLL(str(library)), ""
    problem = _compile(source, library, defined)
    if problem:
        return None, problem
    try:
        return ctypes.CDLL(str(library)), ""
    except OSError as error:
        return None, f"the compiled kernel cannot be loaded ({error})"


def _compile(source: Path, library: Path, defined: list[str]) -> str:
    """ "", or why there is no library now. It is made beside its place and renamed, so that it is never half there."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        return "there is no C compiler"
    fresh = library.with_name(f".tmp-{library.name}-{os.getpid()}")
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        for flags in FLAGS:
            command = [
                compiler,
                *flags,
                *defined,
                "-std=gnu11",
                "-fPIC",
                "-shared",
                str(source),
                "-o",
                str(fresh),
                "-lm",
            ]
            if subprocess.run(command, capture_output=True, timeout=SECONDS, check=False).returncode == 0:
                os.replace(fresh, library)
                return ""
        return f"{compiler} cannot compile {source.name}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{source.name} cannot be compiled in {library.parent} ({error})"
    finally:
        with suppress(OSError):
            fresh.unlink()


def _machine() -> str:
    """What a library made for the native machine depends on: a folder may be shared by machines that differ."""
    told = [platform.system(), platform.machine(), platform.processor()]
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = ("model name", "flags", "Features", "CPU part")
        told += sorted({line for line in lines if line.startswith(names)})
    return "\n".join(told)
