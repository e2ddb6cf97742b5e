"""Metrics: what a server counts, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

TIMES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Count:
    """A number that only grows, by label."""

    def __init__(self) -> None:
        self.by_label = Counter[str]()

    def add(self, value: int = 1, label: str = "") -> None:
        self.by_label[label] += value


class Histogram:
    """How many durations were at most so long."""

    def __init__(self) -> None:
        self.counts, self.total = [0] * (len(TIMES) + 1), 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(TIMES, seconds)] += 1
        self.total += seconds


class Metrics:
    """What is counted of one run."""

    def __init__(self) -> None:
        self.queue_time, self.first_token, self.between_tokens = Histogram(), Histogram(), Histogram()
        self.whole_time = Histogram()
        self.read, self.written, self.ended, self.refused = Count(), Count(), Count(), Count()

    def lines(self, run: str, running: int, waiting: int) -> Iterator[tuple[str, str, str, str]]:
        """(metric, type, help, line)"""
        label = 'model_name="' + run.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        for name, value, help in (
            ("num_requests_running", running, "Requests that are being answered."),
            ("num_requests_waiting", waiting, "Requests that wait."),
        ):
            yield name, "gauge", help, f"{name}{{{label}}} {value}"
        for name, count, help, by in (
            ("prompt_tokens_total", self.read, "Tokens that were read.", ""),
            ("generation_tokens_total", self.written, "Tokens that were written.", ""),
            ("request_success_total", self.ended, "Requests that were answered.", "finished_reason"),
            ("request_errors_total", self.refused, "Requests that were refused or failed.", "status"),
        ):
            for key, number in sorted(count.by_label.items()) or [("", 0)]:
                more = f',{by}="{key}"' if by and key else ""
                yield name, "counter", help, f"{name}{{{label}{more}}} {number}"
        for name, times, help in (
            ("request_queue_time_seconds", self.queue_time, "Time before a request begins."),
            ("time_to_first_token_seconds", self.first_token, "Time to the first token."),
            ("inter_token_latency_seconds", self.between_tokens, "Time between two tokens."),
            ("e2e_request_latency_seconds", self.whole_time, "Time to the end of the answer."),
        ):
            passed = 0
            for bound, number in zip((*map(str, TIMES), "+Inf"), times.counts):
                passed += number
                yield name, "histogram", help, f'{name}_bucket{{{label},le="{bound}"}} {passed}'
            yield name, "histogram", help, f"{name}_sum{{{label}}} {times.total:.6f}"
            yield name, "histogram", help, f"{name}_count{{{label}}} {passed}"


def exposed(found: list[tuple[str, str, str, str]]) -> str:
    """The lines of all runs, by metric."""
    by_name: dict[str, list[str]] = {}
    for name, kind, help, line in found:
        by_name.setdefault(name, [f"# HELP allyouneed_{name} {help}", f"# TYPE allyouneed_{name} {kind}"])
        by_name[name].append(f"allyouneed_{line}")
    return "\n".join(line for lines in by_name.values() for line in lines) + "\n"
