"""Translating with an exported run: our decoding against ONNX Runtime and CTranslate2 with the same weights."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from allyouneed.metrics import translation_scores
from allyouneed.run import Run, load, train
from bench.cases.translate_marian import HF, ROWS, generate, in_batches
from bench.harness import OURS, Case, Peer, Prepared, same

MAX_NEW = 64
ONNX, CT2, INT8 = "ONNX Runtime", "CTranslate2", "CTranslate2, int8"
Ids = list[list[int]]


def onnx_side(run: Run, folder: Path) -> Callable[[Ids], Ids]:
    """A greedy loop as a user of the files would write it."""
    import onnxruntime

    run.export(folder, "onnx", say=lambda line: None)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    encoder, decoder = (
        onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), options) for name in ("encoder", "decoder")
    )
    start, end = run.task.model_config().bos, run.task.tokenizer.eos
    heads = {one.name: one.shape for one in decoder.get_inputs()}

    def translate(some: Ids) -> Ids:
        lengths = np.array([len(row) for row in some])
        source = np.zeros((len(some), lengths.max()), np.int64)
        for row, ids in zip(source, some):
            row[: len(ids)] = ids
        keys, values, real = encoder.run(None, {"source": source, "lengths": lengths})
        memory = {"memory_keys": keys, "memory_values": values, "memory_real": real}
        past = {
            name: np.zeros((len(some), *heads[name][1:3], 0, heads[name][4]), np.float32)
            for name in ("past_keys", "past_values")
        }
        last, written = np.full((len(some), 1), start), np.zeros((len(some), 0), np.int64)
        while written.shape[1] < MAX_NEW and not (written == end).any(1).all():
            logits, keys, values = decoder.run(None, {"ids": last, **past, **memory})
            last, past = logits[:, -1:].argmax(-1), {"past_keys": keys, "past_values": values}
            written = np.concatenate([written, last], 1)
        rows = written.tolist()
        return [row[: row.index(end)] if end in row else row for row in rows]

    return translate


def ct2_side(run: Run, folder: Path, numbers: str) -> Callable[[Ids], Ids]:
    import ctranslate2

    run.export(folder, "ct2", numbers, say=lambda line: None)
    translator = ctranslate2.Translator(
        str(folder), compute_type=numbers, inter_threads=1, intra_threads=torch.get_num_threads()
    )
    names = {id: token for token, id in run.task.tokenizers["tokenizer.json"]._raw.get_vocab().items()}
    ids = run.task.tokenizer._raw.get_vocab()

    def translate(some: Ids) -> Ids:
        texts = [[names[id] for id in row] for row in some]
        found = translator.translate_batch(texts, beam_size=1, max_decoding_length=MAX_NEW, min_decoding_length=0)
        return [[ids[token] for token in one.hypotheses[0]] for one in found]

    return translate


def hf_side(run: Run, folder: Path) -> Callable[[Ids], Ids]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    run.export(folder, "hf", say=lambda line: None)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    return partial(generate, model, 1, MAX_NEW)


def is_marian(model: Any) -> bool:
    """Whether transformers has a model like this one."""
    return not model.prenorm and model.positions == "sinusoidal_half" and bool(model.output_bias)


def prepare(peers: set[str], folder: Path, run: str, sentences: str) -> Prepared:
    """`run` is a trained translator; without one, a small one is trained on the built-in phrases."""
    loaded = (
        load(run, "cpu", "fp32")
        if run
        else train("translate/transformer", "train.steps=300", out=folder / "run", quiet=True)
    )
    pairs = list(loaded.task.data.splits["test"])[: int(sentences)]
    texts = [pair.source for pair in pairs]
    settings: dict[str, Any] = {"method": "greedy", "max_new": MAX_NEW, "stop": (), "batch": ROWS}
    decode = loaded.decode(**settings)
    prompts = [loaded.predictor.read(text, decode) for text in texts]

    def cut(translate: Callable[[Ids], Ids]) -> Ids:
        """Our answers have a limit that depends on the source."""
        written = in_batches([prompt.ids for prompt in prompts], translate)
        return [row[: prompt.max_new] for row, prompt in zip(written, prompts)]

    sides: dict[str, Callable[[], Ids]] = {
        OURS: lambda: [answer.tokens for answer in loaded.answers(texts, **settings)]
    }
    if ONNX in peers:
        sides[ONNX] = partial(cut, onnx_side(loaded, folder / "onnx"))
    if CT2 in peers:
        sides[CT2] = partial(cut, ct2_side(loaded, folder / "ct2", "float32"))
        sides[INT8] = partial(cut, ct2_side(loaded, folder / "int8", "int8"))
    if HF in peers and is_marian(loaded.recipe.model):
        sides[HF] = partial(cut, hf_side(loaded, folder / "hf"))
    answers = {name: side() for name, side in sides.items()}
    exact = all(answers[name] == answers[OURS] for name in answers if name != INT8)
    checked = same("every side but int8 gives the same ids for every sentence", exact)

    def scores() -> dict[str, dict[str, list[float]]]:
        right = [pair.target for pair in pairs]
        found = {}
        for name, ids in answers.items():
            written = [loaded.task.tokenizer.decode(row) for row in ids]
            found[name] = {score.name: [score.value] for score in translation_scores(written, right)[:1]}
        return found

    return Prepared(sides, sum(len(row) for row in answers[OURS]), checked, scores)


CASES = (
    Case(
        "translate-exported",
        f"The first test sentences through a trained Transformer by greedy search, {ROWS} sentences at a time, CPU: "
        "ours, and the same run exported to ONNX Runtime (a loop in NumPy over its graph with a cache) and to "
        "CTranslate2, and if it is a Marian (model.prenorm=false model.positions=sinusoidal_half "
        "model.output_bias=true model.activation=silu) to transformers, each on batches sorted by length. "
        "`--set run=RUN` takes a run of your own.",
        "tokens",
        [Peer(ONNX, "onnxruntime"), Peer(CT2, "ctranslate2"), Peer(HF, "transformers")],
        prepare,
        options={"run": "", "sentences": "256"},
    ),
)
