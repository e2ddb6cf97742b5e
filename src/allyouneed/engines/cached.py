"""The engines by name. A run is exported for its engine once, into the cache, and used from there."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from allyouneed.config import DecodeConfig
from allyouneed.data.fetch import cache_folder
from allyouneed.engines.ct2 import CT2
from allyouneed.engines.onnx import OnnxReader, OnnxWriter
from allyouneed.errors import UserError, option_name, shortened
from allyouneed.exchange.exporting import export_run
from allyouneed.exchange.to_onnx import packages
from allyouneed.models.base import Writer
from allyouneed.predict.answers import Prompt
from allyouneed.predict.base import answered
from allyouneed.predict.engine import Engine, WritingEngine
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.wholefile import remove, write_json, writing
from allyouneed.terminal import write
from allyouneed.version import __version__

SUMS = "checksums.json"  # of the files of an export, written last
NUMBERS = {"fp32": "float32", "int8": "int8"}  # how exports call them
TEXTS, WRITTEN = 4, 12  # by which an engine is compared with the model: so many texts, and new tokens of each


class Opened(NamedTuple):
    model: Engine
    device: str
    precision: str


def open_engine(
    name: str, folder: RunFolder, processor: Any, device: str, precision: str, load: Callable[[], Any]
) -> Opened:
    """The engine of a run. `load` gives the run itself, which is exported if the cache has no such export."""
    packages(*({"ct2": ("ctranslate2",), "onnx": ("onnxruntime",)}[name]))
    device, precision = _pick_device(name, device), _pick_precision(name, precision)
    if processor.recipe.task_kind == "embed":
        raise UserError("the vectors of a run of the task embed come from torch only: leave out the engine")
    with torch.device("meta"):
        outline = processor.build_model()

    def opened(exported: Path) -> Engine:
        if name == "ct2":
            return CT2(outline, processor, exported, device, precision)
        return (OnnxWriter if isinstance(outline, Writer) else OnnxReader)(outline, exported)

    if not folder.model.is_file():
        load()  # which says what is missing
    about = [__version__, name, precision, folder.identity(), folder.read_config()["options"], _sha256(folder.model)]
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    exported = cache_folder() / "engines" / f"{folder.path.absolute().name[:40]}-{key}"
    if not _is_whole(exported):
        run = load()
        write(f"writing the run for the engine {name}, once, into {exported}", err=True)
        with _replacing(exported) as new:
            export_run(run, new, name, NUMBERS[precision], overwrite=False, say=lambda line: None)
            model = opened(new)
            if precision == "fp32" and isinstance(model, WritingEngine):
                _compare(model, run)
            write_json(new / SUMS, _sums(new))
        return Opened(model, device, precision)
    return Opened(opened(exported), device, precision)


@contextmanager
def _replacing(exported: Path) -> Iterator[Path]:
    """A new folder, which takes its place at the end of the block, unless another process was faster."""
    with writing(exported):
        exported.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".engine-", dir=exported.parent))
    try:
        yield work / "new"
        if not _is_whole(exported):
            remove(exported)
            with writing(exported):
                os.rename(work / "new", exported)
    finally:
        remove(work)


def _pick_device(name: str, wanted: str) -> str:
    if name == "onnx":
        if wanted not in ("auto", "cpu"):
            raise UserError(f"the engine onnx computes on the CPU, and device = {shortened(wanted)}: leave it at auto")
        return "cpu"
    kind, _, number = wanted.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (number and not (kind == "cuda" and number.isdecimal())):
        raise UserError(f"the engine ct2 computes on cpu or cuda, and device = {shortened(wanted)}: leave it at auto")
    (library,) = packages("ctranslate2")
    count = library.get_cuda_device_count()
    if kind == "cuda" and int(number or 0) >= count:
        raise UserError(f"device = {wanted}, but CTranslate2 sees {count} CUDA devices here: leave it at auto")
    return ("cuda" if count else "cpu") if wanted == "auto" else wanted


def _pick_precision(name: str, wanted: str) -> str:
    known = ("fp32", "int8") if name == "ct2" else ("fp32",)
    if wanted not in ("auto", *known):
        raise UserError(
            f"the engine {name} computes with the precision {' or '.join(known)}, not {shortened(wanted)}: choose "
            "that, or another engine"
        )
    return "fp32" if wanted == "auto" else wanted


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sums(exported: Path) -> dict[str, str]:
    return {path.name: _sha256(path) for path in sorted(exported.iterdir()) if path.name != SUMS}


def _is_whole(exported: Path) -> bool:
    """Whether an export is there, with the files that were written."""
    try:
        return bool(json.loads((exported / SUMS).read_bytes()) == _sums(exported))
    except (OSError, ValueError, RecursionError):
        return False


def _compare(model: WritingEngine, run: Any) -> None:
    """Raise a UserError if the engine writes other ids than the model after a few texts."""
    processor, chance = run.processor, torch.Generator().manual_seed(0)
    reader = processor.tokenizers["tokenizer.json"]
    longest = max(1, min(12, (model.limit or 12) // 2))
    decode = DecodeConfig(method="greedy", max_new=WRITTEN, stop=())
    sizes = torch.randint(1, longest + 1, (TEXTS,), generator=chance).tolist()
    texts = [torch.randint(len(reader), (size,), generator=chance).tolist() for size in sizes]
    prompts = [Prompt(ids, WRITTEN) for ids in texts]
    found = [answer.tokens for answer in answered(model.write(processor.tokenizer, prompts, decode))]
    wanted = [answer.tokens for answer in answered(run.predictor.answers(prompts, decode))]
    if found != wanted:
        raise UserError(
            f"{model.name} writes other words than this run, so it is not used: leave out {option_name('--engine')}"
        )
