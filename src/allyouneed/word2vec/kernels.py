"""Small C kernels, compiled by the machine's own compiler when they are first needed, and kept in a cache folder.

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
from contextlib import suppress
from pathlib import Path

# Each is tried until one works. Not -ffast-math: with some compilers it changes the arithmetic of the whole process.
FLAGS = (("-O3", "-march=native"), ("-O3", "-mcpu=native"), ("-O3",), ("-O2",))
SECONDS = 120  # that the compiler may take


def load_kernel(source: Path, folder: Path, sizes: Mapping[str, int]) -> tuple[ctypes.CDLL | None, str]:
    """The library of a C file with these sizes defined: from `folder`, or compiled and kept there. If the folder cannot
    be trusted or written to, the library is compiled for this process alone. None and the reason if there is none."""
    defined = [f"-D{name}={value}" for name, value in sizes.items()]
    key = hashlib.sha256("\n".join([source.read_text(encoding="utf-8"), *defined, _machine()]).encode()).hexdigest()
    prefix = f"{source.stem}-{key[:20]}"
    kept = _find(folder, prefix)
    if kept is not None:
        with suppress(OSError):  # made for another system, though for the same processor
            return ctypes.CDLL(str(kept)), ""
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
