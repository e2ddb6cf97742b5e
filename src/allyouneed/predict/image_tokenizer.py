"""ImageTokenizer: a trained dVAE as a tokenizer of pictures. It is a part of a run that draws."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from allyouneed.config import build
from allyouneed.data.batches.pictures import as_tensor
from allyouneed.errors import UserError, shortened
from allyouneed.models.dvae import DVAE, DVAEConfig
from allyouneed.predict.loading import compare_shapes, load_processor, load_weights
from allyouneed.recipe import recipe_names
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.tensorfile import chunks, not_finite, parse_tensors

SETTINGS, WEIGHTS = "image_tokenizer.json", "image_tokenizer.safetensors"  # the parts of a run
TOGETHER = 256  # pictures that are computed at once


class ImageTokenizer:
    """Pictures (N, H, W, C) of bytes <-> codes (N, codes per picture), row by row."""

    def __init__(self, model: DVAE) -> None:
        self.model, self.config = model.eval(), model.config

    @staticmethod
    def load(path: str) -> ImageTokenizer:
        """Of a run of the task compress."""
        folder = RunFolder(Path(path))
        if not os.path.isfile(folder.recipe):
            named = Path(path).name.replace("-", "/", 1)  # runs/compress-emoji is made by compress/emoji
            recipe = named if named in recipe_names() else "compress/shapes"
            raise UserError(
                f"task.image_tokenizer: there is no run in {shortened(path)}: train one on the same pictures, with "
                f"`ayn train {recipe}`{folder.neighbours()}"
            )
        kind = folder.read_recipe().task_kind
        if kind != "compress":
            raise UserError(
                f"task.image_tokenizer: {path} is a run of the task '{kind}'; the codes of pictures come from a run of "
                "the task compress"
            )
        processor = load_processor(folder)
        model = processor.build_model()
        model.load_state_dict(load_weights(folder, processor))
        return ImageTokenizer(model)

    def parts(self) -> dict[str, bytes]:
        """The files of a run."""
        tensors = {name: tensor.cpu() for name, tensor in self.model.state_dict().items()}
        return {
            SETTINGS: json.dumps(vars(self.config), indent=2).encode(),
            WEIGHTS: b"".join(bytes(piece) for piece in chunks(tensors)),
        }

    @staticmethod
    def read(parts: Mapping[str, bytes]) -> ImageTokenizer:
        """What `parts` has written. Nothing is allocated before the sizes in both files agree."""
        try:
            config: DVAEConfig = build(DVAEConfig, json.loads(parts[SETTINGS]), SETTINGS)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"{SETTINGS} is damaged, or config.json does not list it") from None
        header, tensors = parse_tensors(parts.get(WEIGHTS, b""), WEIGHTS)
        compare_shapes(lambda: DVAE(config), header, Path(WEIGHTS), f"the codebook that {SETTINGS} describes")
        if broken := not_finite(tensors):
            raise UserError(f"{WEIGHTS} cannot be used: {broken} holds numbers that are not finite")
        model = DVAE(config)
        model.load_state_dict(tensors)
        return ImageTokenizer(model)

    @cached_property
    def fingerprint(self) -> str:
        """Two tokenizers with the same one give the same codes."""
        parts = self.parts()
        return hashlib.blake2b(parts[SETTINGS] + parts[WEIGHTS], digest_size=16).hexdigest()

    def __len__(self) -> int:
        """How many codes there are."""
        return int(self.config.codes)

    @torch.inference_mode()
    def encode(self, pixels: np.ndarray) -> np.ndarray:
        rows = [
            self.model.encode(as_tensor(pixels[at : at + TOGETHER]).to(self.model.device).float() / 255).cpu()
            for at in range(0, len(pixels), TOGETHER)
        ]
        return torch.cat(rows).numpy() if rows else np.zeros((0, self.config.tokens), np.int64)

    @torch.inference_mode()
    def decode(self, codes: np.ndarray) -> np.ndarray:
        rows = [
            self.model.decode(torch.from_numpy(codes[at : at + TOGETHER]).to(self.model.device)).float().cpu()
            for at in range(0, len(codes), TOGETHER)
        ]
        pixels = (torch.cat(rows).clamp(0, 1) * 255).round().byte()
        return pixels.permute(0, 2, 3, 1).contiguous().numpy()
