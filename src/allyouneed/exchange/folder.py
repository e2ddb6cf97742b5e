"""A model of another library, whatever files it came in; and a folder as the transformers library saves it."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from allyouneed.errors import UserError, shortened
from allyouneed.exchange.families import find_family
from allyouneed.exchange.options import UNUSED, USED, read_json, read_text
from allyouneed.exchange.vocabularies import read_tokenizers, tokenizer_config
from allyouneed.storage.tensorfile import read_header, read_tensor
from allyouneed.text import Tokenizer

MOST_CHAT = 1 << 20  # bytes of a chat template
POOLS = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max", "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
}  # fmt: skip
NAMES = ("model.safetensors", "pytorch_model.bin")
MOST_SHARED = 4  # times that the same bytes may be in several tensors, on average


class Weights(NamedTuple):
    """The names and shapes of all tensors, known before any is read; a tensor is read when it is asked for."""

    shapes: dict[str, tuple[int, ...]]
    get: Callable[[str], Tensor]


@dataclass(frozen=True)
class Source:
    """`config` is what the transformers library has in config.json, and the tensors have the names that it gives them.
    `tokenizers` are by the names of their files in a run: tokenizer.json, and tokenizer.target.json if a translator has
    another one for the target. `chat` is a chat template in Jinja; `pool` is how sentence-transformers makes one
    vector of a text."""

    path: Path
    config: dict[str, Any]
    weights: Weights
    tokenizers: dict[str, Tokenizer] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)  # generation_config.json
    chat: str = ""
    images: dict[str, Any] = field(default_factory=dict)  # preprocessor_config.json
    pool: str = ""  # of sentence-transformers
    named: dict[str, str] = field(default_factory=dict)  # {"eos_token": "</s>"}, as a chat template writes them


def read_folder(path: Path, architecture: str = "") -> Source:
    """What is in the folder. The weights stay on the disk until they are asked for. A model that this library does not
    have is refused before any other file is opened."""
    if not os.path.isfile(path / "config.json"):
        raise UserError(f"{path} has no config.json: a folder as the transformers library saves it has one")
    config = read_json(path / "config.json")
    family, head = find_family(config, architecture)
    ids = {name: config[name] for name in ("eos_token_id", "decoder_start_token_id") if name in config}
    older = {name: config[name] for name in USED | UNUSED.keys() if name in config}
    settings = tokenizer_config(path)
    return Source(
        path,
        config,
        read_weights(path),
        read_tokenizers(path, config["model_type"]) if family.kind != "vit" else {},
        ids | (read_json(path / "generation_config.json") or older),
        _chat(path, settings),
        read_json(path / "preprocessor_config.json"),
        _pool(path) if head.task == "embed" else "",
        {name: token for name, token in settings.items() if name.endswith("_token") and isinstance(token, str)},
    )


def _pool(path: Path) -> str:
    """How sentence-transformers makes one vector of those of the tokens; "" if it is not said. Its other modules are
    refused, but scaling the vector to length one, which changes no cosine."""
    file = path / "modules.json"
    listed = read_json(file, list)
    kinds = [str(one.get("type")).rsplit(".", 1)[-1] if isinstance(one, dict) else "" for one in listed]
    if strange := [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]:
        raise UserError(f"{file}: this library has no module {strange[0]} after the model")
    if read_json(path / "sentence_bert_config.json").get("do_lower_case") is True:
        raise UserError(f"{path / 'sentence_bert_config.json'}: do_lower_case = true is not supported")
    given = read_json(path / "1_Pooling" / "config.json")
    chosen = [name for name, value in given.items() if name.startswith("pooling_mode_") and value is True]
    if isinstance(given.get("pooling_mode"), str):
        chosen = [f"pooling_mode_{given['pooling_mode']}_tokens".replace("cls_tokens", "cls_token")]
    if len(chosen) > 1 or not {*chosen} <= POOLS.keys():
        what = f"{' with '.join(chosen)} is not supported"
        raise UserError(f"1_Pooling/config.json: {what}; this library has one of {', '.join(POOLS)}")
    return POOLS[chosen[0]] if chosen else ""


def _chat(path: Path, settings: dict[str, Any]) -> str:
    """The template in its own file or in tokenizer_config.json; of several that one of the name "default"."""
    if os.path.isfile(path / "chat_template.jinja"):
        return read_text(path / "chat_template.jinja", MOST_CHAT)
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {str(one.get("name")): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else ""


def read_weights(folder: Path) -> Weights:
    """The weights in a folder."""
    shapes, files, loaded = dict[str, tuple[int, ...]](), dict[str, Path](), dict[str, Tensor]()
    for path in _files(folder):
        tensors = _open_bin(path) if path.suffix == ".bin" else {}
        found = read_header(path).shapes if path.suffix != ".bin" else {n: tuple(t.shape) for n, t in tensors.items()}
        shapes |= found
        loaded |= tensors
        files |= dict.fromkeys(found, path)
    return Weights(shapes, lambda name: loaded[name] if name in loaded else read_tensor(files[name], name))


def _files(folder: Path) -> list[Path]:
    """One file, or those that an index names, which are beside it."""
    for name in NAMES:
        if os.path.isfile(folder / name):
            return [folder / name]
        index = folder / f"{name}.index.json"
        if os.path.isfile(index):
            listed = read_json(index).get("weight_map")
            if not isinstance(listed, dict):
                raise UserError(f"{index} is damaged: it has no weight_map, which names the file of each tensor")
            files = sorted(set(map(str, listed.values())))
            for file in files:
                if os.path.basename(file) != file or not os.path.isfile(folder / file):
                    raise UserError(f"{index} names the file {shortened(file)}, which is not there")
            return [folder / file for file in files]
    raise UserError(f"{folder} has no weights: neither {NAMES[0]} nor {NAMES[1]}, nor an index of several files")


def _open_bin(path: Path) -> dict[str, Tensor]:
    """The tensors of a .bin, which stay on the disk until they are used. It is opened with weights-only loading: what
    asks to run code is refused."""
    import torch

    try:
        mapped = zipfile.is_zipfile(path)  # files of before 2020 are not, and are read whole
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other protocols; errors are reported below
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # the library raises nearly anything, and says little that helps
        cut = f"it may be cut off after its {os.path.getsize(path):,} bytes"
        reason = "it wants to run code" if "weights_only" in str(error) else cut
        raise UserError(f"{path} is damaged, or not a file of tensors only: {reason}") from None
    if not isinstance(found, dict) or not all(isinstance(t, Tensor) for t in found.values()):
        raise UserError(f"{path} holds something else than tensors by name")
    for name, tensor in found.items():
        plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        if not plain or tensor.is_nested or tensor.is_complex():
            raise UserError(f"{path}: the tensor {shortened(name)} is of a kind that models do not have")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise UserError(f"{path}: the tensor {shortened(name)} repeats values, which weights do not")
    if sum(t.numel() * t.element_size() for t in found.values()) > MOST_SHARED * os.path.getsize(path):
        raise UserError(f"{path}: its tensors are far larger together than the file")
    return {str(name): tensor for name, tensor in found.items()}
