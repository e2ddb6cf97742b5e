"""Times the sides of a case in turn, so that any load on the machine affects them alike, and reports ratios."""

from __future__ import annotations

import gc
import importlib.util
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from allyouneed import __version__
from allyouneed.errors import UserError
from allyouneed.storage.wholefile import write_json, write_text

OURS = "allyouneed"
ROOT = Path(__file__).parent.parent
RESAMPLES = 10_000
LOAD = os.getloadavg()[0]  # before the first case: afterwards it includes our own


@dataclass(frozen=True)
class Peer:
    """A library that we compare with. If its module is not installed, it is named and left out."""

    name: str
    module: str  # import name

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None


@dataclass(frozen=True)
class Prepared:
    """Sides that were checked to do the same work. A call has ended when its results are on the host."""

    sides: Mapping[str, Callable[[], object]]  # by name, ours first
    amount: float  # of the case's unit, in one call
    checked: str  # what was found equal
    # If the sides need not give equal results: their scores by side and name, one value per call.
    scores: Callable[[], dict[str, dict[str, list[float]]]] | None = None


@dataclass(frozen=True)
class Case:
    """Something worth timing. `prepare` gets the names of the installed peers and a folder for its files, and raises a
    UserError if the sides do not do the same work. A case whose calls take minutes sets its own number of `rounds`,
    without a warm-up; `options` are arguments of `prepare`, and `quick` those of --quick."""

    name: str
    work: str
    unit: str
    peers: Sequence[Peer]
    prepare: Callable[..., Prepared]
    rounds: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    quick: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpu(self) -> bool:
        """Whether it needs a CUDA GPU."""
        return self.options.get("device") == "cuda"


def measure(
    sides: Mapping[str, Callable[[], object]],
    repeats: int,
    warm_up: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each call. A round calls every side once, the next round in reverse order: a b, b a, a b, …"""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for turn in range(warm_up + repeats):
        for name in order:
            gc.collect()  # no side pays for the garbage of another
            start = clock()
            sides[name]()
            spent = clock() - start
            if turn >= warm_up:
                seconds[name].append(spent)
        order.reverse()
    return seconds


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median, quartiles, minimum and maximum."""
    low, q1, median, q3, high = np.percentile(seconds, [0, 25, 50, 75, 100]).tolist()
    return {"median": median, "q1": q1, "q3": q3, "min": low, "max": high}


def ratio(peer: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """median(peer) / median(ours): how many times as fast as the peer we are, with a 95 % interval.

    The bootstrap draws whole rounds, because the load on the machine affects all calls of a round alike.
    """
    a, b = np.asarray(peer), np.asarray(ours)
    rounds = np.random.default_rng(0).integers(0, len(a), (RESAMPLES, len(a)))
    drawn = np.median(a[rounds], axis=1) / np.median(b[rounds], axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5]).tolist()
    return {"ratio": float(np.median(a) / np.median(b)), "low": low, "high": high}


def run(
    case: Case, *, repeats: int, warm_up: int, threads: int, command: str, cpu_time: bool = False
) -> dict[str, Any]:
    """Prepare, check and time a case; returns the numbers and all that is needed to read them."""
    torch.set_num_threads(threads)
    here = {peer.name for peer in case.peers if peer.installed}
    with tempfile.TemporaryDirectory() as scratch, patch.dict(os.environ, ALLYOUNEED_CACHE=scratch):
        prepared = case.prepare(here, Path(scratch), **case.options)
        if case.rounds:
            repeats, warm_up = case.rounds, 0
        seconds = measure(prepared.sides, repeats, warm_up, time.process_time if cpu_time else time.perf_counter)
        scores = prepared.scores() if prepared.scores else {}
    assert torch.get_num_threads() == threads, "a side has changed the number of threads"
    return {
        "case": case.name,
        "work": case.work,
        "checked": prepared.checked,
        "unit": case.unit,
        "amount": prepared.amount,
        "sides": {
            name: {**spread(values), "rate": prepared.amount / spread(values)["median"], "seconds": values}
            for name, values in seconds.items()
        },
        "scores": scores,
        "options": dict(case.options),
        "ratios": {name: ratio(values, seconds[OURS]) for name, values in seconds.items() if name != OURS},
        "left_out": [f"{p.module} is not installed: left out" for p in case.peers if not p.installed],
        "repeats": repeats,
        "warm_up": warm_up,
        "machine": {**machine(), "threads": threads, "load": round(LOAD, 2)},
        "versions": versions([peer.module for peer in case.peers if peer.installed]),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
    }


def machine() -> dict[str, Any]:
    """The machine that the cases ran on."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu() -> str:
    """From /proc/cpuinfo; some kernels leave the name to lscpu, and other systems have neither."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    lines += _output("lscpu").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def versions(modules: Sequence[str]) -> dict[str, str]:
    """The versions of Python, of our library and of the peers."""
    ours = {OURS: __version__, "python": platform.python_version()}
    return {**ours, **{m: version(m) for m in ("numpy", "torch", *modules)}}


def commit() -> dict[str, Any]:
    """The git commit, and whether the source has changed since; new results do not count as a change."""
    changed = _output("git", "status", "--porcelain", "--", ".", ":!bench/results")
    return {"id": _output("git", "rev-parse", "HEAD").strip() or None, "dirty": bool(changed.strip())}


def _output(*command: str) -> str:
    """What a command prints; empty if it cannot be run."""
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def table(result: Mapping[str, Any]) -> str:
    """A result as Markdown."""
    unit, amount = result["unit"], result["amount"]
    lines = [f"# {result['case']}", "", result["work"], ""]
    lines += [f"One call: {amount:,.0f} {unit}. Before timing: {result['checked']}.", ""]
    lines += [f"| side | median | quartiles | min to max | {unit}/s |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, s in result["sides"].items():
        cells = [_ms(s["median"]), f"{_ms(s['q1'])} to {_ms(s['q3'])}", f"{_ms(s['min'])} to {_ms(s['max'])}"]
        lines.append(f"| {name} | {' | '.join(cells)} | {_rate(s['rate'])} |")
    lines.append("")
    for name, r in result["ratios"].items():
        interval = f"95 % interval {r['low']:.2f} to {r['high']:.2f}"
        lines += [f"**{OURS} is {r['ratio']:.2f} times as fast as {name}** ({interval}).", ""]
    names = list(next(iter(result["scores"].values()), {}))
    if names:
        lines += [f"| side | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
        for side, found in result["scores"].items():
            lines.append(f"| {side} | {' | '.join(_values(found[name]) for name in names)} |")
        lines.append("")
    for line in result["left_out"]:
        lines += [line, ""]
    m, c = result["machine"], result["commit"]
    facts = {
        "machine": f"{m['cpu']}, {m['cores']} cores, {m['threads']} threads used, {m['system']}, "
        f"GPU: {m['gpu'] or 'none'}; load before the run: {m['load']}",
        "versions": ", ".join(f"{name} {number}" for name, number in result["versions"].items()),
        "commit": f"{c['id'] or 'unknown'}{' with changes' if c['dirty'] else ''}",
        "date": result["date"],
        "command": f"`{result['command']}`",
        **({"options": ", ".join(f"{k}={v}" for k, v in result["options"].items())} if result["options"] else {}),
        "repeats": f"{result['repeats']} rounds, each side once per round, after {result['warm_up']} to warm up",
    }
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    return "\n".join(lines) + "\n"


def _values(values: Sequence[float]) -> str:
    """The mean of the values, and each value."""
    return f"{np.mean(values):.3f} ({', '.join(f'{value:.3f}' for value in values)})"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms"


def write(result: Mapping[str, Any], folder: Path) -> None:
    """Write <case>.json and <case>.md."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{result['case']}.json", result)
    write_text(folder / f"{result['case']}.md", table(result))


def same(what: str, equal: bool) -> str:
    """For the check before timing: returns the statement `what` if it is true, otherwise raises a UserError."""
    if not equal:
        raise UserError(f"the sides do not do the same work; this does not hold: {what}")
    return what
