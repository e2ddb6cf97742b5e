"""Run folders that nobody should trust: links that lead out, huge sizes, headers that lie, weights that are NaN."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from allyouneed import catalog
from allyouneed.errors import UserError
from allyouneed.models.dvae import DVAE, DVAEConfig
from allyouneed.predict.images import ImageTokenizer
from allyouneed.predict.processor import check_shapes
from allyouneed.recipe import read_recipe, recipe_names
from allyouneed.run import load
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.tensorfile import read_header, read_tensors
from allyouneed.storage.wholefile import Metrics, write_bytes, write_tensors
from allyouneed.tasks.lm import LM
from allyouneed.text import Tokenizer
from commands import ayn, contents, mistake, reseal, train
from test_strange_runs import ALL, RESUME, edit

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def run(lm, tmp_path) -> Path:
    shutil.copytree(lm, tmp_path / "run")
    return tmp_path / "run"


# Links


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "checkpoints", "tensorboard"])
def test_a_link_out_of_the_run_is_never_written_through(name, run, story, tmp_path):
    outside = tmp_path / "outside"
    if name in (".lock", "metrics.jsonl"):
        (run / name).unlink()
        outside.write_text("mine")
    else:
        shutil.rmtree(run / name, ignore_errors=True)
        outside.mkdir()
        (outside / ".old-step-000001").write_text("mine")
    (run / name).symlink_to(outside)
    before = contents(tmp_path)
    for command in (RESUME, train("lm", story, "--overwrite", out="run")):
        said = mistake(*command)
        assert said.startswith(f"run/{name} is a symbolic link, and a run writes only inside its own folder")
    assert contents(tmp_path) == before


def test_a_link_in_the_place_of_a_file_that_is_replaced(run, tmp_path):
    names = ("model.safetensors", "scores.json", "config.json", "recipe.toml", "loss.png")
    for name in names:
        (run / name).rename(tmp_path / f"outside {name}")
        (run / name).symlink_to(tmp_path / f"outside {name}")
    before = {name: (tmp_path / f"outside {name}").read_bytes() for name in names}
    assert ayn(*RESUME).code == 0
    assert ayn("test", "run").code == 0
    assert {name: (tmp_path / f"outside {name}").read_bytes() for name in names} == before
    assert not any((run / name).is_symlink() for name in names)


def test_a_temporary_file_that_is_a_link_and_a_pipe(tmp_path):
    (tmp_path / "outside").write_text("mine")
    (tmp_path / f".tmp-x-{os.getpid()}").symlink_to(tmp_path / "outside")
    write_bytes(tmp_path / "x", b"new")
    assert ((tmp_path / "x").read_bytes(), (tmp_path / "outside").read_text()) == (b"new", "mine")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is not a plain file"):
        Metrics(tmp_path / "pipe")


def test_a_waiting_old_run_that_is_a_link(run, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "scores.json").write_text("mine")
    (run / ".tmp-old").symlink_to(tmp_path / "outside")
    assert ayn("use", "run", "one").code == 0
    assert (tmp_path / "outside" / "scores.json").read_text() == "mine"


# Sizes

# The largest values that the settings allow, and a tokenizer with an id in a gap.
HUGE = {"model.context": 10**7, "model.layers": 1000, "model.width": 10**6, "model.vocab": 2**24, "tokenizer": 900}
MEMORY = 1 << 28  # bytes: enough for the small run; not for so many positions, vectors or tokens


@pytest.fixture
def little_memory() -> Iterator[None]:
    """The process may allocate no more than MEMORY."""
    held = int(re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (held + MEMORY, hard))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def forge(run: Path, **values: int) -> None:
    """Change settings of the model in the recipe and in config.json, so that both agree."""
    head, model, tail = (run / "recipe.toml").read_text().partition("[model]\n")
    for key, value in values.items():
        tail, found = re.subn(rf"^{key} = \d+$", f"{key} = {value}", tail, count=1, flags=re.MULTILINE)
        assert found
    (run / "recipe.toml").write_text(head + model + tail)
    edit(run / "config.json", model={**json.loads((run / "config.json").read_text())["model"], **values})


def stretch(run: Path, id: int) -> None:
    """Give the tokenizer one more token, with this id."""
    spec = json.loads((run / "tokenizer.json").read_text())
    spec["model"]["vocab"]["strange"] = id
    (run / "tokenizer.json").write_text(json.dumps(spec))
    edit(run / "config.json", model={**json.loads((run / "config.json").read_text())["model"], "vocab": id + 1})


@pytest.mark.usefixtures("little_memory")
def test_the_small_run_fits_into_the_memory_and_a_large_tensor_does_not(run):
    assert ayn("info", "run").code == 0
    with pytest.raises(RuntimeError, match="memory"):
        torch.zeros(MEMORY)  # four bytes each


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("setting", HUGE)
def test_a_size_is_checked_before_memory_is_allocated(setting, run):
    """In a run whose every checksum agrees."""
    if setting == "tokenizer":
        stretch(run, HUGE[setting])
    else:
        forge(run, **{setting.removeprefix("model."): HUGE[setting]})
    reseal(run)
    said = mistake("info", "run")
    assert "run/model.safetensors does not fit the model that recipe.toml and the tokenizer describe" in said
    if setting != "model.context":  # the data has no window of that size
        assert "step-000012/model.safetensors does not fit the model" in mistake(*RESUME)


@pytest.mark.usefixtures("little_memory")
def test_a_tokenizer_with_an_id_far_beyond_its_entries(run):
    stretch(run, 200_000_000)
    reseal(run)
    for command in ALL:
        assert "its largest id is 200,000,000, far beyond its" in mistake(*command)


@pytest.mark.usefixtures("little_memory")
def test_a_table_that_no_file_holds_has_a_limit(pretrained, tmp_path):
    """How long a word may be is in no shape of ELMo's weights: here 400 MB are asked for by a file of 2 MB."""
    run = tmp_path / "run"
    shutil.copytree(pretrained, run)
    forge(run, letters=10_000, vocab=20_000)
    tensors = read_tensors(run / "model.safetensors")
    for name in ("head.out.weight", "head.out.bias"):
        tensors[name] = torch.zeros(20_000, *tensors[name].shape[1:])
    write_tensors(run / "model.safetensors", tensors)
    reseal(run)
    assert "its tables would take 400,000,000 bytes" in mistake("info", "run")


def header(path: Path, entries: Any, body: bytes = b"") -> Path:
    text = json.dumps(entries).encode() if not isinstance(entries, bytes) else entries
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def test_a_header_that_lies(tmp_path):
    good = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    path = tmp_path / "x.safetensors"
    assert read_header(header(path, {"a": good}, bytes(8))).shapes == {"a": (2,)}
    lies: list[Any] = [
        {"a": {**good, **lie}}
        for lie in (
            {"shape": [10**12]}, {"shape": [-2]}, {"shape": [True, 2]}, {"shape": ["2"]}, {"shape": 2},
            {"shape": [2.0]},
            {"data_offsets": [0, 10**15]}, {"data_offsets": [-8, 0]}, {"data_offsets": [0]}, {"data_offsets": [4, 12]},
            {"dtype": "F99"}, {"dtype": []},
        )
    ]  # fmt: skip
    lies += [{"a": good, "b": good}, {"a": 3}, [], 3, None, b"{", b"\xff", b"[" * 99_999]
    lies += [{"a": good, "__metadata__": notes} for notes in (3, {"x": 3}, {"allyouneed.tied": '{"b": []}'})]
    for lie in lies:
        with pytest.raises(UserError, match=r"x\.safetensors is damaged"):
            read_header(header(path, lie, bytes(8)))
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    with pytest.raises(UserError, match=r"x\.safetensors is damaged"):
        read_header(path)
    with open(path, "wb") as file:  # 200 MB of header, in a file with nothing in it
        file.write((200_000_000).to_bytes(8, "little"))
        file.truncate(300_000_000)
    with pytest.raises(UserError, match=r"x\.safetensors is damaged.*header too large"):
        read_header(path)


@cache
def words() -> dict[str, Tokenizer]:
    return LM(read_recipe("lm/gpt", ["text.kind=word", "data.name=corpus"])).make_tokenizers()


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_every_model_has_the_same_shapes_without_numbers(name, tmp_path, monkeypatch):
    """Sines, rotations and spellings are computed: the model that is used afterwards has them."""
    recipe = read_recipe(name)
    small = next((size for size in ("nano", "tiny", "small") if size in catalog.model(recipe.model_kind).sizes), "")
    recipe = read_recipe(name, [f"model.size={small}"] if small else [])
    task = catalog.task(recipe.task_kind)(recipe)
    task.tokenizers = words()
    if recipe.task_kind in ("classify", "tag"):
        task.labels = ["O", "B-x", "I-x"]
    if recipe.task_kind == "draw":
        task._image_tokenizer = ImageTokenizer(DVAE(DVAEConfig()))
    model = task.build_model()
    write_tensors(tmp_path / "x.safetensors", model.state_dict())
    check_shapes(task, tmp_path / "x.safetensors")
    assert not any(t.is_meta for t in (*model.parameters(), *model.buffers()))
    tensors = dict(model.state_dict())
    del tensors[next(iter(tensors))]
    write_tensors(tmp_path / "x.safetensors", tensors)
    with pytest.raises(UserError, match=r"does not fit the model that recipe\.toml and the tokenizer describe"):
        check_shapes(task, tmp_path / "x.safetensors")


# Numbers


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_give_no_answer(number, run):
    tensors = read_tensors(run / "model.safetensors")
    tensors["body.stack.norm.weight"][3] = number
    write_tensors(run / "model.safetensors", tensors, {"step": "1", "run": RunFolder(run).identity()})
    for command in ALL[:3]:
        said = mistake(*command)
        assert said.startswith("run/model.safetensors cannot be used: body.stack.norm.weight holds numbers that are")


def test_a_run_to_start_from_is_checked_as_one_to_use(run, story):
    start = train("lm", story, "--init", "run", out="new")
    tensors, notes = read_tensors(run / "model.safetensors"), {"run": RunFolder(run).identity()}
    changes: list[tuple[dict[str, torch.Tensor], dict[str, str], str]] = [
        ({"body.stack.norm.weight": torch.full((16,), float("nan"))}, notes, "norm.weight holds numbers that are not"),
        ({"head.strange": torch.zeros(3)}, notes, "does not fit the model that recipe.toml and the tokenizer describe"),
        ({}, {"run": "another"}, "run/model.safetensors belongs to another run"),
    ]
    for changed, said_of, sentence in changes:
        write_tensors(run / "model.safetensors", {**tensors, **changed}, said_of)
        assert sentence in mistake(*start)
        assert not Path("new").exists()
    write_tensors(run / "model.safetensors", tensors, notes)
    assert ayn(*start).code == 0


def test_a_loaded_run_has_its_computed_tables(pretrained, translator):
    elmo, transformer = load(pretrained).model, load(translator).model
    assert elmo.spelling.any()
    tables = list(transformer.buffers())
    assert tables
    assert all(torch.isfinite(b).all() and b.any() for b in tables)
