"""engine=onnx: ONNX Runtime computes the graphs of a run; what is written is chosen here, greedily."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from allyouneed.config import DecodeConfig
from allyouneed.decode import Event
from allyouneed.decode.sample import greedy
from allyouneed.errors import UserError
from allyouneed.exchange.to_onnx import open_graph
from allyouneed.models.bert import Bert
from allyouneed.predict.answers import Answer, Prompt
from allyouneed.predict.engine import Engine, Show, WritingEngine
from allyouneed.text import Tokenizer

NAME = "ONNX Runtime"
Arrays = dict[str, np.ndarray]


class OnnxReader(Engine):
    """Reads whole texts or images."""

    name = NAME

    def __init__(self, outline: Any, folder: Path) -> None:
        super().__init__(outline)
        self.graph = open_graph(folder / "model.onnx")
        self.inputs = [one.name for one in self.graph.get_inputs()]

    def __call__(self, *given: Any, trace: Any = None) -> Any:
        if trace is not None:
            raise self.lacks()
        (tensors,) = given
        arrays = {name: tensors[name].numpy() for name in self.inputs}
        found = [torch.from_numpy(array) for array in self.graph.run(None, arrays)]
        if not isinstance(self.outline, Bert):
            return found[0]
        return (*found, torch.zeros(len(found[0]), 2))[:2]  # as a BERT that has not learned which text follows

    def spans(self, logits: Tensor, longest: int) -> Tensor:
        """As in an Answerer."""
        found: Tensor = self.outline.spans(logits, longest)
        return found


class OnnxWriter(WritingEngine):
    """Writes greedily: the rows of a batch begin together, and leave when they have ended."""

    name = NAME

    def __init__(self, outline: Any, folder: Path) -> None:
        super().__init__(outline)
        self.decoder = open_graph(folder / "decoder.onnx")
        self.encoder = None if self.prompted else open_graph(folder / "encoder.onnx")
        self.shapes = {one.name: one.shape for one in self.decoder.get_inputs() if one.name.startswith("past_")}

    def check(self, decode: DecodeConfig) -> None:
        if decode.method != "greedy":
            raise UserError(
                f"the engine onnx writes greedily, not with decode.method = {decode.method}: choose greedy, or another "
                "engine"
            )

    def alike(self, decode: DecodeConfig) -> bool:
        return self.encoder is None

    def answers(
        self, prompts: Sequence[Prompt], tokenizer: Tokenizer, decode: DecodeConfig, show: Show | None
    ) -> list[Answer]:
        drafts = self.drafts(len(prompts), tokenizer, decode, show)
        memory, ids = self._begin(prompts)
        past = {name: np.zeros((len(ids), *s[1:3], 0, s[4]), np.float32) for name, s in self.shapes.items()}
        live, eos = list(range(len(prompts))), set() if tokenizer.eos is None else {tokenizer.eos}
        while live:
            logits, keys, values = self.decoder.run(None, {"ids": ids, **past, **memory})
            tokens, logprobs = greedy(torch.from_numpy(logits[:, -1]))
            for row, token, logprob in zip(live, tokens.tolist(), logprobs.tolist()):
                draft, prompt = drafts[row], prompts[row]
                if draft.answer is None and token in prompt.stop | eos:
                    draft.take(Event(0, None, logprob, "stop", end=token))
                elif draft.answer is None:
                    draft.take(Event(0, token, logprob, "length" if len(draft.tokens) + 1 >= prompt.max_new else None))
            past, ids = dict(zip(past, (keys, values))), tokens[:, None].numpy()
            stay = [i for i, row in enumerate(live) if drafts[row].answer is None]
            if 4 * len(stay) <= 3 * len(live):  # a copy of all keys and values costs as much as a few rows
                live, ids = [live[i] for i in stay], ids[stay]
                past, memory = ({name: array[stay] for name, array in some.items()} for some in (past, memory))
        return [draft.answer for draft in drafts if draft.answer is not None]

    def _begin(self, prompts: Sequence[Prompt]) -> tuple[Arrays, np.ndarray]:
        """What the encoder gives, and the ids that the decoder reads first."""
        lengths = np.array([len(prompt.ids) for prompt in prompts])
        ids = np.zeros((len(prompts), lengths.max()), np.int64)
        for row, prompt in zip(ids, prompts):
            row[: len(prompt.ids)] = prompt.ids
        if self.encoder is None:
            return {}, ids
        names = [f"memory_{kind}" for kind in ("keys", "values", "real")]
        memory = dict(zip(names, self.encoder.run(None, {"source": ids, "lengths": lengths})))
        return memory, np.full((len(prompts), 1), self.outline.config.bos)
