"""hf:PATH and hf:NAME: models of the transformers library, imported into the cache."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from allyouneed.data.fetch import cache_folder
from allyouneed.errors import UserError
from allyouneed.exchange.importing import import_run
from allyouneed.version import __version__

HUB = "hf:"  # before the name of a model
FILES = ["*.json", "*.safetensors", "*.txt", "*.spm", "*.jinja", "tokenizer.model"]
OLDER = ["pytorch_model*.bin"]  # the same weights; many models have both
NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)?")


def imported(name: str, say: Callable[[str], None]) -> Path:
    """The run folder of a local folder or file, or of a model on the Hugging Face Hub. It is imported once, and again
    when the files have changed."""
    source = find_model(name, say)
    out = cache_folder() / "imported" / f"{Path(name).name}-{_fingerprint(source)}"
    if not os.path.isfile(out / "model.safetensors"):
        import_run(source, out, overwrite=True, say=say)
    return out


def with_imported(settings: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Settings in which "train.init=hf:NAME" has become the run folder of that model."""
    key = f"train.init={HUB}"
    return [f"train.init={imported(s.removeprefix(key), say)}" if s.startswith(key) else s for s in settings]


def find_model(name: str, say: Callable[[str], None]) -> Path:
    """A local folder or file, or else the downloaded files of a model on the Hugging Face Hub."""
    source = Path(os.path.expanduser(name))
    return source if os.path.exists(source) else _download(name, say)


def _fingerprint(source: Path) -> str:
    """Changes with the names, sizes and times of the files, and with the version of this library."""
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    digest = hashlib.sha256(f"{__version__} {source.resolve()}".encode())
    for path in files:
        about = path.stat()
        digest.update(f"{path} {about.st_size} {about.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _download(name: str, say: Callable[[str], None]) -> Path:
    if not NAME.fullmatch(name):
        raise UserError(f"there is no folder {name}, and it is not the name of a model either")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise UserError(
            f"there is no folder {name}; to download the model of that name: pip install huggingface_hub"
        ) from None
    say(f"looking for {name} on the Hugging Face Hub")
    try:
        found = Path(snapshot_download(name, allow_patterns=FILES))
        if not any(found.glob("*.safetensors")):
            found = Path(snapshot_download(name, allow_patterns=FILES + OLDER))
        return found
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        first = str(error).strip().splitlines()[:1]
        raise UserError(
            f"there is no folder {name}, and the model of that name cannot be downloaded: {''.join(first)[:200]}"
        ) from None
