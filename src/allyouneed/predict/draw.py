"""draw: an image for a caption, code by code."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from allyouneed.config import DecodeConfig
from allyouneed.decode import Event, Request
from allyouneed.errors import UserError
from allyouneed.figures import contact_sheet
from allyouneed.models.dalle import DALLE
from allyouneed.nn.trace import Trace, record
from allyouneed.predict.answers import Answer, Drafts, Outcome, Prompt, request_for
from allyouneed.predict.base import Guess, Names, Show, Writing, best_of
from allyouneed.predict.images import ImageTokenizer, grid_names
from allyouneed.predict.inputs import check_numbers
from allyouneed.predict.processor import Processor, rows_for
from allyouneed.predict.writer import Session, Writer
from allyouneed.text import Tokenizer


class DrawProcessor(Processor):
    _image_tokenizer: ImageTokenizer | None = None

    @property
    def image_tokenizer(self) -> ImageTokenizer:
        """The codes of images: a part of the run or, before it is one, of the run task.image_tokenizer."""
        if self._image_tokenizer is None:
            if not self.options.image_tokenizer:
                raise UserError(
                    "task.image_tokenizer is empty: name a run of the task compress, whose codes are what is drawn "
                    "with; `ayn train compress/shapes` makes one"
                )
            self._image_tokenizer = ImageTokenizer.load(self.options.image_tokenizer)
        return self._image_tokenizer

    def take_tokenizers(self, donor: Processor) -> None:
        super().take_tokenizers(donor)
        if not isinstance(donor, DrawProcessor):
            return
        given, theirs = self.options.image_tokenizer, donor.image_tokenizer
        if os.path.isdir(given) and self.image_tokenizer.fingerprint != theirs.fingerprint:
            raise UserError(
                f"the codebook of {given} is not the one that the run in train.init draws with: set "
                "task.image_tokenizer= to draw with that, or start from another run"
            )
        self._image_tokenizer = theirs

    def same_outputs(self, other: Processor) -> bool:
        same = isinstance(other, DrawProcessor) and super().same_outputs(other)
        return same and cast(DrawProcessor, other).image_tokenizer.fingerprint == self.image_tokenizer.fingerprint

    def parts(self) -> dict[str, bytes]:
        return {**super().parts(), **self.image_tokenizer.parts()}

    def read_parts(self, parts: Mapping[str, bytes]) -> None:
        super().read_parts(parts)
        self._image_tokenizer = ImageTokenizer.read(parts)

    def model_config(self) -> Any:
        config, image_tokenizer = self.recipe.model, self.image_tokenizer.config
        for name in ("codes", "grid"):
            own, theirs = getattr(config, name), getattr(image_tokenizer, name)
            if own and own != theirs:
                raise UserError(
                    f"model.{name} = {own}, but the codebook has {theirs}: leave model.{name} out, or take another "
                    "task.image_tokenizer"
                )
        vocab = rows_for(self.tokenizer, config.vocab, "vocab")
        return replace(config, vocab=vocab, codes=image_tokenizer.codes, grid=image_tokenizer.grid)

    @property
    def longest(self) -> int:
        return 1 + int(self.recipe.model.caption) + self.image_tokenizer.config.tokens


class Caption(NamedTuple):
    given: str
    ids: list[int]
    guidance: float = 1.0  # with which it is drawn


class DrawPredictor(Writing):
    Processor = DrawProcessor
    asks = "what to draw"
    makes_image: ClassVar[bool] = True
    writes_images: ClassVar[bool] = True
    no_vectors = "it draws, and has no vectors of texts"
    processor: DrawProcessor
    model: DALLE

    def read(self, given: str, decode: DecodeConfig) -> Caption:
        ids, most = caption_ids(given, self.tokenizer), self.model.config.caption
        if len(ids) > most:
            raise UserError(f"the caption has {len(ids)} tokens, and this model reads at most {most}: shorten it")
        check_method(decode)
        return Caption(given, ids, decode.guidance)

    def unknown(self, given: Any) -> Sequence[str]:
        return ()  # a caption with unknown words is refused

    def _answers(self, inputs: Iterable[Caption], decode: DecodeConfig, show: Show | None) -> Iterator[Outcome]:
        source = iter(inputs)
        while several := list(islice(source, max(1, decode.batch // decode.n_best))):
            yield from self._each(several, decode)

    def request(self, given: Caption, decode: DecodeConfig) -> Request:
        return code_request(
            self.model, self.model.prompt(given.ids), self.processor.image_tokenizer.config.tokens, decode
        )

    def drafts(self, given: Caption, decode: DecodeConfig, shows: Sequence[Show | None] = ()) -> Drawing:
        return Drawing(self, given, decode)

    def _answer(self, inputs: list[Caption], decode: DecodeConfig) -> Iterator[Answer]:
        prompts = [self.model.prompt(caption.ids) for caption in inputs]
        codes = draw_codes(self.writer, prompts, self.processor.image_tokenizer.config.tokens, decode)
        return self.images_of(inputs, codes, decode)

    def images_of(self, inputs: list[Caption], codes: np.ndarray, decode: DecodeConfig) -> Iterator[Answer]:
        """For each caption decode.n_best drawings of these codes (captions · n_best, codes), the best first: by
        log p(codes | caption) or, for the rank of the caption, by log p(codes | caption) - log p(codes)."""
        each, prompts = decode.n_best, [self.model.prompt(caption.ids) for caption in inputs]
        tokenizer = self.processor.image_tokenizer
        asked = np.repeat(np.asarray(prompts), each, axis=0)
        score = logprobs = likelihood(self.model, asked, codes)
        if decode.rank == "caption":
            score = logprobs - likelihood(self.model, np.full_like(asked, self.model.blank), codes)
        tokenizer.model.to(self.model.device)
        made = []
        for i, (row, image) in enumerate(zip(codes.tolist(), tokenizer.decode(codes))):
            logprob, text = float(logprobs[i]), " ".join(map(str, row))
            details = {"seed": decode.seed + i % each, "logprob": round(logprob, 4), "codes": row}
            made.append(Answer(text, row, logprob, "length", float(score[i]), details=details, image=image))
        for at in range(0, len(made), each):
            best, *others = sorted(made[at : at + each], key=lambda answer: -answer.score)
            yield replace(best, others=others)

    @torch.inference_mode()
    def steps(self, given: Caption, tokens: Sequence[int]) -> Tensor:
        """Of codes; with guidance, the mixed logits."""

        def logits(caption: list[int]) -> Tensor:
            words, codes = (
                torch.tensor([row], device=self.model.device) for row in (self.model.prompt(caption), tokens)
            )
            return self.model.choices(self.model.body(words, codes[:, :-1])[0, self.model.config.caption :]).float()

        with self.lock:
            asked = logits(given.ids)
            free = asked if given.guidance == 1 else logits([])
        return (free + given.guidance * (asked - free)).cpu()

    def write_on(self, given: Caption, begun: list[int], decode: DecodeConfig) -> tuple[list[int], str]:
        prompt, rest = self.model.prompt(given.ids), self.model.config.grid**2 - len(begun)
        more = draw_codes(Writer(self.model, self.lock), [prompt], rest, decode, begun)[0].tolist() if rest else []
        return [*begun, *more], "length"

    def write_images(self, asked: Sequence[tuple[Caption, Answer]], out: Path) -> None:
        """The drawings of each caption, the best first, with their seeds."""
        title = asked[0][0].given if len(asked) == 1 else ""
        each = [(caption, one) for caption, answer in asked for one in (answer, *answer.others)]
        texts = ["" if title else f"{caption.given}\n" for caption, _ in each]
        texts = [f"{text}seed {one.details['seed']}" for text, (_, one) in zip(texts, each)]
        contact_sheet([one.image for _, one in each], texts, out, title)

    def table(self, given: Caption, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """The likely next words of the caption: the model has learned to write these too."""
        device = self.model.device
        words = torch.tensor([self.model.prompt(given.ids)], device=device)
        with torch.inference_mode(), self.lock:
            logits, _ = self.model(words, torch.zeros(1, 1, dtype=torch.long, device=device))
        p = check_numbers(logits[0].float()).softmax(-1)
        named = [*(self.tokenizer.token(id) for id in range(len(self.tokenizer))), "(end)"]
        return [
            Guess(self.tokenizer.token(id), [(named[i], value) for i, value in best_of(row, min(most, len(named)))])
            for id, row in zip(given.ids, p[1:])
        ]

    def _run_traced(self, given: Caption, decode: DecodeConfig, trace: Trace) -> Names:
        """While it reads the caption and draws the best image."""
        answer, grid = next(iter(self._answer([given], decode))), self.model.config.grid
        prompt = self.model.prompt(given.ids)
        words, codes = (torch.tensor([one], device=self.model.device) for one in (prompt, answer.tokens))
        self.model(words, codes, trace=trace)
        record(trace, self.model, "codes", codes.unflatten(1, (grid, -1)))
        blank = ["·"] * (self.model.config.caption - len(given.ids))
        codes_read = grid_names(grid)[:-1]
        tokens = ["·", *(self.tokenizer.token(id) for id in given.ids), *blank, *codes_read]
        at = self.model.config.caption
        own = {"word_head": tokens[:at], "head": tokens[at:]}
        return lambda place: (tokens, own.get(place, tokens))


class Drawing(Drafts):
    """The codes of one caption's drawings, which become images at the end."""

    def __init__(self, predictor: DrawPredictor, given: Caption, decode: DecodeConfig) -> None:
        self.predictor, self.given, self.decode = predictor, given, decode
        self.codes: list[list[int]] = [[] for _ in range(decode.n_best)]

    def take(self, event: Event, session: Session) -> Outcome | None:
        if event.error is not None:
            return event.error
        self.codes[event.answer].append(cast(int, event.token))
        if any(len(row) < self.predictor.processor.image_tokenizer.config.tokens for row in self.codes):
            return None
        with self.predictor.lock:
            return next(self.predictor.images_of([self.given], np.array(self.codes), self.decode))


def caption_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of a user's caption. A word at the beginning and the same word after a space are two tokens. If training
    has seen only one of them, it stands for both; and an unknown word is tried again in small letters."""
    text = " ".join(text.split())
    if not text:
        raise UserError("the caption is empty: give some text")
    ids, strange = [], []
    for id, unit in tokenizer.units(text):
        if id == tokenizer.unk:
            word = unit.strip()
            others = [tokenizer.encode(space + form) for form in (word, word.lower()) for space in ("", " ")]
            id = next((one[0] for one in others if len(one) == 1 and one[0] != tokenizer.unk), id)
            strange += [repr(word)] * (id == tokenizer.unk)
        ids.append(id)
    if strange:
        words = ", ".join(dict.fromkeys(strange[:8]))
        raise UserError(f"the caption has words that this model does not know: {words}; use others")
    return ids


def check_method(decode: DecodeConfig) -> None:
    if decode.method == "beam":
        raise UserError("decode.method = beam: a drawing is sampled; take sample, or greedy for the likeliest codes")


def code_request(
    model: DALLE, prompt: list[int], codes: int, decode: DecodeConfig, begun: Sequence[int] = ()
) -> Request:
    """So many codes after a prompt, and after those that an image begins with."""
    free = [*model.prompt([]), *begun] if decode.guidance != 1 else None
    asked = request_for(Prompt([*prompt, *begun], codes), decode, None)
    return replace(asked, guidance=decode.guidance, free=free)


def draw_codes(
    writer: Writer, prompts: Sequence[list[int]], codes: int, decode: DecodeConfig, begun: Sequence[int] = ()
) -> np.ndarray:
    """(prompts · decode.n_best, codes): sampled with the seeds decode.seed, decode.seed + 1, …; see `code_request`."""
    model = cast(DALLE, writer.stepper)
    with writer.session(decode.batch) as session:
        found: dict[int, list[list[int]]] = {}
        for prompt in prompts:
            request = code_request(model, prompt, codes, decode, begun)
            found[session.add(request)] = [[] for _ in range(decode.n_best)]
        while events := session.wait():
            for event in events:
                if event.error is not None:
                    raise event.error
                found[event.id][event.answer].append(cast(int, event.token))
    return np.array([row for rows in found.values() for row in rows])


@torch.inference_mode()
def likelihood(model: DALLE, words: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """(B,): log p(codes | words) of each row."""
    found = []
    for at in range(0, len(codes), 64):
        some = torch.from_numpy(codes[at : at + 64]).to(model.device)
        _, logits = model(torch.from_numpy(words[at : at + 64]).to(model.device), some)
        p = check_numbers(logits.float()).log_softmax(-1)
        found.append(p.gather(-1, some[..., None]).sum((1, 2)).cpu())
    return torch.cat(found).numpy()
