"""Five hundred damaged files: none crashes the import, hangs it, or takes memory without bound."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from allyouneed.errors import UserError
from allyouneed.exchange.importing import import_run
from test_families import CASES, make, save

FILES = 500
ROOM = 2 << 30  # bytes that an import may take beside what the process has
SECONDS = 20.0  # for one file
KINDS = ("bert, labels", "roberta, words", "vit", "marian")


def truncated(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def flipped(data: bytes, chance: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice([1, 1, 4, 64])):
        place = chance.randrange(min(len(found), chance.choice([64, 2000, len(found)])))
        found[place] ^= 1 << chance.randrange(8)
    return bytes(found)


def strange(data: bytes, chance: random.Random) -> bytes:
    """JSON in which one value is another one; a huge number, for instance."""
    try:
        found = json.loads(data)
    except ValueError:
        return flipped(data, chance)
    odd: list[Any] = [
        10**9, 10**18, -1, 0, 1e308, "x", "", None, True, [], {}, [[]], {"a": 1}, "\ud800", 2**63, [10**12] * 3, 0.5,
    ]  # fmt: skip
    at = found
    while isinstance(at, dict | list) and at:
        key = chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
        if chance.random() < 0.5 or not isinstance(at[key], dict | list) or not at[key]:
            at[key] = chance.choice(odd)
            break
        at = at[key]
    return json.dumps(found).encode()


def huge(data: bytes, chance: random.Random) -> bytes:
    """A safetensors header that declares more than there is; of other files, much of the same."""
    if data[8:9] == b"{":
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        name = chance.choice([name for name in header if name != "__metadata__"])
        where = chance.choice(["shape", "data_offsets"])
        header[name][where] = [chance.choice([10**6, 10**12, 2**62]) for _ in header[name][where]]
        text = json.dumps(header).encode()
        declared = chance.choice([len(text), 2**60, len(text) + 10**9])
        return declared.to_bytes(8, "little") + text + data[8 + size :]
    return data * chance.choice([2, 50]) if data[:1] != b"{" else b'{"a": ' * 100_000


DAMAGE = {"truncated": truncated, "flipped": flipped, "strange": strange, "huge": huge}


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> list[Path]:
    made = []
    for name in KINDS:
        for older in (False, True):
            path = tmp_path_factory.mktemp("original")
            model = make(*CASES[name], 1)
            save(model, path)
            if older:
                (path / "model.safetensors").unlink()
                torch.save(model.state_dict(), path / "pytorch_model.bin")
            made.append(path)
    return made


@pytest.mark.slow
def test_damaged_files_are_refused_or_read(originals, tmp_path, capsys):
    chance, counts = random.Random(1), Counter[str]()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, hard))
    try:
        for number in range(FILES):
            path, out = tmp_path / "damaged", tmp_path / "run"
            shutil.copytree(chance.choice(originals), path)
            file = chance.choice(sorted(path.iterdir()))
            how = chance.choice(list(DAMAGE))
            file.write_bytes(DAMAGE[how](file.read_bytes(), chance))
            began = time.process_time()
            try:
                import_run(path, out, say=lambda line: None)
                counts[f"{how}: read"] += 1
            except UserError:
                assert not out.exists(), (number, file, how)
                counts[f"{how}: refused"] += 1
            assert time.process_time() - began < SECONDS, (number, file, how)
            shutil.rmtree(path)
            shutil.rmtree(out, ignore_errors=True)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    with capsys.disabled():
        print(f"\n{counts.total()} damaged files:", ", ".join(f"{what} {n}" for what, n in sorted(counts.items())))
    assert counts.total() == FILES
    assert sum(n for what, n in counts.items() if what.endswith("refused")) > FILES // 3
