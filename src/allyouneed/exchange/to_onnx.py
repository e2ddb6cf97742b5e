"""A run -> ONNX graphs, each compared with the model before it counts as written."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from allyouneed.errors import UserError, shortened
from allyouneed.exchange.graphs import (
    NEVER,
    Check,
    Graph,
    Session,
    gpt_graphs,
    reader_graphs,
    translator_graphs,
)
from allyouneed.models.base import Model
from allyouneed.models.bert import Bert, BertBody
from allyouneed.models.embedder import Embedder
from allyouneed.models.gpt import GPT, GPTBody
from allyouneed.models.labeller import Labeller
from allyouneed.models.transformer import Transformer
from allyouneed.models.vit import ViTBody
from allyouneed.storage.wholefile import write_bytes, write_json, writing
from allyouneed.terminal import Say
from allyouneed.version import __version__

OPSET = 18
LARGEST = 2**31 - 2**24  # bytes of weights: a file of ONNX ends at 2 GiB
ALLOWED = 1e-4  # difference of a value from the model's, if the largest value is 1 or smaller


def packages(*names: str) -> list[Any]:
    """Optional packages, imported."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise UserError(f"this export needs other packages ({error}): pip install {' '.join(names)}") from None


def plain(model: Model) -> Model:
    """The model on the CPU with fp32 weights: itself, or a copy."""
    if all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters()):
        return model
    return copy.deepcopy(model).to("cpu", torch.float32)


def export_onnx(run: Any, folder: Path, say: Say) -> list[Path]:
    """Write the graphs of a run, its tokenizers and labels, and config.json into an empty folder; returns the files. A
    graph that gives other numbers than the model is an error.

    lm: decoder.onnx. translate: encoder.onnx and decoder.onnx. All others: model.onnx."""
    model = plain(run.model)
    with torch.random.fork_rng(devices=[]), torch.no_grad():  # the same inputs in every check
        torch.manual_seed(0)
        graphs, check = _graphs(run, model)
        _, runtime = packages("onnx", "onnxruntime")
        size = sum(4 * p.numel() for p in model.parameters())
        if size > LARGEST:
            raise UserError(f"the weights take {size / 2**30:.1f} GiB; a file of ONNX holds less than 2 GiB")
        for name, graph in graphs.items():
            _trace(graph, folder / name)
        _compare({name: _session(runtime, folder / name, graph) for name, graph in graphs.items()}, check, say)
    for name, data in run.processor.parts().items():
        write_bytes(folder / name, data)
    write_json(folder / "config.json", _config(run, graphs))
    return sorted(folder.iterdir())


def _config(run: Any, graphs: dict[str, Graph]) -> dict[str, Any]:
    tokens: dict[str, Any] = {"ends": list(getattr(run.processor, "ends", ()))}
    if run.processor.tokenizers:
        tokens |= {role: getattr(run.processor.tokenizer, role) for role in ("bos", "eos", "pad", "unk")}
    return {
        "made by": f"allyouneed {__version__}",
        "task": run.recipe.task_kind,
        "model": {"kind": run.recipe.model_kind, **asdict(run.processor.model_config())},
        "tokens": tokens,
        "graphs": {name: {"inputs": graph.inputs, "outputs": graph.outputs} for name, graph in graphs.items()},
    }


def _trace(graph: Graph, path: Path) -> None:
    """Write one graph. What depends on sizes is recorded in the graph itself; a test at other sizes follows, so the
    tracer need not warn. Nothing is folded: that would store a matrix twice that is also an embedding."""
    dynamic = {
        name: {i: axis for i, axis in enumerate(axes) if isinstance(axis, str)}
        for name, axes in (*graph.inputs.items(), *graph.outputs.items())
    }
    with warnings.catch_warnings(), writing(path):
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                graph.module.eval(),
                graph.example,
                str(path),
                input_names=list(graph.inputs),
                output_names=list(graph.outputs),
                dynamic_axes=dynamic,
                opset_version=OPSET,
                do_constant_folding=False,
                dynamo=False,
            )
        except torch.onnx.OnnxExporterError as error:
            first = str(error).strip().splitlines()[:1]
            raise UserError(f"torch cannot write this model as ONNX: {''.join(first)[:200]}") from None


def _session(runtime: Any, path: Path, graph: Graph) -> Session:
    """Runs a written graph."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # nothing is printed: what fails is raised
    with _runtime_errors():
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(*tensors: Tensor) -> list[Tensor]:
        given = {name: tensor.numpy() for name, tensor in zip(graph.inputs, tensors)}
        with _runtime_errors():
            return [torch.from_numpy(np.asarray(found)) for found in session.run(list(graph.outputs), given)]

    return run


@contextmanager
def _runtime_errors() -> Iterator[None]:
    """An error of onnxruntime, which has types of its own, becomes a UserError."""
    try:
        yield
    except Exception as error:
        raise UserError(f"onnxruntime cannot run what was written: {shortened(error, 200)}") from None


def _compare(sessions: dict[str, Session], check: Check, say: Say) -> None:
    worst, count = 0.0, 0
    for found, wanted in check(sessions):
        if found.shape != wanted.shape:
            raise UserError(f"ONNX gives values of the shape {tuple(found.shape)}, not {tuple(wanted.shape)}")
        scale = max(1.0, float(wanted.masked_fill(wanted == NEVER, 0).abs().max()))
        difference = float((found - wanted).abs().max()) / scale
        if not difference <= ALLOWED:  # NaN is no number to agree with
            raise UserError(f"ONNX gives other values than the model: they differ by {difference:.1g}")
        worst, count = max(worst, difference), count + 1
    say(f"ONNX gives the values of the model: {count} inputs, largest difference {worst:.1g}")


def _graphs(run: Any, model: Model) -> tuple[dict[str, Graph], Check]:
    """The files of a run, and what compares them with the model."""
    if isinstance(model, GPT):
        return gpt_graphs(model)
    if isinstance(model, Transformer):
        return translator_graphs(model)
    if isinstance(model, Bert | Labeller | Embedder) and isinstance(model.body, BertBody | GPTBody | ViTBody):
        return reader_graphs(model, run.processor.model_config())
    raise UserError(
        f"a run of the model {run.recipe.model_kind} for the task {run.recipe.task_kind} cannot be written as ONNX; "
        "runs of gpt, transformer, bert and vit can"
    )
