"""The safetensors format: named tensors -> the bytes of a file, tensor by tensor, and a file -> named tensors.

The bytes are made here rather than by the safetensors library so that they pass through Python's own file I/O
(where a full disk is an OSError), can be hashed on the way, and never need a second copy of the model in memory.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from allyouneed.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TIED = "allyouneed.tied"  # metadata: {"name that is not stored": "name of the same tensor"} as JSON
CHECK = "allyouneed.crc32"  # metadata: `checksum` of the tensors
DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def chunks(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, one tensor at a time. Tied tensors are stored once, under their first name."""
    import torch

    stored, tied = _untie(tensors)
    # The widest numbers first: every tensor then begins at a multiple of its own number's width.
    order = sorted(stored, key=lambda name: (-stored[name].element_size(), name))
    notes = {"format": "pt", **(metadata or {}), **({TIED: json.dumps(tied)} if tied else {})}
    header: dict[str, object] = {"__metadata__": notes}
    end = 0
    for name in order:
        tensor = stored[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _code(name, tensor.dtype), "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        yield stored[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 of the numbers, in the order of a file."""
    found = 0
    for piece in islice(chunks(tensors), 1, None):
        found = zlib.crc32(piece, found)
    return f"{found:08x}"


def read_tensors(path: str | Path, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """Every tensor of a safetensors file, as its checksum says, if it has one; tied names share their memory again."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            # What the library hands out for the CPU is the mapped file itself, at any odd address. A clone lives on
            # when the file is pruned, and lies where the allocator puts tensors, so kernels compute the same bits.
            own = (lambda tensor: tensor.clone()) if str(device) == "cpu" else (lambda tensor: tensor)
            tensors = {name: own(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
            notes = file.metadata() or {}
        tied = json.loads(notes.get(TIED, "{}"))
        if CHECK in notes and notes[CHECK] != checksum(tensors):
            raise ValueError("the checksum differs")
        return tensors | {name: tensors[same] for name, same in tied.items()}
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is damaged, or not a safetensors file ({error})") from error


def read_notes(path: str | Path) -> dict[str, str]:
    """The metadata of a safetensors file that is known to be whole."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def _untie(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors to store, and the other names of those that are the very same memory."""
    stored: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first: dict[object, str] = {}
    for name, tensor in tensors.items():
        memory = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and memory in first:  # empty tensors have no memory to share
            tied[name] = first[memory]
        else:
            first[memory] = name
            stored[name] = tensor
    return stored, tied


def _code(name: str, dtype: torch.dtype) -> str:
    kind = str(dtype).removeprefix("torch.")
    if kind not in DTYPES:
        raise ValueError(f"tensor '{name}' is {kind}; a weight file holds {', '.join(DTYPES)}")
    return DTYPES[kind]
