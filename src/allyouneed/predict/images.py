"""Images: recognize and compress read them, and an image tokenizer turns them into codes and back."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allyouneed.batch import Tensors
from allyouneed.config import DecodeConfig, build
from allyouneed.data.batches.augment import ImagePreprocessor
from allyouneed.data.batches.images import ImageBatches, as_tensor
from allyouneed.data.formats.file_paths import is_folder
from allyouneed.data.formats.images import images_in
from allyouneed.data.formats.pixels import BadImageError, decode_frames, is_image
from allyouneed.errors import UserError, option_name, shortened
from allyouneed.figures import contact_sheet
from allyouneed.models.dvae import DVAE, DVAEConfig
from allyouneed.models.labeller import Labeller
from allyouneed.nn.heads import ClassifyHead
from allyouneed.nn.trace import Trace
from allyouneed.predict.answers import Answer
from allyouneed.predict.base import Alignment, Guess, Names, Predictor, best_of
from allyouneed.predict.labels import LabelsPredictor, LabelsProcessor, probabilities
from allyouneed.predict.processor import Processor, compare_shapes, load_processor, load_weights
from allyouneed.recipe import recipe_names
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.tensorfile import chunks, not_finite, parse_tensors

SETTINGS, WEIGHTS = "image_tokenizer.json", "image_tokenizer.safetensors"  # the parts of a run
TOGETHER = 256  # images that are computed at once


class ImageTokenizer:
    """Images (N, H, W, C) of bytes <-> codes (N, codes per image), row by row."""

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
                f"task.image_tokenizer: there is no run in {shortened(path)}: train one on the same images, with "
                f"`ayn train {recipe}`{folder.neighbours()}"
            )
        kind = folder.read_recipe().task_kind
        if kind != "compress":
            raise UserError(
                f"task.image_tokenizer: {path} is a run of the task '{kind}'; the codes of images come from a run of "
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


FRAMES = 1024  # of a clip or a folder, that are read
TOP = 5  # labels that an answer names


class ImageProcessor(Processor):
    """Of a run that reads images: it has no tokenizer."""

    @property
    def image_shape(self) -> tuple[int, int]:
        """The side of the images, and the values per pixel."""
        return self.recipe.model.image, self.recipe.model.channels

    @property
    def longest(self) -> int:
        return int(self.recipe.model.tokens)

    def model_config(self) -> Any:
        return self.recipe.model


class RecognizeProcessor(ImageProcessor, LabelsProcessor):
    mean: Sequence[float] = ()  # of each channel of the training images, from 0 to 1
    std: Sequence[float] = ()

    def take_tokenizers(self, donor: Processor) -> None:
        """The body expects images normalised as those that it has learned from."""
        if isinstance(donor, RecognizeProcessor):
            self.mean, self.std = donor.mean, donor.std

    def build_model(self) -> Labeller:
        body, c = self.build_body(), self.recipe.model
        head = ClassifyHead(body.width, len(self.labels), self.options.pool, c.dropout, (1, 0), c.head_hidden)
        return Labeller(body, head, preprocess=ImagePreprocessor(self.mean, self.std, self.options))

    def extras(self) -> dict[str, Any]:
        return {**super().extras(), "mean": self.mean, "std": self.std}

    def take(self, extras: dict[str, Any]) -> None:
        super().take(extras)
        self.mean, self.std = ([float(value) for value in extras[name]] for name in ("mean", "std"))
        if not len(self.mean) == len(self.std) == self.recipe.model.channels or min(self.std) <= 0:
            raise ValueError


class CompressProcessor(ImageProcessor):
    def same_outputs(self, other: Processor) -> bool:
        return False  # codes mean what their own tokenizer says


class Frames(NamedTuple):
    """An image, or the frames of a clip."""

    given: Any
    pixels: np.ndarray  # (N, H, W, C) bytes


class ImageReader(Predictor):
    """Inputs are images."""

    asks = "the path of an image"
    no_vectors: ClassVar[str] = "it reads images, not texts"
    processor: Any  # an ImageProcessor

    def is_single(self, given: Any) -> bool:
        return isinstance(given, str | Path) or is_image(given) or (isinstance(given, np.ndarray) and given.ndim < 4)

    def expand(self, text: str) -> list[str]:
        """A folder stands for each image in it, and for all of them together."""
        path = Path(text).expanduser()
        return [*_inside(path), text] if is_folder(path) else [text]

    def accept(self, given: Any) -> Any:
        return given

    def read(self, given: Any, decode: DecodeConfig) -> Frames:
        side, channels = self.processor.image_shape
        squares = np.frombuffer(b"".join(self._frames(given)), np.uint8)
        return Frames(given, squares.reshape(-1, side, side, channels))

    def _frames(self, given: Any) -> list[bytes]:
        """The images of an input, which is a path, the bytes of a file, a PIL image, an array (H, W) or (H, W, C), or
        a clip: a list of such, a folder, or a file with several, of which at most FRAMES are read, at equal
        distances."""
        if isinstance(given, list | tuple):
            if not given:
                raise UserError("a clip without frames: give at least one")
            return [frame for one in given for frame in self._frames(one)]
        if isinstance(given, np.ndarray | bytes) or is_image(given):
            return self._decoded(given, "the image")
        if not isinstance(given, str | Path):
            raise UserError(f"an image is expected: its path, a PIL image, or an array; not {type(given).__name__}")
        if not str(given).strip():
            raise UserError("the path is empty: give that of an image")
        path = Path(given).expanduser()
        if is_folder(path):
            inside = _inside(path)
            return [frame for one in inside[:: -(-len(inside) // FRAMES)] for frame in self._decoded(one, one)]
        return self._decoded(path, str(given), FRAMES)

    def _decoded(self, source: Any, name: str, most: int = 1) -> list[bytes]:
        side, channels = self.processor.image_shape
        try:
            return decode_frames(source, side, channels, most)
        except BadImageError as error:
            raise UserError(f"{name}: {error}") from None


class RecognizePredictor(ImageReader, LabelsPredictor):
    Processor = RecognizeProcessor
    table_heading: ClassVar[str] = "likely labels of the image"
    processor: RecognizeProcessor

    def _batches(self, pixels: np.ndarray) -> ImageBatches:
        return ImageBatches(pixels, np.zeros(len(pixels), np.int64), self.processor.longest)

    def _answer(self, inputs: list[Frames], decode: DecodeConfig) -> Iterator[Answer]:
        """The mean over the frames of each input."""
        for read, p in zip(inputs, self._judged(inputs)):
            likely = [(self.labels[i], value) for i, value in best_of(p, TOP) if value >= 0.0005]
            others = "".join(f"  {label} {100 * value:.1f} %" for label, value in likely[1:])
            clip = {"frames": len(read.pixels)} if len(read.pixels) > 1 else {}
            mean = f"  (the mean of {len(read.pixels)} images)" if clip else ""
            yield self.labelled(p, clip, others + mean)

    def size(self, given: Frames) -> int | None:
        return 1 if len(given.pixels) == 1 else None

    def _judged(self, inputs: Sequence[Frames]) -> Iterator[Tensor]:
        """The label probabilities (C,) of each input."""
        if not self.labels:
            raise UserError(
                f"this run has no labels: it is a body to start a training from, with {option_name('--init')}"
            )
        batches = self._batches(np.concatenate([read.pixels for read in inputs]))
        found = iter(probabilities(self.model, batches, self.room, [np.arange(len(batches.sizes))]).values())
        for read in inputs:
            yield torch.stack(list(islice(found, len(read.pixels)))).mean(0)

    def table(self, given: Frames, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """The likely labels of the image."""
        with self.lock:
            (p,) = self._judged([given])
        return [self.guess(str(given.given), p, most)]

    def _tensors(self, given: Frames) -> Tensors:
        return self._batches(given.pixels[:1]).collate(np.arange(1)).to(self.model.device).tensors

    def _names(self, given: Frames, tensors: Tensors) -> list[str]:
        return ["[CLS]", *grid_names(self.recipe.model.grid)]

    def draw_heads(self, found: dict[str, Alignment], given: Frames, place: str, out: Path) -> None:
        """How much [CLS] attends to each patch, by layer and head, over the image; first through all layers. `place`:
        only the heads of this attention."""
        c = self.recipe.model
        pixels = given.pixels[0]
        whole = rollout([one.weights for one in found.values()])
        several = len(next(iter(found.values())).weights)  # heads
        columns = max(2, several)
        maps: list[Tensor | None] = [None, whole[0, 1:]]
        names = ["image", "all layers"]
        for layer, (name, one) in enumerate(found.items(), 1):
            if place in ("", name):
                maps += [None] * (-len(maps) % columns) + list(one.weights[:, 0, 1:])
                names += [""] * (-len(names) % columns) + [f"layer {layer}, head {i + 1}" for i in range(several)]
        sheet = [None if weights is None else lit(pixels, weights.view(c.grid, c.grid).numpy()) for weights in maps]
        contact_sheet([pixels, *sheet[1:]], names, out, "Where [CLS] looks", columns)


class CompressPredictor(ImageReader):
    Processor = CompressProcessor
    writes_images = True
    model: DVAE

    def _answer(self, inputs: list[Frames], decode: DecodeConfig) -> Iterator[Answer]:
        """The codes, row by row; of a clip, of each frame."""
        tokenizer = ImageTokenizer(self.model)
        for read in inputs:
            codes = tokenizer.encode(read.pixels)
            grid = codes.reshape(-1, self.recipe.model.grid)
            text = "\n".join(" ".join(f"{code:{len(str(len(tokenizer) - 1))}}" for code in row) for row in grid)
            details = {"codes": codes.tolist() if len(codes) > 1 else codes[0].tolist()}
            yield Answer(text, codes.ravel().tolist(), 0.0, "stop", details=details, image=tokenizer.decode(codes)[0])

    def _run_traced(self, given: Frames, decode: DecodeConfig, trace: Trace) -> Names:
        """While it makes codes of the image, and an image of the codes."""
        pixels = as_tensor(given.pixels[:1]).to(self.model.device).float() / 255
        self.model.decode(self.model.encode(pixels, trace), trace)
        patches = grid_names(self.recipe.model.grid)
        return lambda place: (patches, patches)

    def write_images(self, asked: Sequence[tuple[Frames, Answer]], out: Path) -> None:
        """Each image beside its copy."""
        images = [one for read, answer in asked for one in (read.pixels[0], answer.image)]
        contact_sheet(images, ["image", "copy"] * len(asked), out)


def grid_names(grid: int) -> list[str]:
    """Row and column of each patch, from 1."""
    return [f"{row}, {column}" for row in range(1, grid + 1) for column in range(1, grid + 1)]


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """(T, T): how much of each token is in each token after all layers, from their attention (H, T, T), if half of a
    token stays what it was in each layer (Abnar and Zuidema, 2020)."""
    found = torch.eye(layers[0].size(-1))
    for weights in layers:
        found = (0.5 * weights.mean(0) + 0.5 * torch.eye(weights.size(-1))) @ found
    return found


def lit(pixels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The image (H, W, C), bright where the weights (G, G) are large and dark where they are small."""
    share = weights / max(float(weights.max()), 1e-9)
    share = share.repeat(pixels.shape[0] // len(share), 0).repeat(pixels.shape[1] // len(share), 1)
    colours = pixels[..., :3] if pixels.shape[2] > 2 else pixels[..., :1].repeat(3, 2)
    return np.rint(colours * (0.15 + 0.85 * share[..., None])).astype(np.uint8)


def _inside(folder: Path) -> list[str]:
    """The paths of the images in a folder, at any depth."""
    images, _ = images_in(folder)
    if not images:
        raise UserError(f"the folder {folder} has no image")
    return [str(path) for path in images]
