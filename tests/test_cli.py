"""The commands, as a person uses them: what they print, what they leave, how they end."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest
import torch

import allyouneed
from allyouneed import catalog, cli
from allyouneed.data import registry
from allyouneed.data.fetch import File
from allyouneed.data.registry import Form, NamedSet
from allyouneed.format import columns
from allyouneed.recipe import Recipe, read_recipe, to_toml
from allyouneed.run import load
from allyouneed.storage.tensorfile import read_tensors
from allyouneed.training.starting import choose
from commands import ayn, mistake
from conftest import TINY_LM

AYN = [sys.executable, "-m", "allyouneed"]
COMMANDS = ["train", "test", "use", "look", "serve", "import", "export", "info", "lecture", "exercise", "list"]


# Help


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_screen_and_shows_an_example_that_is_right(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = ayn(*command.split(), "--help")
    lines = done.out.splitlines()
    assert done.code == 0
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    example = next(line.split() for line in lines if line.strip().startswith("ayn "))
    assert example[1] == command or (not command and example[1] in COMMANDS)
    if example[1] == "train":
        assert example[2] in ayn("list", "recipes").out


def test_every_command_stands_in_the_help_with_all_that_it_does():
    lines = ayn("--help").out.partition("Commands:")[2].split("\n")
    listed = dict(line.split(maxsplit=1) for line in lines if line.strip())
    assert list(listed) == COMMANDS
    assert not [text for text in listed.values() if text.endswith("...")]  # cut off


def test_word_vectors_stand_in_the_help_too():
    assert "analogies" in ayn("test", "--help").out
    assert "word vectors" in ayn("use", "--help").out
    assert "near words" in ayn("--help").out


def test_three_names_for_one_command():
    scripts = Path(sys.executable).parent
    names = [[str(scripts / "ayn")], [str(scripts / "allyouneed")], AYN]
    said = {subprocess.run([*name, "--version"], capture_output=True, text=True).stdout for name in names}
    assert said == {allyouneed.__version__ + "\n"}


@pytest.mark.parametrize("arguments", [["--debug", "info", "nowhere"], ["info", "nowhere", "--debug"]])
def test_debug_shows_the_traceback_before_or_after_the_command(arguments):
    done = ayn(*arguments)
    assert done.code == 2
    assert "Traceback" in done.err
    assert "there is no run folder nowhere" in done.err.splitlines()[-1]


def test_debug_after_two_dashes_is_a_text(translator):
    done = ayn("use", translator, "--", "--debug")
    assert "Traceback" not in done.err


# What goes wrong outside: files, streams


@pytest.mark.parametrize("option", ["--out", "--init", "--data"])
def test_a_name_that_no_file_can_have_is_a_sentence(option, story, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = "lm/lstm" if option == "--init" else "lm/gpt"
    given = {"--data": story, "--out": "run", option: "x" * 5000}
    said = mistake("train", recipe, *(word for pair in given.items() for word in pair))
    assert len(said) < 6000
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", ["test", "info", "use"])
def test_a_run_that_no_folder_can_be_is_a_sentence(words):
    said = mistake(words, "x" * 5000)
    assert "there is no run folder" in said
    assert len(said) < 300


def test_what_the_system_refuses_is_a_sentence(tmp_path, monkeypatch):
    def refused() -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "secret"))

    monkeypatch.setattr("allyouneed.recipe.recipe_names", refused)
    assert mistake("list", "recipes") == f"{tmp_path / 'secret'}: Permission denied"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """AYN stands for the command."""
    line = line.replace("AYN", shlex.join(AYN))
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_an_output_that_nobody_reads_is_no_error():
    done = shell("AYN list settings | head -1; echo ${PIPESTATUS[0]} >&2")
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr in ("0\n", "1\n")
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        done = shell(f"AYN list recipes {closed}")
        assert (done.returncode, done.stderr) == (0, "")
    done = shell("AYN info nowhere 2>&-")
    assert (done.returncode, done.stderr, done.stdout) == (2, "", "")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_output_is_a_sentence(lm):
    for command in ("list recipes", f"use {shlex.quote(str(lm))} one"):
        done = shell(f"AYN {command} >/dev/full")
        assert done.returncode == 2
        assert re.fullmatch("ayn: standard (input or )?output: No space left on device\n", done.stderr)
    done = shell("AYN info nowhere 2>/dev/full")
    assert done.returncode == 2
    assert done.stderr == ""


# list


def test_list_recipes_shows_the_first_line_of_each():
    rows = [line.split(maxsplit=1) for line in ayn("list", "recipes").out.splitlines()]
    assert "lm/gpt" in dict(rows)
    for name, text in rows:
        file = Path(allyouneed.__file__).parent / "recipes" / f"{name}.toml"
        assert file.read_text(encoding="utf-8").startswith(f"# {text}\n")


def test_list_settings_shows_choices_and_ranges_and_those_of_a_recipe_its_values():
    every = ayn("list", "settings").out
    assert re.search(r"text\.kind +bpe +tokenizer \(char, word, .*bert\)", every)
    assert re.search(r"train\.beta1 +0\.9 .*\(from 0 to 0\.999999\)", every)
    own = ayn("list", "settings", "lm/gpt").out
    assert re.search(r"^text\.kind +word +tokenizer", own, re.M)
    assert re.search(r"^model\.context +32 ", own, re.M)
    assert re.search(r"^decode\.stop +'\\n' ", own, re.M)
    assert "teacher_forcing" not in own
    assert "did you mean 'lm/gpt'" in mistake("list", "settings", "lm/gtp")
    assert mistake("list", "data", "lm/gpt").startswith("ayn list data takes no recipe")


def test_list_data_and_models():
    data = ayn("list", "data").out
    assert re.search(r"^phrasebook +pairs ", data, re.M)
    assert re.search(r"^tinyshakespeare +text .*public domain", data, re.M)
    assert "gpt          nano         layers 3, heads 3, width 48" in ayn("list", "models").out


def test_list_tasks_and_lectures():
    tasks = dict(line.split(maxsplit=1) for line in ayn("list", "tasks").out.splitlines())
    assert list(tasks) == sorted(catalog.TASKS)
    assert tasks["lm"] == "predict the next token of a text"
    assert not [text for kind, text in tasks.items() if not text or text.startswith(f"{kind}:")]
    assert ayn("list", "lectures").out == ayn("lecture").out
    assert "gradients        seconds            how the gradient shrinks" in ayn("list", "lectures").out


def test_the_help_of_list_names_every_list():
    said = ayn("list", "--help").out
    assert all(name in said for name in ("recipes", "data", "models", "tasks", "lectures", "settings"))


def test_columns_fold_at_the_edge_of_the_terminal():
    rows = [("BLEU 2.7", "(nrefs:1|case:mixed|tok:13a|greedy)"), ("exact", "one two"), ("", "")]
    assert columns(rows) == ["BLEU 2.7  (nrefs:1|case:mixed|tok:13a|greedy)", "exact     one two", ""]
    folded = ["BLEU 2.7  (nrefs:1|case:mixed|", "          tok:13a|greedy)", "exact     one two", ""]
    assert columns(rows, 32) == folded


# train


def test_train_tells_what_it_understood_once_and_what_to_do_next(story, tmp_path):
    done = ayn("train", "lm/gpt", "--data", story, "--out", tmp_path / "a run", *TINY_LM)
    assert done.code == 0
    assert done.out.count("story.txt; UTF-8 text") == 1
    for said in ("parameters", "validation loss", "perplexity", "bits per byte"):
        assert said in done.out
    command = done.out.splitlines()[-1].strip()
    assert shlex.split(command) == ["ayn", "use", str(tmp_path / "a run")]


def test_a_run_finds_its_data_again_from_another_folder(story, tmp_path, monkeypatch):
    monkeypatch.chdir(story.parent)
    assert ayn("train", "lm/gpt", "--data", story.name, "--out", tmp_path / "run", *TINY_LM).code == 0
    monkeypatch.chdir(tmp_path)
    assert ayn("test", "run").code == 0


def test_data_may_be_a_name(tmp_path):
    settings = ["data.valid_path=nowhere.tsv", "model.hidden=32", "train.epochs=0", "decode.max_new=2", "data.limit=50"]
    tiny = [item for item in TINY_LM if not item.startswith(("model.context", "text", "decode"))]
    done = ayn("train", "translate/transformer", "--data", "phrasebook", "--out", tmp_path / "run", *tiny, *settings)
    assert done.code == 0, done.err
    assert "phrasebook: English-Italian phrases with agreement, built in" in done.out


@pytest.mark.slow
def test_ctrl_c_tells_the_command_that_goes_on(story, tmp_path):
    out = tmp_path / "a run"
    arguments = [
        "train",
        "lm/gpt",
        "--data",
        story,
        "--out",
        out,
        *TINY_LM,
        "train.steps=300",
        "train.eval_every=100",
        "train.log_every=1",
    ]
    process = subprocess.Popen(
        [*AYN, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").read_text():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in said
    step = int(re.search(r"stopped at step (\d+)", said)[1])
    assert 0 < step < 300
    name, *command = shlex.split(said.splitlines()[-1])
    assert name == "ayn"
    assert str(out) in command
    done = ayn(*command)
    assert done.code == 0, done.err
    assert f"resumed at step {step} of 300" in done.out


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (BrokenPipeError, 1), (SystemExit, 1)])
def test_an_end_between_two_checkpoints_tells_it_too(stop, code, story, tmp_path, monkeypatch):
    def stopped(recipe: Recipe, out: Path, **_: object) -> None:
        if out.exists():
            (out / "recipe.toml").write_text(to_toml(recipe.to_dict()))
        raise stop

    monkeypatch.setattr(import_module("allyouneed.training.fit"), "fit", stopped)
    arguments = ("train", "lm/gpt", "--data", story, "--out", tmp_path / "run")
    done = ayn(*arguments)
    assert (done.code, done.err) == (code, "\nstopped before it began\n")
    (tmp_path / "run").mkdir()
    done = ayn(*arguments)
    assert done.code == code
    assert "between two checkpoints" in done.err
    assert done.err.endswith(f"\n  ayn train lm/gpt --out {tmp_path / 'run'} --resume\n")


# test and info


def test_test_shows_the_scores_with_their_signatures_and_keeps_them(lm, translator):
    said = ayn("test", lm).out
    names = [line.split("  ")[0].rsplit(" ", 1)[0] for line in said.splitlines()]
    assert names == ["loss", "perplexity", "bits per byte"]
    assert all("split:test" in line for line in said.splitlines())
    said = ayn("test", translator, "decode.method=beam", "decode.beam=2", "--split", "valid").out
    assert [line.split()[0] for line in said.splitlines()] == ["BLEU", "chrF", "exact"]
    assert all("beam:2" in line and "split:valid" in line for line in said.splitlines())
    kept = json.loads((translator / "scores.json").read_text())
    assert kept["valid"][0]["signature"] in said
    assert "test" in kept


def test_test_finds_a_mirror_that_has_moved(story, tmp_path, monkeypatch):
    """Nothing else tells where it is: neither the run nor the environment, and the cache is empty."""
    content = story.read_bytes()
    file = File("set/story.txt", len(content), sha256(content).hexdigest())  # only a mirror has it
    whole = dict.fromkeys(("train", "valid", "test"), (0, len(content)))
    form = Form("text", {"train": [file]})
    small = NamedSet("small", "text", "a story", "MIT", "nowhere", [form], bytes=whole)
    monkeypatch.setattr(registry, "SETS", {"small": small})
    (tmp_path / "old" / "set").mkdir(parents=True)
    (tmp_path / "old" / "set" / "story.txt").write_bytes(content)
    monkeypatch.setenv("ALLYOUNEED_MIRROR", str(tmp_path / "old"))
    done = ayn("train", "lm/gpt", "--data", "small", "--out", tmp_path / "run", *TINY_LM)
    assert done.code == 0, done.err
    monkeypatch.delenv("ALLYOUNEED_MIRROR")
    monkeypatch.setenv("ALLYOUNEED_CACHE", str(tmp_path / "empty"))
    (tmp_path / "old").rename(tmp_path / "new")
    assert "give a folder that holds it with --mirror DIR" in mistake("test", tmp_path / "run")
    found = ayn("test", tmp_path / "run", "--mirror", tmp_path / "new")
    assert found.code == 0, found.err
    assert "data:small" in found.out
    other = ayn("test", tmp_path / "run", "--data", "small", "--mirror", tmp_path / "new")
    assert other.code == 0, other.err


def test_info_adds_up(lm, translator):
    for run in (lm, translator):
        info = json.loads(ayn("info", run, "--json").out)
        parts = {part: count for part, count in info["parameters"].items() if part != "total"}
        # the file stores what is tied once
        names = read_tensors(run / "model.safetensors")
        stored = {tensor.data_ptr(): tensor.numel() for tensor in names.values()}
        assert sum(parts.values()) == info["parameters"]["total"] == sum(stored.values())
        said = ayn("info", run).out
        for expected in (
            f"{info['parameters']['total']:,}  total",
            "FLOPs",
            "of weights",
            "test score",
            torch.__version__,
        ):
            assert expected in said
        assert str(info["data"]["name"]) in said


def test_info_counts_the_work_as_by_hand(lm, translator):
    """Two FLOPs a weight of a matrix and token; each attention to `context` tokens, two a number of a key and of a
    value."""
    width, context, eval_share = 16, 16, 2 * (16 + 16)
    run = load(lm)
    vocab, hidden = len(run.task.tokenizer), 4 * width
    weights = 3 * width * width + width * width + 2 * width * hidden + width * vocab
    info = json.loads(ayn("info", lm, "--json").out)
    assert info["context"] == context
    assert info["flops per token"] == 2 * weights + eval_share * context
    assert "with 16 tokens of context" in ayn("info", lm).out
    run.recipe = run.recipe.with_(data=replace(run.recipe.data, max_length=8))
    assert run.info()["context"] == context  # a text has no examples to be cut

    run = load(translator)
    assert (run.recipe.model.context, run.recipe.data.max_length) == (512, 256)
    longer = run.recipe.with_(data=replace(run.recipe.data, max_length=600))  # its positions do not end at 512
    run.processor.recipe = longer
    assert run.info()["context"] == 600
    run = load(run.folder.path)
    vocab, hidden, context = len(run.task.tokenizer), 32, 256  # longer sentences are cut
    encoder = 4 * width * width + 2 * width * hidden
    weights = encoder + (encoder + 4 * width * width) + width * vocab
    info = json.loads(ayn("info", translator, "--json").out)
    assert info["context"] == context
    assert info["flops per token"] == 2 * weights + 3 * eval_share * context
    assert "with 256 tokens of context" in ayn("info", translator).out


def test_info_of_a_score_that_is_no_number(lm, tmp_path):
    shutil.copytree(lm, tmp_path / "run")
    scores = {"test": [{"name": "perplexity", "value": None, "signature": "exp(loss)"}]}
    (tmp_path / "run" / "scores.json").write_text(json.dumps(scores))
    assert "test score  perplexity nan  (exp(loss))" in ayn("info", tmp_path / "run").out


# The same in Python


def test_five_lines_in_a_notebook(story, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = f"""
import allyouneed as ayn
run = ayn.train("lm/gpt", "train.steps=20", *TINY, data={str(story)!r}, out="runs/x")
print(run.predict("one two"))
print(run.test()[1])
print(ayn.load("runs/x").predict(["one", "two"], method="beam", beam=2))
"""
    exec(text, {"TINY": [item for item in TINY_LM if "steps" not in item]})
    said = capsys.readouterr().out
    assert "perplexity" in said
    assert "[" in said.splitlines()[-1]


def test_the_front_door_stays_open_in_any_order():
    program = """
import allyouneed as ayn
ayn.load
assert callable(ayn.train), ayn.train
from allyouneed.training import trainer
assert callable(ayn.train)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_python_takes_paths_names_and_recipes(story, tmp_path):
    assert choose("lm/gpt", [], story).data.path == (str(story),)
    assert choose("lm/gpt", [], [story, story]).data.path == (str(story), str(story))
    assert choose("lm/gpt", [], "tinyshakespeare").data.name == "tinyshakespeare"
    assert choose(read_recipe("lm/gpt"), ["train.steps=7"], None).train.steps == 7


def test_an_option_that_is_called_as_its_value_has_its_name_written_out():
    """Typer 0.27 names an option whose metavar is its name in capitals after the metavar: --RUN."""
    for command in cli.app.registered_commands:
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            for option in getattr(hint, "__metadata__", ()):
                if type(option).__name__ == "OptionInfo" and option.metavar == name.upper():
                    assert option.default == f"--{name}", (command.name, name)
