"""The weights in a folder of another library: safetensors or the older .bin, in one file or in several."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from allyouneed.errors import UserError, shortened
from allyouneed.exchange.options import read_json
from allyouneed.storage.tensorfile import read_header

NAMES = ("model.safetensors", "pytorch_model.bin")
MOST_SHARED = 4  # times that the same bytes may be in several tensors, on average


class WeightFiles:
    """The names and shapes of all tensors; a tensor is read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.files = _files(folder)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._where: dict[str, Path] = {}
        self._open: dict[Path, Mapping[str, Tensor]] = {}
        for path in self.files:
            for name, shape in self._shapes(path).items():
                self.shapes[name], self._where[name] = shape, path

    def get(self, name: str) -> Tensor:
        path = self._where[name]
        if path.suffix == ".bin":
            return self._open[path][name]
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
                return tensor.clone()
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} is damaged: {error}") from None

    def _shapes(self, path: Path) -> dict[str, tuple[int, ...]]:
        if path.suffix != ".bin":
            return read_header(path).shapes
        self._open[path] = _open_bin(path)
        return {name: tuple(tensor.shape) for name, tensor in self._open[path].items()}


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


def _open_bin(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a .bin, which stay on the disk until they are used. It is opened with weights-only loading: what
    asks to run code is refused."""
    import torch

    try:
        mapped = zipfile.is_zipfile(path)  # files of before 2020 are not, and are read whole
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other protocols; what is wrong is told below
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
