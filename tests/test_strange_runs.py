"""Run folders of strangers, of failing disks, and mixed from several runs: a sentence that names the file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.runjson import VERSION, parse_object
from allyouneed.storage.tensorfile import read_tensors
from allyouneed.storage.wholefile import write_json, write_tensors
from allyouneed.tasks.lm import LM
from commands import accept_recipe, ayn, mistake, reseal, train
from conftest import RUNTIME

pytestmark = pytest.mark.usefixtures("elsewhere")

RESUME = ("train", "lm/gpt", "--out", "run", "--resume", "train.steps=14")
ALL = [("use", "run", "one"), ("info", "run"), ("test", "run"), RESUME]


@pytest.fixture
def run(lm, tmp_path) -> Path:
    shutil.copytree(lm, tmp_path / "run")
    return tmp_path / "run"


def edit(path: Path, **values: Any) -> None:
    write_json(path, {**json.loads(path.read_text()), **values})


# What a run consists of


def test_config_lists_the_parts_and_the_other_files(translator, run, tmp_path):
    config = RunFolder(run).read_config()
    assert (config["version"], list(config["parts"]), config["files"]) == (VERSION, ["tokenizer.json"], ["loss.png"])
    ayn("test", "run")
    assert RunFolder(run).read_config() == config


@pytest.mark.parametrize("version", [None, 0, VERSION + 1, str(VERSION), True, float(VERSION), {"x": 1}])
def test_a_run_of_another_version_is_refused(version, run):
    config = json.loads((run / "config.json").read_text())
    del config["version"]
    write_json(run / "config.json", config if version is None else {"version": version, **config})
    for command in ALL:
        said = mistake(*command)
        has = "names no version" if version is None else f"is of version {version}"
        assert said == f"run/config.json {has}, this library reads runs of version {VERSION}: train the run again"


def test_an_earlier_version_is_read_unless_its_kind_of_model_has_other_names_since(run):
    edit(run / "config.json", version=2)
    assert RunFolder(run).read_config()["kind"] == "gpt"
    edit(run / "config.json", kind="elmo")
    assert "is of version 2" in mistake("info", "run")


def test_a_task_adds_parts_of_its_own(story, tmp_path, monkeypatch):
    """No tokenizer is needed either, unless a part is one."""
    table, parts, read_parts = bytes(range(256)), LM.parts, LM.read_parts
    monkeypatch.setattr(LM, "parts", lambda self: {**parts(self), "table.bin": table})
    found = []

    def read(self, given):
        found.append(given["table.bin"])
        read_parts(self, given)

    monkeypatch.setattr(LM, "read_parts", read)
    assert ayn(*train("lm", story, out="run")).code == 0
    assert ayn("use", "run", "one").code == 0
    assert ayn(*RESUME).code == 0
    assert set(found) == {table}
    before = (tmp_path / "run" / "table.bin").read_bytes()
    (tmp_path / "run" / "table.bin").write_bytes(b"?" + before[1:])
    for command in ALL:
        assert "run/table.bin is damaged, or belongs to another run" in mistake(*command)
    (tmp_path / "run" / "table.bin").unlink()
    for command in ALL:
        assert "it has no table.bin" in mistake(*command)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "table.bin").write_bytes(before)
    (tmp_path / "run" / "mine.bin").write_bytes(before)
    assert ayn(*train("lm", story, "--overwrite", out="run")).code == 0
    assert not (tmp_path / "run" / "table.bin").exists()
    assert (tmp_path / "run" / "mine.bin").exists()


def test_a_run_without_a_tokenizer_that_needs_one(run):
    write_json(run / "config.json", {**json.loads((run / "config.json").read_text()), "parts": {}})
    reseal(run)
    assert "its config.json does not list 'tokenizer.json'" in mistake("use", "run", "one")


# Files of other runs


def test_the_tokenizer_of_another_run(run):
    """Of the same size, so that nothing but its content tells."""
    path = run / "tokenizer.json"
    spec = json.loads(path.read_text())
    words = spec["model"]["vocab"]
    first, second = [word for word in words if word.isalpha()][:2]
    words[first], words[second] = words[second], words[first]
    path.write_text(json.dumps(spec))
    for command in ALL:
        assert "run/tokenizer.json is damaged, or belongs to another run" in mistake(*command)


def test_a_tokenizer_that_is_none_but_has_the_right_checksum(run):
    for text in ("{", "{}", "[]", "[" * 9999, '{"model": {"type": "BPE"}}'):
        (run / "tokenizer.json").write_text(text)
        reseal(run)
        for command in ALL:
            said = mistake(*command)
            assert said.startswith("run cannot be used: tokenizer.json is ")
            assert said.endswith("; train it again")


def test_the_weights_of_another_run(run):
    model = run / "model.safetensors"
    write_tensors(model, read_tensors(model), {"step": "1", "run": "another"})
    for command in ALL[:3]:
        assert "run/model.safetensors belongs to another run" in mistake(*command)
    write_tensors(model, read_tensors(model))
    assert "run/model.safetensors belongs to another run" in mistake("use", "run", "one")


def test_a_run_from_before_a_setting_was_there(run):
    """A setting that is newer than the run has its usual value; another value is a difference."""
    config = json.loads((run / "config.json").read_text())
    del config["model"]["drop_path"]
    write_json(run / "config.json", config)
    reseal(run)  # as it was written then
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(text.replace("drop_path = 0.0\n", "", 1))
    accept_recipe(run)  # it had no checksum then
    assert (run / "recipe.toml").read_text() != text
    done = ayn("use", "run", "one")
    assert done.code == 0, done.err
    (run / "recipe.toml").write_text(text.replace("drop_path = 0.0", "drop_path = 0.5", 1))
    assert "from different runs: model.drop_path is 0.5 in the first and 0.0 in the second" in mistake(
        "use", "run", "one"
    )


def test_the_recipe_or_the_config_of_another_run(run, translator):
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(text.replace("width = 16", "width = 32", 1))
    for command in ALL:
        assert "run/recipe.toml is not the file that config.json lists" in mistake(*command)
    accept_recipe(run)
    for command in ALL:
        said = mistake(*command)
        assert "recipe.toml and config.json in run are from different runs: model.width is 32 in the first" in said
    (run / "recipe.toml").write_text(text)
    shutil.copy(translator / "config.json", run)
    for command in ALL:
        assert "recipe.toml is not the file that config.json lists" in mistake(*command)
    accept_recipe(run)
    for command in ALL:
        assert "tokenizer.json is damaged, or belongs to another run" in mistake(*command)


def test_the_checkpoints_of_another_run(run, translator):
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(translator / "checkpoints", run / "checkpoints")
    assert "run/checkpoints/step-000012 is a checkpoint of another run" in mistake(*RESUME)
    reseal(run)
    assert "step-000012/model.safetensors does not fit the model" in mistake(*RESUME)


def test_the_optimizer_of_another_run(run, translator):
    folder = RunFolder(run)
    saved = folder.checkpoints.latest()
    other = RunFolder(translator).checkpoints.latest()
    small = {name: t[:1] if t.dim() else t for name, t in saved.train().items()}
    for train_tensors in (other.train(), small):
        folder.checkpoints.save(12, saved.model(), train_tensors, saved.state)
        assert "step-000012/train.safetensors does not fit the model" in mistake(*RESUME)


ITEM = "optimizer/body.stack.norm.weight"


@pytest.fixture(scope="module")
def averaged(story, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("averaged") / "run"
    assert ayn(*train("lm", story, "train.ema=0.9", out=str(out))).code == 0
    return out


@pytest.fixture(scope="module")
def carried(story, tmp_path_factory) -> Path:
    """A run whose windows pass on their state."""
    out = tmp_path_factory.mktemp("carried") / "run"
    tiny = ["model.width=8", "model.context=16", "text.kind=char", "train.batch_tokens=64", "train.eval_every=4"]
    assert ayn("train", "lm/lstm", "--data", story, "--out", out, *RUNTIME, *tiny, "train.steps=4").code == 0
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [
        (f"{ITEM}/exp_avg", lambda t: t.new_zeros(())),  # a scalar, as only the count of steps is
        (f"{ITEM}/exp_avg", lambda t: t.long()),
        (f"{ITEM}/exp_avg_sq", None),
        (f"{ITEM}/step", lambda t: t[None]),
        (f"{ITEM}/other", lambda t: torch.zeros(16)),
        ("ema/body.stack.norm.weight", lambda t: t[:1]),  # it would be spread over all values
        ("ema/body.stack.norm.weight", None),
    ],
)
def test_what_training_remembers_of_another_shape(name, change, averaged, tmp_path):
    shutil.copytree(averaged, "run")
    forge(tmp_path / "run", name, change)
    assert "step-000012/train.safetensors does not fit the model" in mistake(*RESUME)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("carry/0/h", lambda t: t[:-1]),
        ("carry/0/h", lambda t: t[:, :, :-1]),
        ("carry/0/h", lambda t: t[:, 0]),
        ("carry/0/c", lambda t: t.long()),
        ("carry/0/c", None),
        ("carry/0/x", lambda t: torch.zeros(3)),
        ("carry/x/h", lambda t: torch.zeros(3)),
    ],
)
def test_a_state_that_windows_pass_on_of_another_shape(name, change, carried, tmp_path):
    resume = ("train", "lm/lstm", "--out", "run", "--resume", "train.steps=6")
    shutil.copytree(carried, "run")
    forge(tmp_path / "run", name, change)
    assert "step-000004/train.safetensors does not fit the model" in mistake(*resume)
    shutil.rmtree("run")
    shutil.copytree(carried, "run")
    assert ayn(*resume).code == 0


def forge(run: Path, name: str, change: Callable[[Any], Any] | None) -> None:
    """Change a tensor of the last checkpoint, or take it away; the checksums agree."""
    checkpoints = RunFolder(run).checkpoints
    saved = checkpoints.latest()
    tensors = saved.train()
    before = tensors.pop(name, None)
    if change is not None:
        tensors[name] = change(before).contiguous()
    checkpoints.save(saved.step, saved.model(), tensors, saved.state)


# JSON of any shape

STRANGE = ["null", "3", '"x"', "[]", "{}", "true", "NaN", "1e400", "[" * 400 + "]" * 400, "[" * 9999, '{"x": [null]}']


def laid_over(values: Any, path: tuple[Any, ...], text: str) -> str:
    """JSON with the text in one place."""
    if not path:
        return text
    items = values.items() if isinstance(values, dict) else enumerate(values)
    written = {key: laid_over(value, path[1:], text) if key == path[0] else json.dumps(value) for key, value in items}
    if isinstance(values, list):
        return f"[{', '.join(written.values())}]"
    return f"{{{', '.join(f'{json.dumps(key)}: {value}' for key, value in written.items())}}}"


def told(command: tuple[Any, ...], file: str) -> bool:
    """Whether the command refuses the run with one sentence that names the file; otherwise it works."""
    done = ayn(*command)
    assert done.code in (0, 2), done
    assert done.code == 0 or (file in done.err and len(done.err.splitlines()) == 1), done
    return done.code == 2


@pytest.mark.slow
def test_a_config_of_any_shape(run):
    config = json.loads((run / "config.json").read_text())
    places = [(), *((key,) for key in config), *(("data", key) for key in config["data"])]
    places += [("runtime", "why"), ("versions", "torch"), ("parts", "tokenizer.json"), ("files", 0)]
    places += [("parts", "tokenizer.json", "bytes"), ("parts", "tokenizer.json", "sha256")]
    refused = 0
    for place in places:
        for text in STRANGE:
            (run / "config.json").write_text(laid_over(config, place, text))
            refused += told(("info", "run", "--json"), "config.json")
            if len(place) < 2:
                told(("info", "run"), "config.json")
    assert refused > len(places) * 5
    for place in [()] + [(key,) for key in config]:
        changed = dict(config)
        if place:
            del changed[place[0]]
        (run / "config.json").write_text(json.dumps(changed if place else {}))
        told(("info", "run"), "config.json")


@pytest.mark.parametrize("command", ALL, ids=lambda command: command[0])
def test_a_config_of_any_shape_in_every_command(command, run):
    config = json.loads((run / "config.json").read_text())
    for place in ((), ("data",), ("model",), ("parts",), ("parts", "tokenizer.json"), ("data", "fingerprint")):
        for text in ("null", "[]", "NaN", "[" * 9999):
            (run / "config.json").write_text(laid_over(config, place, text))
            assert told(command, "config.json")


def test_a_part_is_never_a_file_outside_the_folder(run, tmp_path):
    for name in ("../secret", "/etc/hostname", "a/b", ".lock", ""):
        (tmp_path / "secret").write_text("mine")
        edit(run / "config.json", files=[name])
        assert "config.json is damaged (a file of the run is not a plain name)" in mistake("info", "run")
        mistake(*RESUME)
        edit(run / "config.json", files=[])


@pytest.mark.slow
def test_scores_of_any_shape(run):
    scores = json.loads((run / "scores.json").read_text())
    places = [(), ("test",), ("test", 0), *(("test", 0, key) for key in ("name", "value", "signature"))]
    for place in places:
        for text in [*STRANGE, "1" + "0" * 400]:
            (run / "scores.json").write_text(laid_over(scores, place, text))
            fine = (place, text) in (
                [((), "{}"), (("test",), "[]"), (("test", 0, "value"), "null"), (("test", 0, "value"), "3")]
                + [(place, '"x"') for place in places[3:] if place[-1] != "value"]
            )
            assert told(("info", "run"), "scores.json") != fine, (place, text)
    for text in ('{"test": [{"name": "loss", "value": 1}]}', '{"test": [{}]}'):
        (run / "scores.json").write_text(text)
        assert "scores.json is damaged" in mistake("test", "run")
        assert ayn("use", "run", "one").code == 0
    assert ayn(*RESUME).code == 0  # new scores take the place of the damaged ones


def test_json_that_is_plain_data():
    assert parse_object('{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
    deep = '{"a": ' * 32 + "1" + "}" * 32
    assert parse_object(deep[len('{"a": ') : -1])
    for text in ("[]", "1", '{"a": NaN}', '{"a": -Infinity}', f'{{"a": {deep}}}', "[" * 100_000):
        with pytest.raises(ValueError, match=r"not a JSON object|not a number|nested too deep"):
            parse_object(text)


@pytest.mark.slow
def test_a_state_of_any_shape(run):
    folder = RunFolder(run)
    saved = folder.checkpoints.latest()
    places = [*((key,) for key in saved.state), *(("position", key) for key in saved.state["position"])]
    places += [("runtime", "device"), ("runtime", "compile"), *(("window", key) for key in saved.state["window"])]
    places += [("window", "losses", 0)]
    for place in places:
        for text in ("null", '"x"', "[]", "{}", "-1" if place[-1] == "step" else "true"):
            if (place, text) == (("runtime", "compile"), "true") or (place, text) == (("runtime", "device"), '"x"'):
                continue
            changed = json.loads(laid_over(saved.state, place, text))
            folder.checkpoints.save(12, saved.model(), saved.train(), changed)
            assert "checkpoints/step-000012" in mistake(*RESUME)


PIPES = {
    "scores.json": (("info", "run"), ("test", "run")),
    "config.json": ALL,
    "recipe.toml": ALL,
    "tokenizer.json": ALL,
    "model.safetensors": ALL[:3],
    **{
        f"checkpoints/step-000012/{name}": (RESUME,)
        for name in ("manifest.json", "state.json", "model.safetensors", "train.safetensors")
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("endless", ["pipe", "/dev/zero"])
@pytest.mark.parametrize("name", PIPES)
def test_a_file_that_never_ends_is_not_waited_for(name, endless, run):
    (run / name).unlink()
    if endless == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to(endless)
    for command in PIPES[name]:
        if name.startswith("checkpoints"):  # the one before it is used
            assert f"{Path(name).name} " in ayn(*command).out
        else:
            assert mistake(*command).startswith(("run", "there is no run in run"))


def test_another_setting_of_the_task_is_noticed(reviews, tmp_path):
    out = tmp_path / "run"
    short = ["train.steps=2", "model.width=8", "model.layers=1", "data.valid_part=0.2", "data.test_part=0.2"]
    assert ayn("train", "classify/rnn", "--data", reviews, "--out", out, *short).code == 0
    recipe = (out / "recipe.toml").read_text()
    assert 'pool = "mean"' in recipe
    (out / "recipe.toml").write_text(recipe.replace('pool = "mean"', 'pool = "max"'))
    accept_recipe(out)
    said = mistake("use", out, "the film was fine")
    assert "task.pool is 'max' in the first and 'mean' in the second" in said
