"""`ayn use`: one text, many lines, a pipe, a terminal; order kept, memory bounded."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import resource
import select
import shlex
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
import torch

from allyouneed.cli import stdin
from allyouneed.errors import UserError
from allyouneed.run import load
from allyouneed.training import memory
from commands import ayn, mistake

AYN = [sys.executable, "-m", "allyouneed"]


def fed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: bytes) -> None:
    """Let this be standard input."""
    path = tmp_path / "stdin"
    path.write_bytes(data)
    monkeypatch.setattr(sys, "stdin", path.open())


def test_on_a_cpu_a_loaded_model_is_laid_out_for_decoding(translator):
    model = load(translator, "cpu").model
    assert any(not weight.is_contiguous() for weight in model.state_dict().values())


def test_use_continues_and_translates(lm, translator):
    text = load(lm).predict("one two")
    assert ayn("use", lm, "one two").out == f"one two{text}\n"
    said = ayn("use", translator, "one two", "six").out
    assert said.splitlines() == load(translator).predict(["one two", "six"])


def test_a_run_that_has_no_mask_says_so(lm, translator):
    for run in (lm, translator):
        assert "this run has no [MASK]: a run of the task pretrain" in mistake("use", run, "one [MASK]")


def test_use_takes_settings_of_the_search(translator):
    beams = ["--set", "method=beam", "--set", "decode.beam=3", "--set", "n_best=3"]
    lines = ayn("use", translator, "one two", *beams).out.splitlines()
    scores = [float(line[:8]) for line in lines]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert lines[0][10:] == load(translator).predict("one two", method="beam", beam=3)
    longest = ayn("use", translator, "one two", "--set", "max_new=1").out
    assert longest.strip() == load(translator).predict("one two", max_new=1).strip()


def test_all_answers_are_given_to_a_program_and_a_line_has_one(translator, lm, monkeypatch, tmp_path):
    beams = ["--set", "method=beam", "--set", "beam=3", "--set", "n_best=3"]
    given = json.loads(ayn("use", translator, "one two", "--json", *beams).out)
    found = load(translator).answers(["one two"], method="beam", beam=3, n_best=3)[0]
    assert [given["text"], *(other["text"] for other in given["others"])] == [
        found.text, *(other.text for other in found.others)
    ]  # fmt: skip
    samples = ["--set", "method=sample", "--set", "n_best=2", "--set", "seed=3"]
    lines = ayn("use", lm, "one", *samples).out.splitlines()
    assert [line[10:] for line in lines] == [
        "one" + load(lm).predict("one", method="sample", seed=3 + i) for i in (0, 1)
    ]
    fed(monkeypatch, tmp_path, b"one two\n")
    assert "--json gives all of decode.n_best" in ayn("use", translator, *beams).err
    fed(monkeypatch, tmp_path, b"one two\n")
    assert json.loads(ayn("use", translator, "--json", *beams).out)["others"] == given["others"]


def test_the_alignment_of_every_translation_as_numbers(translator, monkeypatch, tmp_path):
    done = ayn("use", translator, "one two", "six", "--alignment", tmp_path / "a.jsonl")
    assert done == (0, f"the alignments are in {tmp_path / 'a.jsonl'}\n", "")
    fed(monkeypatch, tmp_path, b"one two\n\nsix\n")
    assert ayn("use", translator, "--alignment", tmp_path / "b.jsonl").code == 0
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    for line, text in zip((tmp_path / "a.jsonl").read_text().splitlines(), ["one two", "six"], strict=True):
        found, right = json.loads(line), load(translator).align(text)
        assert (found["input"], found["source"], found["target"]) == (text, right.source, right.target)
        assert torch.tensor(found["weights"]).sub(right.weights).abs().max() < 1e-6


def test_table_shows_the_five_likeliest_words_at_each_place(lm):
    said = ayn("use", lm, "one", "two", "--table").out
    first, second = said.split("\n\n")
    assert [row.split()[:2] for row in first.splitlines()[1:]] == [["0", "o"], ["1", "n"], ["2", "e"]]
    assert len(second.splitlines()) == 4
    run = load(lm)
    ids = run.task.tokenizer.encode("one")
    with torch.inference_mode():
        top = run.model(torch.tensor([ids]))[0, -1].softmax(-1).topk(5)
    cells = re.findall(r"([\d.]+)% (\S+)", first.splitlines()[-1])
    words = [run.task.tokenizer.token(i).replace(" ", "·") for i in top.indices.tolist()]
    assert [word for _, word in cells] == words
    assert [float(p) for p, _ in cells] == pytest.approx([100 * p for p in top.values.tolist()], abs=0.051)


def test_the_heads_of_one_attention_are_a_figure(translator, lm, tmp_path):
    done = ayn("use", translator, "one two", "--heads", tmp_path / "a.svg")
    places = "body.encoder.blocks.0.attention, body.decoder.blocks.0.attention, body.decoder.blocks.0.cross"
    assert done == (
        0,
        f"the figure of body.decoder.blocks.0.cross is in {tmp_path / 'a.svg'}; there are {places}\n",
        "",
    )
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert all(text in drawn for text in ("head 1", "head 2", "body.decoder.blocks.0.cross", "query", "one"))
    done = ayn("use", lm, "one two", "--heads", tmp_path / "b.png", "--place", "body.stack.blocks.0.attention")
    assert done.code == 0
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    said = mistake("use", translator, "one two", "--heads", tmp_path / "c.png", "--place", "body.decoder.blocks.0.cros")
    assert said.startswith("--place body.decoder.blocks.0.cros is not an attention of this model; did you mean ")
    assert said.endswith("'body.decoder.blocks.0.cross'?")
    assert (
        mistake("use", translator, "one", "two", "--heads", tmp_path / "c.png")
        == "--heads draws one text: give one TEXT"
    )
    said = mistake("use", translator, "one", "--place", "body.decoder.blocks.0.cross")
    assert said == "--place body.decoder.blocks.0.cross chooses what --heads FILE draws: give both"


def test_alignment_and_heads_are_two_images(translator, tmp_path):
    done = ayn("use", translator, "one two", "--alignment", tmp_path / "a.png", "--heads", tmp_path / "b.png")
    assert done.code == 0
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("a.png", "b.png"))


def test_alignment_is_a_figure(translator, tmp_path):
    done = ayn("use", translator, "one two", "--alignment", tmp_path / "a.png")
    assert done == (0, f"{load(translator).predict('one two')}\nthe figure is in {tmp_path / 'a.png'}\n", "")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_alignment_says_which_attention_it_is(translator, tmp_path):
    ayn("use", translator, "one two", "--alignment", tmp_path / "a.svg")
    assert ">decoder layer 1, mean of 2 heads</text>" in (tmp_path / "a.svg").read_text()


def test_lines_are_answered_in_order_with_blank_ones_blank(lm, translator, monkeypatch, tmp_path):
    lines = [" ".join(["one", "two", "six"][: 1 + i % 3]) if i % 5 else "" for i in range(90)]
    fed(monkeypatch, tmp_path, "\r\n".join(lines).encode())
    said = ayn("use", lm, "--set", "batch=2").out.split("\n")
    assert said.pop() == ""
    assert len(said) == 90
    assert all(answer.startswith(line) and bool(line) == bool(answer) for line, answer in zip(lines, said))
    fed(monkeypatch, tmp_path, "\n".join(lines).encode())
    run = load(translator)
    answers = {line: run.predict(line, max_new=5) if line else "" for line in set(lines)}
    assert ayn("use", translator, "--set", "batch=2", "--set", "max_new=5").out.split("\n")[:-1] == [
        answers[line] for line in lines
    ]


def test_a_newline_inside_an_answer_stays_on_its_line(lm, monkeypatch, tmp_path):
    fed(monkeypatch, tmp_path, b"one\ntwo\n")
    sampled = ["--set", "stop=", "--set", "max_new=400", "--set", "temperature=9", "--set", "method=sample"]
    monkeypatch.setattr("allyouneed.models.gpt.GPT.limit", None)
    monkeypatch.setattr("allyouneed.nn.positions.Learned.forward", lambda self, at, room: self.table(at % 16))
    done = ayn("use", lm, *sampled)
    assert len(done.out.splitlines()) == 2
    assert "\\n" in done.out


def test_the_strings_that_end_an_answer_can_be_changed_and_turned_off(lm):
    run = load(lm)
    assert run.recipe.decode.stop == ("\n",)
    assert run.decode(stop="[]").stop == run.decode(stop=[]).stop == run.decode(stop="").stop == ()
    assert run.decode(stop='["\\n\\n"]').stop == ("\n\n",)  # as the shell passes '["\n\n"]' on
    sampled = ["--set", "method=sample", "--set", "max_new=12"]
    whole = run.predict("one", method="sample", max_new=12, stop=[])
    assert ayn("use", lm, "one", *sampled, "--set", "stop=[]").out == f"one{whole}\n"
    first = whole[3]
    cut = ayn("use", lm, "one", *sampled, "--set", f'stop=["{first}"]').out
    assert cut == f"one{whole[: whole.index(first)]}\n"
    assert len(cut) < len(f"one{whole}\n")


@pytest.mark.parametrize("value", ["[1,", "[[1]]", "[true]", "[]x", '["a"]\ny = 2', "[a]"])
def test_a_list_that_is_none_is_told(lm, value):
    said = mistake("use", lm, "one", "--set", f"stop={value}")
    assert said.startswith("decode.stop = ")
    assert "is not a list" in said


def test_a_bad_line_is_named_and_the_others_go_on(lm, monkeypatch, tmp_path):
    long = b"x" * (stdin.LONGEST + stdin.PIECE + 5)
    bad = [b"ab\xff", "漢字漢字".encode(), b"one two three four five six", long]
    fed(monkeypatch, tmp_path, b"\n".join([b"one", *bad, b"two"]))
    done = ayn("use", lm)
    assert done.code == 2
    answers = done.out.split("\n")
    assert [answer[:3] for answer in answers] == ["one", "", "", "", "", "two", ""]
    expected = [
        "line 2: .*byte 2 is 0xff",
        "line 3: .*is not in this model's vocabulary: '漢', '字'",
        "line 4: .*reads at most 16",
        "line 5: .*65,536",
    ]
    complaints = sorted(done.err.splitlines())
    assert len(complaints) == 4
    assert all(re.search(pattern, line) for pattern, line in zip(expected, complaints))


@pytest.fixture(scope="module")
def vectors(story: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Word vectors of the story."""
    out = tmp_path_factory.mktemp("runs") / "vectors"
    tiny = ["train.threads=1", "train.device=cpu", "train.epochs=0", "train.steps=4", "train.batch_tokens=1000"]
    done = ayn(
        "train", "wordvectors/skipgram", "--data", story, "--out", out, "model.width=8", "text.min_count=1", *tiny
    )
    assert done.code == 0, done.err
    return out


def test_a_line_that_only_the_answer_shows_to_be_bad_loses_no_other(vectors, monkeypatch, tmp_path):
    """`one - one` is a sum of known words, but it has no direction."""
    given = b"one\nxyzzy\none - one\n\ntwo\n"
    fed(monkeypatch, tmp_path, given)
    done = ayn("use", vectors)
    assert done.code == 2
    answers = done.out.split("\n")
    assert [bool(answer) for answer in answers] == [True, False, False, False, True, False]
    assert [line.split(":")[1] for line in done.err.splitlines()] == [" line 2", " line 3"]
    fed(monkeypatch, tmp_path, given)
    done = ayn("use", vectors, "--json")
    assert done.code == 2
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [line["input"] for line in found] == ["one", "xyzzy", "one - one", "", "two"]
    assert ["error" in line for line in found] == [False, True, True, True, False]
    assert "its sum is zero" in found[2]["error"]
    assert found[4]["nearest"]


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_an_error_in_a_batch_is_that_of_its_line_alone(method, translator, monkeypatch):
    run = load(translator)
    start, six = run.model.start, run.predictor.read("six", run.decode()).ids

    def fails(inputs, room):
        if six in inputs:
            raise UserError("no six")
        return start(inputs, room)

    lines = ["one two", "six", "", "two", "one"] * 3
    right = {text: run.predict(text, method=method) for text in ("one two", "two", "one")}
    monkeypatch.setattr(run.model, "start", fails)
    found = list(run.answer_lines(iter(lines), first=7, method=method, batch=2))
    assert [(line.number, line.text) for line in found] == list(enumerate(lines, 7))
    assert [str(line.error) if line.error else None for line in found] == [None, "no six", None, None, None] * 3
    assert [line.answer.text if line.answer else None for line in found] == [right.get(text) for text in lines]


def test_an_error_of_the_source_of_lines_is_not_that_of_a_line(lm):
    def source():
        yield "one"
        raise UserError("the source ends here")

    with pytest.raises(UserError, match="the source ends here"):
        list(load(lm).answer_lines(source()))


def test_rows_that_do_not_fit_are_refused_before_they_are_made(lm, monkeypatch):
    run = load(lm)
    monkeypatch.setattr(memory, "available", lambda device: 1 << 20)
    with pytest.raises(UserError, match=r"decode.batch = 65,536 rows need .* and 1\.0 MiB are free: lower decode"):
        run.predict("one", batch=65536)
    with pytest.raises(UserError, match=r"decode.batch = 32 x decode.beam = 65,536 rows need"):
        run.predict("one", method="beam", beam=65536)
    assert run.predict("one", batch=1) == load(lm).predict("one", batch=1)


def test_out_of_memory_while_answering_is_a_sentence(lm, monkeypatch):
    run = load(lm)

    def full(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr(run.model, "step", full)
    with pytest.raises(UserError, match=r"out of memory: lower decode\.batch"):
        run.predict("one")


@pytest.mark.parametrize("text", ["one two three", "x" * 300, "no/such folder/" + "one " * 3000])
def test_a_text_in_place_of_the_run_is_told(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "the first argument is the run, and the texts follow it: ayn use RUN TEXT" in mistake("use", text)


WIDE = b" " * 4000  # blank: nothing is asked
GROUP = [WIDE] * (stdin.PIECE // len(WIDE) + 20)  # of more bytes than are taken together


@pytest.mark.parametrize("how", ["text", "json", "table"])
def test_a_bad_line_far_below_has_its_number(how, lm, monkeypatch, tmp_path):
    lines = ["漢字".encode(), *GROUP, b"one", "漢".encode(), b"ab\xff", b"six"]
    fed(monkeypatch, tmp_path, b"\n".join(lines))
    done = ayn("use", lm, *([] if how == "text" else [f"--{how}"]))
    assert done.code == 2
    bad = len(lines) - 2
    numbers = sorted(int(number) for number in re.findall(r"^ayn: line (\d+): ", done.err, re.M))
    assert numbers == [1, bad, bad + 1]
    if how == "json":
        said = [json.loads(line) for line in done.out.splitlines()]
        assert len(said) == len(lines)
        assert "is not in this model's vocabulary" in said[bad - 1]["error"]
        assert "not UTF-8" in said[bad]["error"]


def test_a_bad_line_counts_however_many_good_ones_follow(lm, monkeypatch, tmp_path):
    fed(monkeypatch, tmp_path, b"\n".join(["漢字".encode(), *GROUP, b"one"]))
    done = ayn("use", lm)
    assert done.code == 2
    assert done.out.splitlines()[-1].startswith("one")
    assert len(done.err.splitlines()) == 1


def test_an_empty_standard_input_is_no_mistake(lm, monkeypatch, tmp_path):
    fed(monkeypatch, tmp_path, b"")
    assert ayn("use", lm) == (0, "", "")


def test_a_table_for_each_line(lm, monkeypatch, tmp_path):
    fed(monkeypatch, tmp_path, "one\n\n漢字\ntwo\n".encode())
    done = ayn("use", lm, "--table")
    assert done.out.count("likely next") == 2
    assert done.err.startswith("ayn: line 3: ")


def test_lines_in_latin_1_are_read_and_that_is_said(lm, monkeypatch, tmp_path):
    fed(monkeypatch, tmp_path, b"one\n\xe8 one\n")
    done = ayn("use", lm)
    assert done.err.splitlines()[0] == "ayn: standard input is not UTF-8: it is read as Latin-1"
    assert done.out.splitlines()[1].startswith("è one") or "'è'" in done.err


def test_lines_are_taken_as_they_come_and_a_file_in_large_pieces(tmp_path):
    read, write = os.pipe()
    lines = stdin.read_lines(read, print)
    os.write(write, b"one\ntwo\nthr")
    assert next(lines) == ["one", "two"]
    os.write(write, b"ee\r\n\n")
    assert next(lines) == ["three", ""]
    os.write(write, b"six")
    os.close(write)
    assert list(lines) == [["six"]]
    os.close(read)
    path = tmp_path / "file"
    path.write_bytes(b"".join(b"line %d\n" % i for i in range(300_000)))
    with path.open() as file:
        groups = list(stdin.read_lines(file.fileno(), print))
    assert [line for group in groups for line in group] == [f"line {i}" for i in range(300_000)]
    assert 2 <= len(groups) <= 5


def test_lines_are_read_where_many_files_are_open(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1100), hard))
    (tmp_path / "file").write_bytes(b"one\ntwo\n")
    with (tmp_path / "file").open() as file:
        high = fcntl.fcntl(file, fcntl.F_DUPFD, 1050)  # more than select() can watch
        assert list(stdin.read_lines(high, print)) == [["one", "two"]]
        os.close(high)


def test_an_endless_line_takes_no_memory(tmp_path):
    path = tmp_path / "file"
    with path.open("w") as file:
        for _ in range(32):
            file.write("x" * (1 << 20))
        file.write("\none\n")
    tracemalloc.start()
    with path.open() as file:
        error, line = [line for group in stdin.read_lines(file.fileno(), print) for line in group]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    assert "65,536 bytes" in str(error)
    assert line == "one"


@pytest.mark.slow
def test_whoever_writes_slowly_is_answered_at_once_and_may_press_ctrl_c(lm):
    process = subprocess.Popen(
        [*AYN, "use", str(lm)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    for text in (b"one", b"six"):
        process.stdin.write(text + b"\n")
        process.stdin.flush()
        assert select.select([process.stdout], [], [], 60)[0]
        assert process.stdout.readline().startswith(text)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    assert process.stderr.read() == b""
    process.stdin.close()


@pytest.mark.slow
def test_a_reader_that_has_enough_makes_no_noise(lm, tmp_path):
    (tmp_path / "lines").write_text("one two\n" * 3000)
    program = f"{shlex.join([*AYN, 'use', str(lm)])} < {shlex.quote(str(tmp_path / 'lines'))} | head -1"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("one two")
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def conversation(run: Path, *typed: tuple[bytes, bytes]) -> tuple[int, str]:
    """At a terminal: each (what to wait for, what to type); the exit code and all that was shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*AYN, "use", str(run)])
    shown = b""
    deadline = time.monotonic() + 60
    try:
        for wait, keys in typed:
            begin = len(shown)
            while not re.search(wait, shown[begin:]):
                assert select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0], shown
                shown += os.read(terminal, 4096)
            time.sleep(0.3)  # nobody presses a key before the prompt waits for it
            os.write(terminal, keys)
        while select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
            try:
                piece = os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
            shown += piece
            if not piece:
                break
    finally:
        os.close(terminal)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, shown.decode()


@pytest.mark.slow
def test_at_a_terminal_there_is_a_prompt_that_answers_until_ctrl_d(lm):
    code, shown = conversation(
        lm,
        (b"> ", b"one\n"),
        (b"one[^\r\n]+\r\n.*> ", "漢字漢字\n".encode()),
        (b"vocabulary: .*\n.*> ", b"\n"),
        (b"> ", b"\x04"),
    )
    assert code == 0
    assert "type the beginning of a text" in shown
    assert "Traceback" not in shown


@pytest.mark.slow
def test_ctrl_c_at_the_prompt_ends_quietly(translator):
    code, shown = conversation(translator, (b"> ", b"one two\n"), (b"\n.*\n.*> ", b"\x03"))
    assert code == 130
    assert shown.endswith("\n")  # the shell's prompt begins on a line of its own
    assert "type a sentence" in shown
    assert "Traceback" not in shown
    assert "Aborted" not in shown


# Not the peak that wait4 tells: it begins with that of the process that started this one.
PEAK = """
import atexit, sys
from pathlib import Path
from allyouneed.cli import main
out = Path(sys.argv.pop(1))
status = lambda: next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
atexit.register(lambda: out.write_text(status()))
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc to measure memory")
def test_memory_does_not_grow_with_the_lines(lm, tmp_path):
    def peak(lines: int) -> int:
        path, out = tmp_path / f"{lines}", tmp_path / "answers"
        with path.open("w") as file:
            file.writelines(f"{'one two six'[: 3 + i % 9]}\n{' ' * 4000}\n" for i in range(lines // 2))
        with path.open() as file, out.open("w") as answers:
            arguments = [str(tmp_path / "peak"), "use", str(lm), "--set", "max_new=1"]
            subprocess.run([sys.executable, "-c", PEAK, *arguments], stdin=file, stdout=answers, check=True)
        said = out.read_text().splitlines()
        assert len(said) == lines
        assert all(answer.startswith("one two six"[: 3 + i % 9]) for i, answer in enumerate(said[::2]))
        assert not any(said[1::2])
        return int((tmp_path / "peak").read_text())  # KiB

    assert peak(20_000) - peak(2_000) < 20_000  # the longer file has 36 MB more
