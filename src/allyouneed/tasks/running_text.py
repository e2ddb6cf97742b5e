"""What lm and wordvectors share: running text as one stream of tokens."""

from __future__ import annotations

from allyouneed.data.report import Report, describe
from allyouneed.data.store import Ragged, tokenize_stream, unknown_part
from allyouneed.tasks.base import M, Task, once


class RunningText(Task[M]):
    """A task whose examples are cut out of a long text."""

    shape = "text"
    item_name = "windows"

    @once
    def stream(self, split: str) -> Ragged:
        """The tokens of a split; documents end with the end token."""
        documents = self.data.splits[split].documents()
        end = self.tokenizer.need("eos", "to end a document")
        return tokenize_stream(documents, self.tokenizer, self.token_key(split, "text"), separator=end)

    def report(self) -> Report:
        streams = {split: self.stream(split) for split in self.data.splits}
        lengths = {split: stream.lengths for split, stream in streams.items()}
        unknown = {split: [unknown_part(self.tokenizer, [stream])] for split, stream in streams.items()}
        return describe(self.data, lengths, None, f"{self.unit}s", unknown=unknown, advice=self.unknown_advice)
