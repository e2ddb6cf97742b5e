"""What recognize, compress and draw share: pictures from data sets."""

from __future__ import annotations

from typing import cast

import numpy as np

from allyouneed.data.pictures import PictureSplit
from allyouneed.errors import UserError
from allyouneed.tasks.base import M, Task, once
from allyouneed.text import Tokenizer


class PictureTask(Task[M]):
    """A task whose examples are pictures. Unless it has captions, there is no tokenizer."""

    @property
    def picture_shape(self) -> tuple[int, int]:
        """The side of the pictures, and the values per pixel."""
        return self.recipe.model.image, self.recipe.model.channels

    def check(self) -> None:
        self.check_model()

    def make_tokenizers(self) -> dict[str, Tokenizer]:
        return {}

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
