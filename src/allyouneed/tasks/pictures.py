"""What recognize, compress and draw share: pictures in, from data sets and from users."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from allyouneed.config import DecodeConfig
from allyouneed.data.decoding import BadPictureError, check, damage_told, decode, decode_frames, is_image, square
from allyouneed.data.paths import is_folder
from allyouneed.data.picture_arrays import to_image
from allyouneed.data.picture_files import is_hidden, is_picture_name
from allyouneed.data.pictures import PictureSplit
from allyouneed.errors import UserError
from allyouneed.predict.answers import Prompt
from allyouneed.tasks.base import M, Task, once
from allyouneed.text import Tokenizer

FRAMES = 1024  # of a clip or a folder, that are looked at


class PictureTask(Task[M]):
    """A task whose examples are pictures."""

    @property
    def picture_shape(self) -> tuple[int, int]:
        """The side of the pictures, and the values per pixel."""
        return self.recipe.model.image, self.recipe.model.channels

    @once
    def pixels(self, split: str) -> np.ndarray:
        """(N, H, W, C) bytes; damaged pictures leave the split here."""
        pictures, (side, channels) = cast(PictureSplit, self.data.splits[split]), self.picture_shape
        found = pictures.stored(self.token_key(split, "pixels"), side, channels, self.recipe.data)
        if not len(found):
            raise UserError(f"the {split} split has no pictures: give more data or another data.{split}_part")
        return found

    def damaged(self) -> list[str]:
        """A sentence for the report, if pictures were left out."""
        splits = {name: cast(PictureSplit, split) for name, split in self.data.splits.items()}
        told = ", ".join(f"{split.damaged:,} of {name}" for name, split in splits.items() if split.damaged)
        return [f"damaged pictures that are left out (data.skip_bad): {told}"] if told else []


class PictureReader(PictureTask[M]):
    """A task whose inputs are pictures: it has no tokenizer."""

    shape = "pictures"
    asks = "the path of a picture"
    no_vectors = "it reads pictures, not texts"

    def check(self) -> None:
        self.check_model()

    def make_tokenizers(self) -> dict[str, Tokenizer]:
        return {}

    def model_config(self) -> Any:
        return self.recipe.model

    def as_pixels(self, pictures: Sequence[bytes]) -> np.ndarray:
        """(N, H, W, C)"""
        side, channels = self.picture_shape
        return np.frombuffer(b"".join(pictures), np.uint8).reshape(-1, side, side, channels)

    def single(self, given: Any) -> bool:
        several = isinstance(given, np.ndarray) and given.ndim > 3
        return super().single(given) or isinstance(given, Path) or (_is_picture(given) and not several)

    def listed(self, text: str) -> list[str]:
        """A folder stands for each picture in it, and for all of them together."""
        return [*_inside(text), text] if is_folder(Path(text).expanduser()) else [text]

    def joined(self, given: Any) -> Any:
        """A path, an image of Pillow, an array (H, W) or (H, W, C), or the frames of a clip, which are such."""
        if isinstance(given, list | tuple):
            return [one if isinstance(one, str) else self.joined(one) for one in given]
        if isinstance(given, Path):
            return str(given)
        if not _is_picture(given):
            raise UserError(
                f"a picture is expected: its path, an image of Pillow, or an array; not {type(given).__name__}"
            )
        return given

    def prompt(self, model: M, text: Any, decode: DecodeConfig) -> Prompt:
        self.frames(text)
        return Prompt([], 0)

    def frames(self, given: Any) -> list[bytes]:
        """The pictures of an input: one, or those of a clip, which is a list, a folder, or a file with several: at
        most FRAMES, at equal distances."""
        if isinstance(given, Path):
            given = str(given)
        if isinstance(given, list):
            if not given:
                raise UserError("a clip without frames: give at least one")
            return [frame for one in given for frame in self.frames(one)]
        if not isinstance(given, str):
            return [self._bytes(given)]
        if not given.strip():
            raise UserError("the path is empty: give that of a picture")
        path = Path(given).expanduser()
        if is_folder(path):
            inside = _inside(str(path))
            return [self._bytes(one) for one in inside[:: -(-len(inside) // FRAMES)]]
        try:
            return decode_frames(path, *self.picture_shape, FRAMES)
        except BadPictureError as error:
            raise UserError(f"{given}: {error}") from None

    def _bytes(self, given: Any) -> bytes:
        try:
            if isinstance(given, str):
                return decode(given, *self.picture_shape)
            if isinstance(given, np.ndarray):
                return square(to_image(given), *self.picture_shape)
            check(given)
            with damage_told():
                return square(given, *self.picture_shape)
        except BadPictureError as error:
            raise UserError(f"{given if isinstance(given, str) else 'the picture'}: {error}") from None


def _inside(folder: str) -> list[str]:
    root = Path(folder).expanduser()
    files = (path for path in root.rglob("*") if is_picture_name(path.name) and not is_hidden(path, root))
    found = sorted(map(str, files))
    if not found:
        raise UserError(f"the folder {folder} has no picture")
    return found


def _is_picture(given: Any) -> bool:
    return isinstance(given, np.ndarray) or is_image(given)
