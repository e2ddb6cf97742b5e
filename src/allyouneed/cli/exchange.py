"""ayn import, ayn export: models of other libraries become runs, and runs become theirs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from allyouneed.cli.common import Overwrite, RunPath, argument, option
from allyouneed.terminal import say, write


def import_command(
    path: Annotated[str, argument("PATH", "A folder of transformers, a .gguf, a llama2.c .bin, or hf:NAME.")],
    out: Annotated[Path | None, option("RUN", "Folder of the run.  [default: runs/PATH]")] = None,
    architecture: Annotated[
        str, option("NAME", "Read it as this, such as BertForMaskedLM; leave out other heads.", "--as")
    ] = "",
    overwrite: Overwrite = False,
) -> None:
    """Make a run of a model of another library: GPT-2, Llama, Mistral, Qwen2, BERT, DistilBERT,
    RoBERTa, ViT, Marian or Pegasus. Nothing in its files is executed.

    \b
    Example:
      ayn import downloads/gpt2 --out runs/gpt2
      ayn use runs/gpt2 "Once upon a time"
    """
    from allyouneed.exchange.hub import HUB, find_model
    from allyouneed.exchange.importing import import_run

    name = Path(path.removeprefix(HUB)).absolute().name
    source = find_model(path.removeprefix(HUB), say) if path.startswith(HUB) else Path(path)
    folder = out or Path("runs") / name.removesuffix(".gguf").removesuffix(".bin")
    import_run(source, folder, architecture=architecture, overwrite=overwrite, say=say)
    write(f"try:\n  {shlex.join(['ayn', 'use', str(folder)])}")


def export_command(
    run: RunPath,
    out: Annotated[Path, argument("DIR", "Folder to write; it must be new or empty.")],
    to: Annotated[
        str, option("NAME", "hf, onnx (for ONNX Runtime) or ct2 (CTranslate2).", words=("hf", "onnx", "ct2"))
    ],
    numbers: Annotated[str, option("TYPE", "ct2: weights as float32 or int8.", words=("float32", "int8"))] = "float32",
    overwrite: Overwrite = False,
) -> None:
    """Write a run for another library. What that library cannot express is refused by name.

    \b
    Example:
      ayn export runs/reviews exported/reviews --to hf
      ayn export runs/en-it exported/en-it --to ct2 --numbers int8
    """
    from allyouneed.run import load

    made = load(run, "cpu", "fp32").export(out, to, numbers, overwrite, say=say)
    write(f"wrote {len(made)} files into {out}")
