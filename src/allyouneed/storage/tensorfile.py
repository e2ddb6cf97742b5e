"""The safetensors format: named tensors -> the bytes of a file, tensor by tensor, and a file -> named tensors.

The bytes are made here, not by the safetensors library, for three reasons: they pass through Python's own file I/O
(where a full disk is an OSError), they can be hashed on the way, and no second copy of the model is needed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allyouneed.errors import UserError, shortened

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TIED = "allyouneed.tied"  # metadata: {"name that is not stored": "name of the same tensor"} as JSON
CHECK = "allyouneed.crc32"  # metadata: `checksum` of the tensors
MOST_NAMED = 20  # tensors of one kind in a message
DTYPES = {  # name in torch -> name in the file
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8",
    "bool": "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """What a safetensors file says of its tensors. `shapes` has the tied names too."""

    shapes: dict[str, tuple[int, ...]]
    tied: dict[str, str]
    notes: dict[str, str]


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


def read_header(path: str | Path) -> Header:
    """The names, shapes and notes of a safetensors file. Nothing but the header is read, and what it says of sizes is
    believed only if it agrees with the size of the file."""
    with _opened(path, "np") as file:
        return _header(file)


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file. A checksum in the notes must agree; tied names share their memory again."""
    with _opened(path, "pt") as file:
        header = _header(file)
        # What the library hands out is the mapped file itself, at any odd address. A clone lives on when the file
        # is pruned, and lies where the allocator puts tensors, so kernels compute the same bits.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if CHECK in header.notes and header.notes[CHECK] != checksum(tensors):
            raise ValueError("the checksum differs")
        return tensors | {name: tensors[same] for name, same in header.tied.items()}


def read_tensor(path: str | Path, name: str) -> Tensor:
    """One tensor of a safetensors file."""
    with _opened(path, "pt") as file:
        tensor: Tensor = file.get_tensor(name)
        return tensor.clone()


def check_fit(found: Mapping[str, tuple[int, ...]], needed: Mapping[str, tuple[int, ...]], what: str) -> None:
    """Raise a UserError that names all tensors that are missing, unknown or of another shape than the one needed.
    `what` does not fit what."""
    problems = {
        "missing": [shortened(name) for name in needed if name not in found],
        "unknown": [shortened(name) for name in found if name not in needed],
        "of another shape": [
            f"{shortened(name)} has {found[name]} instead of {shape}"
            for name, shape in needed.items()
            if found.get(name, shape) != shape
        ],
    }
    listed = [
        f"{problem}: {', '.join(several[:MOST_NAMED])}"
        + (f" and {len(several) - MOST_NAMED:,} more" if len(several) > MOST_NAMED else "")
        for problem, several in problems.items()
        if several
    ]
    if listed:
        raise UserError(f"{what}: {'; '.join(listed)}")


def parse_tensors(data: bytes, name: str) -> tuple[Header, dict[str, Tensor]]:
    """The header and the tensors of a safetensors file called `name` that is in memory. It has no tied tensors."""
    from safetensors.torch import load

    with _damaged(name):
        tensors = load(data)
        return Header({name: tuple(tensor.shape) for name, tensor in tensors.items()}, {}, {}), tensors


@contextmanager
def _opened(path: str | Path, framework: str) -> Iterator[Any]:
    """A file as the safetensors library opens it: it checks the header."""
    from safetensors import safe_open

    if not Path(path).is_file():
        raise UserError(f"there is no file {path}")
    with _damaged(path), safe_open(path, framework=framework) as file:
        yield file


@contextmanager
def _damaged(name: object) -> Iterator[None]:
    """Turn what a damaged file leads to into a sentence that names the file."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{name} is damaged, or not a safetensors file ({error})") from error


def _header(file: Any) -> Header:
    notes = file.metadata() or {}
    shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    tied = json.loads(notes.get(TIED, "{}"))
    return Header(shapes | {name: shapes[same] for name, same in tied.items()}, tied, notes)


def not_finite(tensors: Mapping[str, Tensor]) -> str:
    """The name of the first tensor that holds NaN or an infinite number; "" if none does."""
    import torch

    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            numbers = tensor.detach() if tensor.element_size() > 1 else tensor.detach().float()
            if not torch.isfinite(numbers).all():
                return name
    return ""


def _untie(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors to store, and the other names of those that share the same memory."""
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
