"""What a family of models is: the options of its config.json, the table of its tensors, and its heads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from allyouneed.exchange.maps import Row
from allyouneed.exchange.options import MISSING, Options

Settings = dict[str, Any]  # of our [model]
ACTIVATIONS = {
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu", "silu": "silu",
    "swish": "silu",
}  # fmt: skip


class Setting(NamedTuple):
    """An option of config.json and our setting, for both directions. An option without a default is needed, and a whole
    number. `words` are our words for theirs; theirs is larger by `more`."""

    theirs: str
    ours: str
    default: Any = MISSING  # if config.json does not have it
    words: Mapping[Any, Any] | None = None
    more: int = 0

    def read(self, given: Options) -> Any:
        if self.words is not None:
            return given.choose(self.theirs, self.words, self.default)
        found = given.take(self.theirs, self.default, int if self.default is MISSING else type(self.default))
        return found - self.more if self.more else found

    def write(self, value: Any) -> Any:
        """Their value; None if they have no word for ours."""
        if self.words is not None:
            return next((theirs for theirs, ours in self.words.items() if ours == value), None)
        return value + self.more if self.more else value


@dataclass(frozen=True)
class Head:
    """What one architecture of a family is here: a task with the options that it needs, and the rows of its tensors.
    `bare`: there is no head, and the names of the tensors have no prefix."""

    task: str
    rows: Sequence[Row] = ()
    options: Settings = field(default_factory=dict)
    bare: bool = False


@dataclass(frozen=True)
class Family:
    """One kind of model. `settings` and `fixed` are the options of its config.json, the second with the only values
    that are supported; `always` are settings of ours that follow. `more` gives what needs a closer look, from
    config.json and the names of the tensors, and `write` is its inverse. `ignored` are tensors that hold nothing
    learned, or nothing that we use, by the ends of their names; `copies` are tensors that must be equal to one of ours;
    `prefix` is left out in files of a bare model; `older` are other endings of names that files have, with those of
    today."""

    kind: str  # our model
    heads: dict[str, Head]  # by the name of the architecture
    settings: Sequence[Setting]
    rows: Callable[[Settings], list[Row]]
    fixed: Settings = field(default_factory=dict)
    always: Settings = field(default_factory=dict)
    more: Callable[[Options, Collection[str], Settings], Settings] = lambda given, names, model: {}
    write: Callable[[Settings], Settings] = lambda model: {}
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    copies: dict[str, str] = field(default_factory=dict)
    neutral: frozenset[str] = frozenset()
    older: dict[str, str] = field(default_factory=dict)

    def read(self, given: Options, names: Collection[str]) -> Settings:
        """Our settings from a config.json and the names of the tensors."""
        model = {setting.ours: setting.read(given) for setting in self.settings} | self.always
        given.must(**self.fixed)
        return model | self.more(given, names, model)

    def config(self, model: Settings) -> Settings:
        """config.json from our settings, which `read` must give back."""
        written = {setting.theirs: setting.write(model[setting.ours]) for setting in self.settings}
        return {name: value for name, value in written.items() if value is not None} | self.fixed | self.write(model)

    def table(self, head: Head, model: Mapping[str, Any]) -> list[Row]:
        """All rows of a model with these settings, each layer by its number; those of the head win."""
        found: dict[str, Row] = {}
        for row in [*self.rows(dict(model)), *head.rows]:
            layers = model.get("decoder_layers") if "decoder" in row.ours else 0
            for i in range(layers or model["layers"] if "{i}" in row.ours else 1):
                found[row.layer(i).ours] = row.layer(i)
        return list(found.values())
