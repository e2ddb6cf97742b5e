"""What is printed cannot steer a terminal, and is not endless: labels, texts, names and values may be anyone's."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import select
import subprocess
import sys
import unicodedata
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import allyouneed
from allyouneed.errors import UserError
from allyouneed.figures import alignment
from allyouneed.run import load
from allyouneed.terminal import brief, printable, say
from commands import Done, ayn
from conftest import RUNTIME, TINY_LM

# A title, a colour, a bell, a question to the terminal, markup, a turned and a broken line, HTML, half a character.
EVIL = "x\x1b]0;owned\x07\x1b[31m\x9b5n[red]\u202eliv\u2028e\u2066\x7f\r\b<b>"
TURNS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
LONG = "v" * 100_000
HOME = Path(allyouneed.__file__).parent


def steering(text: str) -> list[str]:
    """The characters of a text that a terminal obeys instead of showing them, and halves of characters."""
    return [
        letter
        for letter in text
        if (unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") and letter not in "\n\t")
        or unicodedata.bidirectional(letter) in TURNS
    ]


def clean(done: Done) -> Done:
    """What a command has printed, which is harmless and not endless."""
    assert not steering(done.out + done.err), (done.out, done.err)
    assert "Traceback" not in done.err
    assert max(map(len, (done.out + done.err).split("\n"))) < 5000
    return done


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an evil name. In it: evil data, a tokenizer whose tokens are evil, and runs with evil names."""
    place = tmp_path_factory.mktemp("hostile") / f"folder {EVIL}"
    place.mkdir()
    rows = [{EVIL: f"{EVIL} number {i}", f"label {EVIL}": f"{EVIL}{'good' if i % 2 else 'bad'}"} for i in range(40)]
    (place / f"{EVIL}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f"{EVIL.replace(chr(13), '')} number {i % 7}" for i in range(300)]
    (place / "story.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def labels(hostile: Path) -> tuple[Path, Done]:
    """A classifier of evil texts with evil labels, and what its training printed."""
    out = hostile / f"labels {EVIL}"
    done = ayn(
        "train", "classify/rnn", "--data", next(hostile.glob("*.jsonl")), f"data.source={EVIL}",
        f"data.target=label {EVIL}", "--out", out, *RUNTIME, "model.width=8", "train.epochs=0", "train.steps=4",
        "train.eval_every=2", "train.batch_tokens=64", "text.kind=char",
    )  # fmt: skip
    return out, done


@pytest.fixture(scope="module")
def letters(hostile: Path) -> tuple[Path, Done]:
    """A language model of evil characters, and what its training printed."""
    out = hostile / f"letters {EVIL}"
    return out, ayn("train", "lm/gpt", "--data", hostile / "story.txt", "--out", out, *TINY_LM, "model.context=64")


def test_a_training_on_evil_texts_labels_columns_and_names_prints_nothing_evil(labels, letters):
    for out, done in (labels, letters):
        assert done.code == 0, done.err
        assert "\\x1b]0;owned" in clean(done).out
        assert (out / "model.safetensors").is_file()  # under the name that was given
    assert "label" in labels[1].out
    assert "sample: " in letters[1].out


@pytest.mark.parametrize("option", [(), ("--json",), ("--table",), ("--embed",)], ids=str)
def test_an_answer_shows_control_characters(letters, labels, option):
    for run, _ in (letters, labels):
        done = clean(ayn("use", run, EVIL, *option))
        assert done.code == 0, done.err
        if option == ("--json",):
            assert json.loads(done.out)["input"] == EVIL


def test_json_is_exact(labels):
    run, _ = labels
    found = json.loads(clean(ayn("use", run, "number 1", "--json")).out)
    assert found["label"] in (f"{EVIL}good", f"{EVIL}bad")
    assert json.loads(clean(ayn("info", run, "--json")).out)["run"] == str(run)


def test_a_file_is_exact(labels, tmp_path):
    run, _ = labels
    done = clean(ayn("test", run, "--out", tmp_path / "answers.jsonl"))
    assert done.code == 0, done.err
    for line in (tmp_path / "answers.jsonl").read_text(encoding="utf-8").split("\n")[:-1]:
        assert json.loads(line)["text"].startswith(EVIL)


def hostile_commands(run: Path, text: Path, evil: str) -> dict[str, tuple[object, ...]]:
    """Commands with an evil word in every place that takes one."""
    return {
        "a command": (evil,),
        "an option": ("train", f"--{evil}"),
        "a recipe": ("train", evil),
        "a recipe file": ("train", f"{evil}.toml"),
        "a section": ("train", "lm/gpt", f"{evil}.steps=1"),
        "a key": ("train", "lm/gpt", f"train.{evil}=1"),
        "a number": ("train", "lm/gpt", f"train.steps={evil}"),
        "a choice": ("train", "lm/gpt", f"text.kind={evil}"),
        "a kind": ("train", "lm/gpt", f"model.kind={evil}"),
        "a size": ("train", "lm/gpt", f"model.size={evil}"),
        "a list": ("train", "lm/gpt", f"decode.stop=[{evil}"),
        "no setting": ("train", "lm/gpt", evil),
        "public data": ("train", "lm/gpt", "--data", evil),
        "public data as a setting": ("train", "lm/gpt", f"data.name={evil}", "data.path="),
        "a data file": ("train", "lm/gpt", "--data", f"{evil}.txt"),
        "a data folder": ("train", "lm/gpt", "--data", f"{evil}/"),
        "a column": ("train", "classify/rnn", "--data", text, f"data.source={evil}"),
        "a mirror": ("train", "lm/gpt", "--mirror", evil, "--data", "wikitext-2"),
        "a donor": ("train", "lm/gpt", "--init", evil),
        "a tokenizer": ("train", "lm/gpt", f"text.path={evil}", "--data", text),
        "vectors": ("train", "lm/gpt", f"text.vectors={evil}", "--data", text),
        "a device": ("info", run, "--device", evil),
        "a precision": ("info", run, "--precision", evil),
        "a run": ("info", evil),
        "a run to use": ("use", evil, "text"),
        "a run to test": ("test", evil),
        "a run to resume": ("train", evil, "--resume", "--out", evil),
        "a split": ("test", run, "--split", evil),
        "test data": ("test", run, "--data", evil),
        "a test setting": ("test", run, f"decode.{evil}=1"),
        "a text": ("use", run, f"some {evil} text"),
        "a decode setting": ("use", run, "x", "--set", evil),
        "a decode key": ("use", run, "x", "--set", f"{evil}=1"),
        "a decode method": ("use", run, "x", "--set", f"method={evil}"),
        "a place": ("use", run, "x", "--heads", "a.png", "--place", evil),
        "an image": ("use", run, "x", "--heads", evil),
        "an alignment": ("use", run, "x", "--alignment", f"{evil}.gif"),
        "layers": ("use", run, "x", "--embed", "--layers", evil),
        "a pool": ("use", run, "x", "--embed", "--pool", evil),
        "a file to search": ("use", run, "x", "--embed", "--nearest", evil),
        "a model": ("import", evil),
        "a model of the hub": ("import", f"hf:{evil}"),
        "an architecture": ("import", run, "--as", evil),
        "an export": ("export", run, "out", "--to", evil),
        "numbers": ("export", run, "out", "--to", "ct2", "--numbers", evil),
        "a list of": ("list", evil),
        "a recipe to list": ("list", "settings", evil),
        "a lecture": ("lecture", evil),
    }


@pytest.mark.slow
@pytest.mark.usefixtures("elsewhere")
def test_no_command_prints_an_evil_word(letters):
    run, text = letters[0], letters[0].parent / "story.txt"
    codes: dict[int, int] = {}
    for evil in (EVIL, f"{EVIL}\udc9b\n", LONG, f"{EVIL} " * 5000):
        for what, words in hostile_commands(run, text, evil).items():
            done = clean(ayn(*words))
            codes[done.code] = codes.get(done.code, 0) + 1
            assert done.code in ((0, 2) if what == "a text" else (2,)), (what, done)
            assert len(done.err) < 5000, what
    print(f"evil words on the command line, by exit code: {codes}")


def test_a_long_value_is_shortened_and_its_length_told():
    said = ayn("train", "lm/gpt", f"{LONG}.steps=1").err
    assert len(said) < 500
    said = str(UserError(f"the name {LONG} is too long: choose a shorter one"))
    assert said == f"the name {'v' * 100}… (100,000 characters) is too long: choose a shorter one"
    said = str(UserError(f"the text '{'v ' * 50_000}' is too long: choose a shorter one"))
    assert len(said) < 2000
    assert "(100,0" in said
    assert said.endswith("choose a shorter one")
    assert brief(said) == said


def test_a_message_is_one_line_without_control_characters():
    for error in (UserError(f"{EVIL}\n\t\udcff"), UserError(f"it is: {UserError(EVIL)}")):
        assert not steering(str(error) + repr(error))
        assert len(str(error).splitlines()) == 1


def test_every_character_that_steers_is_shown_as_its_code():
    every = [chr(code) for code in range(0x110000)]
    assert not steering(printable("".join(every)))
    changed = {letter for letter in every if printable(letter) != letter}
    assert changed == set(steering("".join(every)))
    assert (
        printable("a\tb\nc äé 中文 👩\u200d🔬 می\u200cخواهم \u00a0")
        == "a\tb\nc äé 中文 👩\u200d🔬 می\u200cخواهم \u00a0"
    )
    for letter in changed:
        assert json.loads(printable(json.dumps(letter, ensure_ascii=False))) == letter


def test_a_notebook_shows_a_run_with_an_evil_name(labels):
    run = load(labels[0])
    shown = run._repr_html_()
    assert not steering(shown + repr(run))
    assert "<b>" not in shown
    assert "&lt;b&gt;" in shown


def test_a_figure_with_evil_texts_is_valid(tmp_path):
    out = tmp_path / "a.svg"
    alignment(np.full((2, 2), 0.5), ["a", EVIL], ["b", EVIL], out, f"title {EVIL}", f"shown {EVIL}")
    ET.fromstring(out.read_bytes())
    assert not steering(out.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_real_processes_print_nothing_evil(labels, letters, hostile):
    """Bytes, as a terminal gets them: names that are not UTF-8, too."""
    words = [
        ("info", labels[0]),
        ("use", letters[0]),
        ("train", "lm/gpt", "--data", hostile / "story.txt", "--out", hostile / "again", *TINY_LM),
        ("train", b"\xff\x9b\x1b.toml"),
    ]
    for arguments in words:
        done = subprocess.run(
            [sys.executable, "-m", "allyouneed", *(x if isinstance(x, bytes) else str(x) for x in arguments)],
            input=f"{EVIL}\n".encode(), capture_output=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == (2 if "toml" in str(arguments) else 0), done.stderr
        assert not {byte for byte in done.stdout + done.stderr if byte < 32} - {9, 10}
        assert not steering((done.stdout + done.stderr).decode())


@pytest.mark.slow
def test_a_terminal_gets_our_colours_and_nothing_evil(hostile, letters):
    """On a terminal there is a bar, with its own escape sequences; those in texts are shown."""
    main, side = pty.openpty()
    arguments = ["train", "lm/gpt", "--data", hostile / "story.txt", "--out", hostile / "on a terminal", *TINY_LM]
    process = subprocess.Popen(
        [sys.executable, "-m", "allyouneed", *map(str, arguments)],
        stdin=subprocess.DEVNULL, stdout=side, stderr=side, env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    )  # fmt: skip
    os.close(side)
    got = b""
    while process.poll() is None or select.select([main], [], [], 0)[0]:
        if select.select([main], [], [], 1)[0]:
            try:
                got += os.read(main, 1 << 16)
            except OSError:  # the other end is closed
                break
    os.close(main)
    assert process.wait() == 0
    text = got.decode()
    assert "\x1b[" in text  # of the bar
    assert "\\x1b]0;owned" in text
    assert "\x1b]0;" not in text
    assert not set(steering(text)) - {"\r", "\x1b"}
    assert "[red]" in text


def test_say_is_what_prints(capsys):
    say(f"a\n{EVIL}\n{LONG}")
    assert not steering(shown := capsys.readouterr().out)
    assert shown.count("\n") == 3
    assert "100,000 characters" in shown


ELSEWHERE = {"terminal.py", "cli/completing.py", "data/formats/pixels.py"}  # the last two answer programs


def test_one_file_prints():
    for path in sorted(HOME.rglob("*.py")):
        name = str(path.relative_to(HOME))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if name not in ELSEWHERE else ():
            told = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
            prints = re.fullmatch(r"print|sys\.std(out|err)\.(buffer|write)|typer\.s?echo", told)
            assert not prints, f"{name}, line {node.lineno}: use terminal.py"
