"""Translating through an engine: `load(run, engine=…)` against the same library called by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from allyouneed.run import Run, load, train
from bench.cases.translate_exported import CT2, MAX_NEW, ONNX, onnx_side
from bench.cases.translate_marian import ROWS, in_batches
from bench.harness import OURS, Case, Peer, Prepared, same

Side = Callable[[list[str]], list[tuple[str, float]]]  # texts -> their translations with the log-probability


def by_engine(run: Run, settings: dict[str, Any], texts: list[str]) -> list[tuple[str, float]]:
    return [(answer.text, answer.logprob) for answer in run.answers(texts, **settings)]


def ct2_by_hand(run: Run, folder: Path) -> Side:
    import ctranslate2

    run.export(folder, "ct2", say=lambda line: None)
    translator = ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=torch.get_num_threads())
    reader, writer = run.processor.tokenizers["tokenizer.json"]._raw, run.processor.tokenizer._raw
    end = reader.id_to_token(run.processor.tokenizers["tokenizer.json"].eos)

    def translate(texts: list[str]) -> list[tuple[str, float]]:
        found = translator.translate_batch(
            [[*encoding.tokens, end] for encoding in reader.encode_batch(texts, add_special_tokens=False)],
            max_batch_size=ROWS,
            beam_size=1,
            max_decoding_length=MAX_NEW,
            min_decoding_length=0,
            length_penalty=0,
            return_scores=True,
        )
        ids = [[writer.token_to_id(token) for token in one.hypotheses[0]] for one in found]
        return list(zip(writer.decode_batch(ids), [one.scores[0] for one in found]))

    return translate


def onnx_by_hand(run: Run, folder: Path) -> Side:
    """Without log-probabilities."""
    translate = onnx_side(run, folder)
    reader, writer = run.processor.tokenizers["tokenizer.json"], run.processor.tokenizer._raw

    def texts_of(texts: list[str]) -> list[tuple[str, float]]:
        encodings = reader._raw.encode_batch_fast(texts, add_special_tokens=False)
        ids = in_batches([[*encoding.ids, reader.need("eos", "")] for encoding in encodings], translate)
        return [(text, math.nan) for text in writer.decode_batch(ids)]

    return texts_of


def prepare(peers: set[str], folder: Path, run: str, sentences: str) -> Prepared:
    """`run` is a trained translator; without one, a small one is trained on the built-in phrases."""
    path = Path(run) if run else folder / "run"
    if not run:
        train("translate/transformer", "train.steps=300", out=path, quiet=True)
    own = load(path, "cpu", "fp32")
    texts = [pair.source for pair in list(own.task.data.splits["test"])[: int(sentences)]]
    settings: dict[str, Any] = {
        "method": "greedy", "max_new": MAX_NEW, "times_source": 0, "stop": (), "batch": ROWS,
    }  # fmt: skip
    sides: dict[str, Callable[[], list[tuple[str, float]]]] = {OURS: partial(by_engine, own, settings, texts)}
    for name, engine, by_hand in ((CT2, "ct2", ct2_by_hand), (ONNX, "onnx", onnx_by_hand)):
        if name in peers:
            sides[f"engine={engine}"] = partial(by_engine, load(path, "cpu", engine=engine), settings, texts)
            sides[f"{name} by hand"] = partial(by_hand(own, folder / engine), texts)
    answers = {name: side() for name, side in sides.items()}
    right = answers[OURS]
    equal = all([text for text, _ in found] == [text for text, _ in right] for found in answers.values())
    near = all(
        math.isnan(value) or abs(value - wanted) < 1e-3
        for found in answers.values()
        for (_, value), (_, wanted) in zip(found, right)
    )
    checked = same("every side gives the same text for every sentence, and the same log-probability", equal and near)
    tokens = sum(len(answer.tokens) for answer in own.answers(texts, **settings))
    return Prepared(sides, tokens, f"{checked} (ONNX Runtime by hand gives none)")


CASES = (
    Case(
        "translate-engines",
        f"The first test sentences through a trained Transformer by greedy search, {ROWS} sentences at a time, CPU, "
        "from texts to texts with their log-probabilities: ours, the same run loaded with engine=ct2 and engine=onnx, "
        "and these two libraries called by hand on the exported run, on batches sorted by length. `--set run=RUN` "
        "takes a run of your own.",
        "tokens",
        [Peer(CT2, "ctranslate2"), Peer(ONNX, "onnxruntime")],
        prepare,
        options={"run": "", "sentences": "256"},
    ),
)
