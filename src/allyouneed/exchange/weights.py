"""The weights in a folder of another library: safetensors or the older .bin, in one file or in several."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from allyouneed.errors import UserError, shortened
from allyouneed.exchange.options import read_json
from allyouneed.storage.tensorfile import read_header, read_tensor

NAMES = ("model.safetensors", "pytorch_model.bin")
MOST_SHARED = 4  # times that the same bytes may be in several tensors, on average


class Weights(NamedTuple):
    """The names and shapes of all tensors, known before any is read; a tensor is read when it is asked for."""

    shapes: dict[str, tuple[int, ...]]
    get: Callable[[str], Tensor]


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
