"""The display of a training: what it says, when, what it costs, and that it leaves the terminal as it was."""

from __future__ import annotations

import io
import math
import re
import threading
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from allyouneed.format import human_bytes, human_count, human_time
from allyouneed.training import progress as progress_module
from allyouneed.training.progress import Pace, Progress

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


def terminal(width: int = 100) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=True, width=width, color_system=None), file


def pipe() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=80), file


def test_plain_lines_say_step_loss_rate_and_speed() -> None:
    console, file = pipe()
    with Progress(2000, console=console) as progress:
        progress.update(250, 2.34121, 41234.0, 9.8e-4)
    assert file.getvalue() == "step 250/2000  loss 2.3412  lr 9.8e-04  41.2k tok/s  --:-- left\n"


def test_plain_lines_are_few_and_the_last_step_is_among_them() -> None:
    console, file = pipe()
    with Progress(3000, console=console) as progress:
        for step in range(1, 3001):
            progress.update(step, 2.0, 1000.0, 1e-3)
        lines = file.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1/3000", "3000/3000"]
    assert lines[-1].endswith("took 00:00")


def test_an_early_end_shows_the_last_update_once() -> None:
    console, file = pipe()
    progress = Progress(100, console=console)
    for step in (1, 2, 3):
        progress.update(step, 2.0, 1000.0, 1e-3)
    progress.close()
    progress.close()
    assert [line.split()[1] for line in file.getvalue().splitlines()] == ["1/100", "3/100"]


def test_notes_are_printed_word_for_word() -> None:
    text = "[best] :smile: validation 2.1 " + "x" * 200
    for console, file in (pipe(), terminal()):
        with Progress(10, console=console) as progress:
            progress.update(1, 2.0, 1000.0, 1e-3)
            progress.note(text)
        assert text + "\n" in file.getvalue()


def test_bar_shows_everything_and_gives_the_cursor_back() -> None:
    console, file = terminal()
    with Progress(2000, start_step=500, console=console) as progress:
        assert "500/2000" in file.getvalue()
        progress.update(1000, 2.3412, 41234.0, 1e-3)
    for text in ("50%", "1000/2000", "loss 2.3412", "41.2k tok/s", "left"):
        assert text in file.getvalue()
    assert file.getvalue().rindex(SHOW_CURSOR) > file.getvalue().rindex(HIDE_CURSOR)


def test_bar_fits_one_row_of_a_terminal() -> None:
    for width in (40, 80):
        console, file = terminal(width)
        with Progress(2_000_000, console=console) as progress:
            progress.update(1_234_567, 12.3412, 1_234_567.0, 1e-3)
        for row in re.split(r"[\r\n]|\x1b\[[0-9;?]*[a-zA-Z]", file.getvalue()):
            assert len(row) <= width


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_exception_leaves_no_thread_and_a_whole_terminal(error: type[BaseException]) -> None:
    before = threading.active_count()
    console, file = terminal()

    def train() -> None:
        with Progress(10, console=console) as progress:
            progress.update(1, 2.0, 1000.0, 1e-3)
            assert threading.active_count() == before
            raise error

    with pytest.raises(error):
        train()
    assert threading.active_count() == before
    assert file.getvalue().rindex(SHOW_CURSOR) > file.getvalue().rindex(HIDE_CURSOR)


def test_quiet_prints_nothing() -> None:
    for console, file in (pipe(), terminal()):
        with Progress(2, console=console, quiet=True) as progress:
            progress.update(1, 2.0, 1000.0, 1e-3)
            progress.note("hello")
            progress.update(2, 2.0, 1000.0, 1e-3)
        assert file.getvalue() == ""


def test_a_loss_that_is_not_a_number_is_shown() -> None:
    console, file = pipe()
    with Progress(10, console=console) as progress:
        progress.update(1, math.nan, 1000.0, 1e-3)
    assert file.getvalue().startswith("step 1/10  loss nan")


def test_two_thousand_updates_cost_nothing_to_speak_of() -> None:
    for console, _ in (pipe(), terminal()):
        with Progress(10_000, console=console) as progress:
            began = time.process_time()
            for step in range(2000):
                progress.update(step, 2.0, 1000.0, 1e-3)
            assert time.process_time() - began < 0.5


def test_time_left_counts_this_sessions_steps_only(monkeypatch) -> None:
    now = 50.0
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now))
    console, file = pipe()
    progress = Progress(1000, start_step=900, console=console)
    progress.update(901, 2.0, 1000.0, 1e-3)  # resumed at 900; the first step took long to compile
    assert file.getvalue().endswith("--:-- left\n")
    now = 55.0
    progress.update(911, 2.0, 1000.0, 1e-3)
    assert file.getvalue().endswith(f"{human_time(89 * 0.5)} left\n")


def test_the_pace_is_smooth_and_follows_a_change_of_speed() -> None:
    pace = Pace(60.0)
    for _ in range(300):
        pace.add(10, 1.0)
    assert 1000 * pace.step == pytest.approx(100.0)
    pace.add(10, 5.0)  # five slow seconds hardly count
    assert 1000 * pace.step < 115.0
    for _ in range(300):
        pace.add(5, 1.0)
    assert 1000 * pace.step == pytest.approx(200.0, rel=0.05)


def test_numbers_as_people_read_them() -> None:
    counts = {0: "0", 7.4: "7", 999: "999", 999.7: "1.0k", 41234: "41.2k", 999_960: "1.0M", 124_439_808: "124.4M"}
    assert {value: human_count(value) for value in counts} == counts
    assert (human_count(2e15), human_count(-1500), human_count(math.nan)) == ("2000.0T", "-1.5k", "nan")
    times = {
        0: "00:00",
        52: "00:52",
        59.6: "01:00",
        3599.4: "59:59",
        3661: "1:01:01",
        100_000: "1d 03:46:40",
        -3: "00:00",
    }
    assert {value: human_time(value) for value in times} == times
    assert human_time(math.inf) == human_time(math.nan) == "--:--"
    sizes = {0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 1024**2 - 1: "1.0 MiB", 5 * 1024**3: "5.0 GiB"}
    assert {value: human_bytes(value) for value in sizes} == sizes
