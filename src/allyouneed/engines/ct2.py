"""engine=ct2: CTranslate2 searches the answers of a translator or a GPT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from allyouneed.config import DecodeConfig
from allyouneed.decode import Event, Hypothesis
from allyouneed.errors import UserError
from allyouneed.exchange.to_ct2 import positions, vocabulary
from allyouneed.exchange.to_onnx import packages
from allyouneed.models.transformer import Transformer
from allyouneed.predict.answers import Answer, Draft, Prompt, searched
from allyouneed.predict.engine import Show, WritingEngine
from allyouneed.predict.processor import Processor
from allyouneed.text import Tokenizer

Found = list[tuple[list[int], float]]  # the tokens of each answer, with the one that has ended it, and its score
# A beam ends when so many times `beam` hypotheses have ended; ours, when no other can become the best. With a strong
# length penalty these are late ones, and only a search up to decode.max_new finds the same.
PATIENCE, STRONG, WHOLE = 4, 1.0, 10_000


class CT2(WritingEngine):
    """The ids become tokens, and the tokens of the answers ids. Batches of a translator are sorted by length; prompts
    of a GPT have one length in a batch, so that they are read at once."""

    name = "CTranslate2"

    def __init__(self, outline: Any, processor: Processor, folder: Path, device: str, numbers: str) -> None:
        super().__init__(outline)
        (library,) = packages("ctranslate2")
        kind, _, index = device.partition(":")
        self.translates, self.positions = isinstance(outline, Transformer), positions(outline.config)
        make = library.Translator if self.translates else library.Generator
        with _explained("cannot open this run"):
            self.library = make(
                str(folder),
                kind,
                device_index=int(index or 0),
                compute_type={"fp32": "float32"}.get(numbers, numbers),
                inter_threads=1,
                intra_threads=torch.get_num_threads(),
            )
        reader = processor.tokenizers["tokenizer.json"]
        self.tokens = vocabulary(reader, len(reader))
        self.ids = {token: id for id, token in enumerate(vocabulary(processor.tokenizer, len(processor.tokenizer)))}
        self.names = list(self.ids)

    def check(self, decode: DecodeConfig) -> None:
        if decode.method == "sample":
            raise UserError(
                "CTranslate2 draws random numbers of its own, which decode.seed does not decide: choose "
                "decode.method = greedy or beam, or another engine"
            )
        if decode.n_best > 1:
            raise UserError("the engine ct2 gives one answer to a text: leave decode.n_best at 1, or choose torch")
        if decode.method == "beam" and decode.alpha and decode.length_penalty != "power":
            raise UserError(
                "CTranslate2 has no length penalty like gnmt: choose decode.length_penalty = power, or decode.alpha = 0"
            )

    def alike(self, decode: DecodeConfig) -> bool:
        return not self.translates or decode.method == "beam"

    def fitted(self, prompt: Prompt) -> Prompt:
        prompt = super().fitted(prompt)
        size = len(prompt.ids) + (0 if self.translates else prompt.max_new - 1)
        if self.positions and max(size, prompt.max_new) > self.positions:
            raise UserError(
                f"{len(prompt.ids):,} tokens, and {prompt.max_new:,} new ones (decode.max_new), need more than the "
                f"{self.positions:,} positions that CTranslate2 has of this run: shorten the text, or lower that"
            )
        return prompt

    def answers(
        self, prompts: Sequence[Prompt], tokenizer: Tokenizer, decode: DecodeConfig, show: Show | None
    ) -> list[Answer]:
        ends = {tokenizer.eos} - {None}
        if decode.method == "beam":
            patience = PATIENCE if decode.alpha <= STRONG else WHOLE
            search = {"beam_size": decode.beam, "length_penalty": decode.alpha, "patience": patience}
            found = self._search(prompts, ends, **search)
            return [searched(_hypothesis(*one, ends, decode.alpha), tokenizer, decode.stop) for one in found]
        ends |= prompts[0].stop
        if decode.stop or show is not None:
            return self._watched(prompts, ends, self.drafts(len(prompts), tokenizer, decode, show))
        return [_whole(*one, ends, tokenizer) for one in self._greedy(prompts, ends)]

    def _greedy(self, prompts: Sequence[Prompt], ends: set[Any]) -> Found:
        """Greedy search. Translations may have different limits: those that exceed theirs are searched again."""
        found = self._search(prompts, ends, beam_size=1, length_penalty=0)
        late = [i for i, (p, (tokens, _)) in enumerate(zip(prompts, found)) if len(tokens) > p.max_new]
        for _, group in groupby(sorted(late, key=lambda i: prompts[i].max_new), lambda i: prompts[i].max_new):
            some = list(group)
            for i, one in zip(some, self._search([prompts[i] for i in some], ends, beam_size=1, length_penalty=0)):
                found[i] = one
        return found

    def _watched(self, prompts: Sequence[Prompt], ends: set[Any], drafts: list[Draft]) -> list[Answer]:
        """Greedy search, in which each token is looked at: its answer may end there, or is shown."""
        errors: list[BaseException] = []

        def take(step: Any) -> bool:
            try:
                draft, end = drafts[step.batch_id], step.token_id in ends
                last = "stop" if end else "length" if step.step + 1 >= prompts[step.batch_id].max_new else None
                token = None if end else step.token_id
                if draft.answer is None:
                    draft.take(Event(0, token, step.log_prob, last, end=step.token_id if end else None))
                return draft.answer is not None
            except BaseException as error:
                errors.append(error)
                return True

        self._search(prompts, ends, beam_size=1, length_penalty=0, callback=take)
        if errors:
            raise errors[0]
        return [draft.answer for draft in drafts if draft.answer is not None]

    def _search(self, prompts: Sequence[Prompt], ends: set[Any], **search: Any) -> Found:
        texts = [[self.tokens[id] for id in prompt.ids] for prompt in prompts]
        limit = max(prompt.max_new for prompt in prompts)
        search |= {"return_scores": True, "return_end_token": True}
        search |= {"end_token": [self.names[id] for id in sorted(ends)]} if ends else {}
        if self.translates:
            search |= {"max_input_length": 0, "max_decoding_length": limit, "min_decoding_length": 0}
            with _explained("has failed"):
                made = self.library.translate_batch(texts, **search)
            return [([self.ids[token] for token in one.hypotheses[0]], one.scores[0]) for one in made]
        with _explained("has failed"):
            made = self.library.generate_batch(texts, max_length=limit, include_prompt_in_result=False, **search)
        return [(one.sequences_ids[0], one.scores[0]) for one in made]


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn an error of the library, such as a type of numbers that the machine lacks, into a sentence."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise UserError(f"CTranslate2 {what}: {error}; try another engine") from None


def _whole(tokens: list[int], logprob: float, ends: set[Any], tokenizer: Tokenizer) -> Answer:
    if tokens and tokens[-1] in ends:
        return Answer(tokenizer.decode(tokens[:-1]), tokens[:-1], logprob, "stop", end=tokens[-1])
    return Answer(tokenizer.decode(tokens), tokens, logprob, "length")


def _hypothesis(tokens: list[int], score: float, ends: set[Any], alpha: float) -> Hypothesis:
    """The score is the log-probability divided by n^alpha; n counts the end."""
    finished = bool(tokens) and tokens[-1] in ends
    return Hypothesis(tokens[: len(tokens) - finished], score, score * len(tokens) ** alpha, finished)
