"""Processor: what a run knows besides its settings and its weights. It turns inputs into ids, and builds the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from allyouneed import catalog
from allyouneed.errors import UserError
from allyouneed.recipe import Recipe
from allyouneed.text import Tokenizer
from allyouneed.text.layout import Layout

DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


class Processor:
    """The tokenizers of a run, and what a kind of run adds, such as labels. They are files of the run: its parts."""

    file: ClassVar[str] = ""  # the JSON file that holds the `extras`
    sides: int = 1  # texts per example

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.options = recipe.task
        self.tokenizers: dict[str, Tokenizer] = {}  # by the name of their file in the run

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the answers."""
        return self.tokenizers.get("tokenizer.target.json") or self.tokenizers["tokenizer.json"]

    @property
    def layout(self) -> Layout:
        """How the texts of an example stand in a row."""
        return self.tokenizer.layout(self.sides)

    @property
    def kind(self) -> Any:
        """The class of the model, a `models.base.Model`."""
        return catalog.model(self.recipe.model_kind)

    @property
    def longest(self) -> int:
        """The most tokens per example, with the special ones."""
        limit = self.recipe.model.limit
        return self.recipe.data.max_length if limit is None else min(self.recipe.data.max_length, limit)

    def model_config(self) -> Any:
        """The model settings of the recipe, with the sizes that the tokenizer decides."""
        return replace(self.recipe.model, vocab=rows_for(self.tokenizer, self.recipe.model.vocab, "vocab"))

    def build_body(self) -> Any:
        """The body of the model, of which model.freeze says what is frozen."""
        config = self.model_config()
        body = self.kind.BodyClass(config)
        body.freeze(config.freeze)
        return body

    def build_model(self) -> Any:
        model = self.kind(self.model_config())
        if self.kind.BodyClass is not None:
            model.body.freeze(self.recipe.model.freeze)
        return model

    def parts(self) -> dict[str, bytes]:
        """The files that a run needs besides its weights, by name."""
        found = {name: tokenizer.to_json().encode("utf-8") for name, tokenizer in self.tokenizers.items()}
        if extras := self.extras():
            found[self.file] = json.dumps(extras, indent=2, ensure_ascii=False).encode("utf-8")
        return found

    def read_parts(self, parts: Mapping[str, bytes]) -> None:
        """Load the files that `parts` has written."""
        for name, data in parts.items():
            if name.startswith("tokenizer") and name.endswith(".json"):
                self.tokenizers[name] = Tokenizer.parse(data, name)
        if self.file in parts or self.extras():
            try:
                self.take(json.loads(parts[self.file]))
            except DAMAGED:
                raise UserError(f"{self.file} is damaged, or config.json does not list it") from None

    def extras(self) -> dict[str, Any]:
        """The content of the JSON file; empty if there is none."""
        return {}

    def take(self, extras: dict[str, Any]) -> None:
        """Load the content of the JSON file; any error means that it is damaged."""

    def take_tokenizers(self, donor: Processor) -> None:
        """Use the tokenizers of the run that this one starts from: its body reads their tokens."""
        self.tokenizers = dict(donor.tokenizers)

    def same_outputs(self, other: Processor) -> bool:
        """Whether another run of this task has the same outputs: the same tokens or labels in the same order."""
        return other.tokenizer.fingerprint == self.tokenizer.fingerprint


def rows_for(tokenizer: Tokenizer, wanted: int, key: str) -> int:
    """Rows of an embedding or output matrix: `wanted`, or one per token of the tokenizer if that is 0."""
    if wanted and wanted < len(tokenizer):
        raise UserError(f"model.{key} = {wanted} is less than the {len(tokenizer)} tokens of the tokenizer: raise it")
    return wanted or len(tokenizer)
