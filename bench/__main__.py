"""python -m bench [CASE ...]: time our code against peers, print the tables, write bench/results/."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from allyouneed.errors import UserError, nearest
from bench.cases import all_cases
from bench.harness import Case, run, table, write

RESULTS = Path(__file__).parent / "results"


def main(arguments: list[str]) -> int:
    """0; 1 if a case that was named could not be run; 2 if there is no such case."""
    cases = all_cases()
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Times allyouneed against its peers on the same work and writes bench/results/.",
        epilog=f"cases: {', '.join(case.name for case in cases)}",
    )
    parser.add_argument("case", nargs="*", help="a case, or the beginning of the names of several (default: all)")
    parser.add_argument("--repeats", type=int, default=30, help="timed calls per side (%(default)s)")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="torch threads (%(default)s)")
    parser.add_argument("--cpu-time", action="store_true", help="count the time on the CPU, as if nobody else had work")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an option of a case")
    parser.add_argument("--quick", action="store_true", help="3 repeats, to see that it works; writes nothing")
    options = parser.parse_args(arguments)
    try:
        chosen = [configure(case, options.set, options.quick) for case in choose(cases, options.case)]
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    command = " ".join(["python -m bench", *arguments])
    repeats, warm_up = (3, 1) if options.quick else (max(1, options.repeats), 3)
    failed = 0
    for case in chosen:
        if case.gpu and not torch.cuda.is_available():
            print(f"{case.name}: left out, it needs a CUDA GPU and torch sees none", file=sys.stderr)
            failed = max(failed, int(bool(options.case)))  # only what was asked for by name is missing
            continue
        try:
            result = run(
                case, repeats=repeats, warm_up=warm_up, threads=options.threads, command=command,
                cpu_time=options.cpu_time,
            )  # fmt: skip
        except UserError as error:
            print(f"{case.name}: {error}", file=sys.stderr)
            failed = 1
            continue
        print(table(result), flush=True)
        if not options.quick:
            write(result, RESULTS)
    return failed


def configure(case: Case, settings: list[str], quick: bool) -> Case:
    """The case with its options as asked. Their values are added to its name, so that each has its own results."""
    name, found = case.name, {**case.options, **(case.quick if quick else {})}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in case.options:
            raise UserError(f"{case.name} has no option '{setting}'{nearest(key, case.options)}")
        found[key] = value
        name += f"-{Path(value).name}"  # of a path, its last part
    return replace(case, name=name, options=found)


def choose(cases: list[Case], words: list[str]) -> list[Case]:
    """The cases whose name begins with one of the words; all cases if there are no words."""
    for word in words:
        if not any(case.name.startswith(word) for case in cases):
            raise UserError(f"there is no case '{word}'{nearest(word, [case.name for case in cases])}")
    return [case for case in cases if not words or case.name.startswith(tuple(words))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
