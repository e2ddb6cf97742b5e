"""Kernels that are compiled on first use: cached, never trusted from others, compiled again if they are damaged."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from allyouneed.word2vec import kernels as compiled
from allyouneed.word2vec.kernels import load_kernel

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "number.c"
    path.write_text("int number(void) { return NUMBER; }\n", encoding="utf-8")
    return path


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path / "private"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def started(source: Path, folder: Path, number: int = 7) -> subprocess.Popen[str]:
    """Another process that loads the kernel and prints its number."""
    program = (
        "import sys; from pathlib import Path; from allyouneed.word2vec.kernels import load_kernel\n"
        "library, problem = load_kernel(Path(sys.argv[1]), Path(sys.argv[2]), {'NUMBER': int(sys.argv[3])})\n"
        "print(library.number() if library else problem)"
    )
    command = [sys.executable, "-c", program, str(source), str(folder), str(number)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def loaded(source: Path, folder: Path) -> str:
    process = started(source, folder)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, (process.returncode, err)
    return out.strip()


def test_loading_a_kernel_brings_no_torch():
    program = "import sys, allyouneed.word2vec.kernels; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_kernel_is_compiled_once_for_its_sizes_and_its_machine(source, tmp_path, monkeypatch):
    kept = tmp_path / "kept"
    for number in (7, 7, 8):
        library, problem = load_kernel(source, kept, {"NUMBER": number})
        assert library is not None, problem
        assert library.number() == number
    assert len(list(kept.iterdir())) == 2
    monkeypatch.setattr(platform, "machine", lambda: "another")  # that may not know these instructions
    assert load_kernel(source, kept, {"NUMBER": 7})[0] is not None
    assert len(list(kept.iterdir())) == 3


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_a_cached_kernel_is_used_whatever_the_umask_was(umask, source, tmp_path, monkeypatch):
    before = os.umask(umask)
    try:
        assert loaded(source, tmp_path / "kept") == "7"
    finally:
        os.umask(before)
    monkeypatch.setenv("PATH", "")
    assert loaded(source, tmp_path / "kept") == "7"


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:100],
        lambda data: data[: len(data) // 4],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: bytes(len(data)),
        lambda data: data[:4096] + bytes(byte ^ 255 for byte in data[4096:]),
        lambda data: data[:200] + bytes(byte ^ 16 for byte in data[200:]),
        lambda data: data + b"more",
    ],
)
def test_a_damaged_kernel_is_compiled_again_or_reported(damage, source, tmp_path, monkeypatch):
    kept = tmp_path / "kept"
    load_kernel(source, kept, {"NUMBER": 7})
    (library,) = kept.iterdir()
    whole = library.read_bytes()
    library.unlink()  # this process has it mapped
    library.write_bytes(damage(whole))
    library.chmod(0o700)
    assert loaded(source, kept) == "7"
    assert library.read_bytes() == whole
    library.write_bytes(damage(whole))
    monkeypatch.setenv("PATH", "")
    assert loaded(source, kept) == "there is no C compiler"


def planted(source: Path, folder: Path) -> Path:
    """A kernel that gives 666, in the place and with a checksum as if it gave 7; nothing else is there."""
    load_kernel(source, folder, {"NUMBER": 7})
    (right,) = folder.iterdir()
    right.unlink()
    load_kernel(source, folder, {"NUMBER": 666})
    (wrong,) = folder.iterdir()
    prefix, checksum = right.stem.rpartition("-")[0], hashlib.sha256(wrong.read_bytes()).hexdigest()
    return wrong.rename(folder / f"{prefix}-{checksum}.so")


def linked(library: Path) -> None:
    elsewhere = library.parent.with_name("elsewhere")
    library.rename(elsewhere)
    library.symlink_to(elsewhere)


def test_what_is_planted_would_run_if_it_were_trusted(source, tmp_path):
    """Or the next test could not fail."""
    planted(source, tmp_path / "kept")
    assert loaded(source, tmp_path / "kept") == "666"


UNTRUSTED: dict[str, Callable[[Path], None]] = {
    "file of the group": lambda library: library.chmod(0o720),
    "file of all": lambda library: library.chmod(0o702),
    "folder of the group": lambda library: library.parent.chmod(0o770),
    "folder of all": lambda library: library.parent.chmod(0o707),
    "sticky folder of all": lambda library: library.parent.chmod(0o1777),
    "link": linked,
}
OF_ANOTHER: dict[str, Callable[[Path], None]] = {
    "file": lambda library: os.chown(library, NOBODY, NOBODY),
    "folder": lambda library: os.chown(library.parent, NOBODY, NOBODY),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*UNTRUSTED, *(pytest.param(name, marks=as_root) for name in OF_ANOTHER)])
def test_a_kernel_that_another_user_could_have_written_is_never_loaded(name, source, tmp_path, private, monkeypatch):
    library = planted(source, tmp_path / "kept")
    (UNTRUSTED | OF_ANOTHER)[name](library)
    monkeypatch.setenv("TMPDIR", str(private))
    assert loaded(source, library.parent) == "7"
    assert not list(private.iterdir())
    if "folder" in name:  # it is not written to either
        assert list(library.parent.iterdir()) == [library]
    else:  # the right one is there now, and the other one is still not trusted
        monkeypatch.setenv("PATH", "")
        assert loaded(source, library.parent) == "7"


def test_a_folder_that_cannot_be_made_is_done_without(source, tmp_path, private):
    (tmp_path / "file").write_text("")
    library, problem = load_kernel(source, tmp_path / "file" / "kept", {"NUMBER": 7})
    assert library is not None, problem
    assert library.number() == 7
    assert not list(private.iterdir())


@pytest.mark.slow
def test_several_processes_compile_the_same_kernel_at_once(source, tmp_path):
    processes = [started(source, tmp_path / "kept") for _ in range(5)]
    assert [process.communicate(timeout=120)[0].strip() for process in processes] == ["7"] * 5
    (library,) = (tmp_path / "kept").iterdir()
    assert library.stem.endswith(hashlib.sha256(library.read_bytes()).hexdigest())


def test_without_a_compiler_there_is_a_reason(source, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert load_kernel(source, tmp_path / "kept", {"NUMBER": 7}) == (None, "there is no C compiler")


def test_a_compiler_that_takes_too_long_is_reported_and_leaves_nothing(source, tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "SECONDS", 1e-6)
    found, problem = load_kernel(source, tmp_path / "kept", {"NUMBER": 7})
    assert found is None
    assert problem.startswith("number.c cannot be compiled")
    assert not list((tmp_path / "kept").iterdir())
