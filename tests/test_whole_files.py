"""Files are replaced whole, weights are safetensors, metrics are strict lines."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import resource
import signal
from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file

from allyouneed.errors import UserError
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.tensorfile import checksum, read_tensors
from allyouneed.storage.wholefile import Metrics, write_bytes, write_json, write_tensors, write_text, writing
from test_runfolder import Say, a_run, check, content, leftovers, save, start

# Whole files


def test_a_file_is_replaced_whole_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    write_bytes(tmp_path / "x", b"one")
    write_bytes(tmp_path / "x", b"two")
    write_text(tmp_path / "y", "è")
    assert (tmp_path / "x").read_bytes() == b"two"
    assert (tmp_path / "y").read_bytes() == "è".encode()
    assert leftovers(tmp_path) == []


def test_json_is_strict(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": math.nan, "b": [1.5, (-math.inf, True)], "c": "è"})
    value = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert value == {"a": None, "b": [1.5, [None, True]], "c": "è"}


def test_an_interrupted_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": torch.ones(3)})
    # The first tensor is on the disk when the second one fails.
    with pytest.raises(NotImplementedError):
        write_tensors(path, {"a": torch.zeros(3), "b": torch.zeros(3, device="meta")})
    assert torch.equal(read_tensors(path)["a"], torch.ones(3))
    assert leftovers(tmp_path) == []


def test_a_write_that_fails_names_the_file_and_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"could not write .*file/x: Not a directory"):
        write_bytes(tmp_path / "file" / "x", b"")
    with pytest.raises(UserError, match=r"could not write .*gone/x: No such file"):
        write_bytes(tmp_path / "gone" / "x", b"")
    with pytest.raises(UserError, match=r"could not write .*file/run: Not a directory"):
        RunFolder.create(tmp_path / "file" / "run")


# Tensors


def test_tensors_are_read_by_the_safetensors_library(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
    kinds += (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
    tensors = {f"kind.{kind}": torch.randn(3, 5).mul(9).to(kind) for kind in kinds}
    tensors |= {
        "scalar": torch.tensor(2.5, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 4),
        "also.empty": torch.zeros(0, 4),
        "transposed": torch.arange(12).view(3, 4).T,
        "every.second": torch.arange(12)[::2],
        "expanded": torch.tensor([[1.0], [2.0]]).expand(2, 3),
        "parameter": torch.nn.Parameter(torch.randn(2)),
        'odd "name" è \n': torch.ones(1),
    }
    digest = write_tensors(path, tensors, {"note": "è"})
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    length = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + length])
    assert length % 8 == 0
    assert all(header[name]["data_offsets"][0] % tensor.element_size() == 0 for name, tensor in tensors.items())
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "pt", "note": "è", "allyouneed.crc32": checksum(tensors)}
    for loaded in (load_file(path), read_tensors(path)):
        assert loaded.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
            assert (
                loaded[name]
                .reshape(-1)
                .view(torch.uint8)
                .equal(tensor.detach().contiguous().reshape(-1).view(torch.uint8))
            ), name


def test_tied_tensors_are_stored_once_and_come_back_tied(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    weight = torch.nn.Parameter(torch.randn(100, 100))
    tensors = {"embed": weight, "head": weight.detach(), "copy": weight.clone(), "rows": weight[:7], "turned": weight.T}
    write_tensors(path, tensors)
    assert load_file(path).keys() == {"embed", "copy", "rows", "turned"}
    assert path.stat().st_size < (3 * 100 + 7) * 100 * 4 + 1000
    loaded = read_tensors(path)
    assert all(loaded[name].equal(tensors[name]) for name in tensors)
    assert loaded["head"].data_ptr() == loaded["embed"].data_ptr() != loaded["copy"].data_ptr()


def test_tensors_read_belong_to_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": torch.ones(100_000), "b": torch.ones(3, dtype=torch.int8)})
    loaded = read_tensors(path)
    with open(path, "r+b") as file:  # under tensors that were the mapped file, they would change
        file.write(bytes(path.stat().st_size))
    assert loaded["a"].equal(torch.ones(100_000))
    assert all(tensor.data_ptr() % 64 == 0 for tensor in loaded.values())


def test_damaged_and_missing_weight_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": torch.ones(30)})
    whole = path.read_bytes()
    for data in (b"", b"\0" * 50, whole[:-1], whole[:40], whole + b"x", whole.replace(b"F32", b"F99")):
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"x\.safetensors is damaged"):
            read_tensors(path)
    for tied in ("{", "[1]", '{"b": "nowhere"}'):
        write_tensors(path, {"a": torch.ones(3)}, {"allyouneed.tied": tied})
        with pytest.raises(UserError, match=r"x\.safetensors is damaged"):
            read_tensors(path)
    for missing in (tmp_path / "y.safetensors", tmp_path):
        with pytest.raises(UserError, match=f"there is no file {missing}"):
            read_tensors(missing)


def test_a_single_wrong_bit_is_seen_anywhere_in_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": torch.ones(30), "b": torch.arange(9), "empty": torch.zeros(0)})
    whole = bytearray(path.read_bytes())
    for place in range(8 + int.from_bytes(whole[:8], "little"), len(whole), 7):
        whole[place] ^= 1
        path.write_bytes(whole)
        with pytest.raises(UserError, match=r"x\.safetensors is damaged.*the checksum differs"):
            read_tensors(path)
        whole[place] ^= 1
    save_file({"a": torch.ones(3)}, path)  # a file of others has no checksum, and needs none
    assert read_tensors(path)["a"].equal(torch.ones(3))


def test_a_number_format_that_cannot_be_stored_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'wave' is complex64"):
        write_tensors(tmp_path / "x", {"wave": torch.ones(2, dtype=torch.complex64)})
    assert list(tmp_path.iterdir()) == []


# Metrics


def test_metrics_are_strict_json_lines_that_can_be_cut_back(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write({"step": 1, "loss": math.nan})
    offset = metrics.offset()
    assert offset == (tmp_path / "metrics.jsonl").stat().st_size
    metrics.write({"step": 2, "loss": math.inf})
    metrics.close()
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write({"step": 3, "loss": 0.5})
    metrics.truncate(offset)
    metrics.write({"step": 2, "loss": 0.25})
    metrics.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    values = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert values == [{"step": 1, "loss": None}, {"step": 2, "loss": 0.25}]


def test_cutting_metrics_back_neither_lengthens_them_nor_keeps_a_torn_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"st')
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.truncate(1000)
    metrics.close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"step": 1}\n'


# A full disk: a limit on the size of files stands in for it, and speaks the same errors


def test_a_full_disk_is_said_and_costs_nothing(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    save(run, 1)
    save(run, 2)
    write_tensors(run.model, {"a": torch.ones(9)})

    def forever() -> None:
        metrics = Metrics(run.metrics)
        while True:
            metrics.write({"text": "x" * 700})

    def fill(say: Say) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        writes = (
            lambda: save(run, 3),
            lambda: save(run, 2),
            lambda: write_tensors(run.model, content(3)[0]),
            lambda: write_text(run.scores, "x" * 100_000),
            forever,
        )
        with run.lock():
            for write in writes:
                try:
                    write()
                except UserError as error:
                    say(error)

    child, lines = start(fill)
    with lines:
        said = lines.read().splitlines()
    os.waitpid(child, 0)
    last = f"the last checkpoint is {tmp_path}/checkpoints/step-000002; free space and resume"
    lost = "nothing is lost; free space and resume"
    expected = [("checkpoints/step-000003", last), ("checkpoints/step-000002", last), ("model.safetensors", lost)]
    expected += [("scores.json", lost), ("metrics.jsonl", lost)]
    assert len(said) == len(expected)
    for line, (path, end) in zip(said, expected):
        assert line.startswith(f"the disk is full: could not write {tmp_path}/{path} (")
        assert line.endswith(end)
    check(run, 2)
    assert run.checkpoints.steps() == [1, 2]
    assert read_tensors(run.model)["a"].equal(torch.ones(9))
    assert not run.scores.exists()
    assert leftovers(tmp_path) == []
    lines = run.metrics.read_text().splitlines()
    assert len(lines) > 50
    assert all(len(json.loads(line)["text"]) == 700 for line in lines)


@pytest.mark.parametrize(("number", "full"), [
    (errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EFBIG, True), (errno.EACCES, False),
])  # fmt: skip
def test_a_quota_that_is_used_up_is_a_full_disk(number: int, full: bool) -> None:
    """No quota can be set here: its error stands in for it."""
    with pytest.raises(UserError, match="could not write x") as caught, writing(Path("x")):
        raise OSError(number, os.strerror(number))
    assert str(caught.value).startswith("the disk is full: ") == full
