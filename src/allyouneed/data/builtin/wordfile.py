"""The files of words/: what the built-in data sets are made of, for people to read and to extend.

A section begins with its name in square brackets. A line that begins with a space belongs to the line before it, and a
line that begins with # is a comment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import resources
from itertools import chain, islice, product
from math import prod
from typing import Any

from allyouneed.data.builtin.grammar import Template, expand
from allyouneed.data.builtin.heldout import Columns, rank, spread

Kinds = Iterable[tuple[str, Iterable[Columns]]]  # sentences of each kind; a kind may come several times


class WordFile:
    """The sections of a file, and the sentences that its templates make."""

    def __init__(self, name: str) -> None:
        self.sections: dict[str, list[str]] = {}
        text = (resources.files("allyouneed") / "data" / "builtin" / "words" / f"{name}.txt").read_text("utf-8")
        section: list[str] = []
        for line in text.splitlines():
            if line.startswith("[") and line.endswith("]"):
                if line[1:-1] in self.sections:
                    raise ValueError(f"words/{name}.txt has two sections {line}")
                section = self.sections[line[1:-1]] = []
            elif line.startswith(" "):
                section[-1] += f" {line.strip()}"
            elif line and not line.startswith("#"):
                section.append(line)

    @cache  # noqa: B019
    def items(self, section: str) -> list[str]:
        """What stands between commas."""
        return [item for line in self.sections[section] for item in line.split(", ")]

    @cache  # noqa: B019
    def table(self, section: str) -> dict[str, list[str]]:
        """Lines such as "cow: hay, grass"."""
        rows = (line.split(": ", 1) for line in self.sections[section])
        return {name: items.split(", ") for name, items in rows}

    def rows(self, section: str) -> list[tuple[str, ...]]:
        """Lines such as "two = due"."""
        return [tuple(line.split(" = ")) for line in self.sections[section]]

    @cache  # noqa: B019
    def templates(self, section: str) -> list[Template]:
        return [Template(choice) for line in self.sections[section] for choice in expand(line)]

    def write(
        self, section: str, share: int = 1, when: Callable[..., bool] | None = None, **options: Any
    ) -> Iterator[Columns]:
        """Each template of the section with every combination of the options for its slots. An option is a list, or one
        value. `share` takes about one in so many combinations, and `when` says which are possible."""
        lists = {slot: values if isinstance(values, list) else [values] for slot, values in options.items()}
        picked = None
        if share > 1 or when:
            picked = list(islice(spread(share), prod(map(len, lists.values()))))
        if picked and when:
            picked = [taken and when(*values) for taken, values in zip(picked, product(*lists.values()))]
        for template in self.templates(section):
            yield from template.write(lists, picked)

    def collect(self, kinds: Kinds) -> list[Columns]:
        """The examples of all kinds, of each kind at most as many as the section "limits" says."""
        found: dict[str, set[Columns]] = defaultdict(set)
        for kind, examples in kinds:
            found[kind].update(examples)
        limits = {kind: int(limit) for kind, (limit,) in self.table("limits").items()}
        if unknown := limits.keys() - found.keys():
            raise ValueError(f"the limits name kinds that no rule writes: {', '.join(sorted(unknown))}")
        chosen = (
            sorted(examples, key=lambda example: rank(example, "choose"))[: limits.get(kind)]
            for kind, examples in found.items()
        )
        return list(dict.fromkeys(chain.from_iterable(chosen)))


@cache
def word_file(name: str) -> WordFile:
    return WordFile(name)
