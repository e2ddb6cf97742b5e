"""Metrics: what a server counts, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

TIMES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Count:
    """A number that only grows, by the value of one more label."""

    def __init__(self, help: str, label: str = "") -> None:
        self.kind, self.help, self.label, self.by_value = "counter", help, label, Counter[str]()

    def add(self, number: int = 1, value: str = "") -> None:
        self.by_value[value] += number

    def lines(self, name: str, labels: str) -> Iterator[str]:
        for value, number in sorted(self.by_value.items()) or [("", 0)]:
            more = f',{self.label}="{value}"' if value else ""
            yield f"{name}_total{{{labels}{more}}} {number}"


class Histogram:
    """How many durations were at most so long."""

    def __init__(self, help: str) -> None:
        self.kind, self.help, self.counts, self.total = "histogram", help, [0] * (len(TIMES) + 1), 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(TIMES, seconds)] += 1
        self.total += seconds

    def lines(self, name: str, labels: str) -> Iterator[str]:
        for i, bound in enumerate((*TIMES, "+Inf"), 1):
            yield f'{name}_bucket{{{labels},le="{bound}"}} {sum(self.counts[:i])}'
        yield f"{name}_sum{{{labels}}} {self.total:.6f}"
        yield f"{name}_count{{{labels}}} {sum(self.counts)}"


class Metrics:
    """What is counted of one run."""

    def __init__(self) -> None:
        self.read, self.written = Count("Tokens that were read."), Count("Tokens that were written.")
        self.ended = Count("Answers that ended, and why.", "finished_reason")
        self.queue_time = Histogram("Time before a request begins.")
        self.first_token, self.between_tokens = Histogram("Time to the first token."), Histogram("Time between tokens.")

    def lines(self, run: str, running: int, waiting: int) -> Iterator[tuple[str, list[str]]]:
        """The lines of each metric, after those that say what it is."""
        labels = 'model_name="' + run.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        for name, number in (("num_requests_running", running), ("num_requests_waiting", waiting)):
            head = [f"# HELP allyouneed_{name} Requests now.", f"# TYPE allyouneed_{name} gauge"]
            yield "\n".join(head), [f"allyouneed_{name}{{{labels}}} {number}"]
        metrics: dict[str, Count | Histogram] = {
            "allyouneed_prompt_tokens": self.read,
            "allyouneed_generation_tokens": self.written,
            "allyouneed_request_success": self.ended,
            "allyouneed_request_queue_time_seconds": self.queue_time,
            "allyouneed_time_to_first_token_seconds": self.first_token,
            "allyouneed_inter_token_latency_seconds": self.between_tokens,
        }
        for name, metric in metrics.items():
            whole = f"{name}_total" if metric.kind == "counter" else name
            yield f"# HELP {whole} {metric.help}\n# TYPE {whole} {metric.kind}", list(metric.lines(name, labels))
