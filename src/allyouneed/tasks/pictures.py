"""What recognize, compress and draw share: pictures from data sets, and those that a test shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from allyouneed.data.pictures import PictureSplit
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.figures import contact_sheet
from allyouneed.predict.pictures import PictureProcessor
from allyouneed.tasks.base import M, Task, once
from allyouneed.text import Tokenizer


class PictureTask(PictureProcessor, Task[M]):
    """A task whose examples are pictures. Unless it has captions, there is no tokenizer."""

    sheet_name: ClassVar[str]  # of the file with the contact sheet of a test
    sheet_title: ClassVar[str]
    sheet: list[tuple[np.ndarray, str]]  # of the last test: pictures, and the text below each

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sheet = []

    def make_tokenizers(self) -> dict[str, Tokenizer]:
        return super().make_tokenizers() if self.shape == "captions" else {}

    def rows(self, split: str) -> list[Ragged]:
        """Pictures have no length."""
        return []

    @once
    def pixels(self, split: str) -> np.ndarray:
        """(N, H, W, C) bytes; damaged pictures leave the split here."""
        pictures, (side, channels) = cast(PictureSplit, self.data.splits[split]), self.picture_shape
        found = pictures.stored(self.token_key(split, "pixels"), side, channels, self.recipe.data)
        if not len(found):
            raise UserError(f"the {split} split has no pictures: give more data or another data.{split}_part")
        return found

    def study(self) -> None:
        for split in self.data.splits:
            self.pixels(split)  # damaged pictures leave the split
        super().study()

    def notes(self) -> list[str]:
        """Which pictures were left out."""
        splits = {name: cast(PictureSplit, split) for name, split in self.data.splits.items()}
        counts = ", ".join(f"{split.damaged:,} of {name}" for name, split in splits.items() if split.damaged)
        return [f"damaged pictures that are left out (data.skip_bad): {counts}"] if counts else []

    def write_figures(self, folder: Path, mark: str) -> list[Path]:
        """Also the contact sheet of the last test."""
        made = super().write_figures(folder, mark)
        if self.sheet:
            made.append(folder / f"{self.sheet_name}{mark}.png")
            pictures, texts = zip(*self.sheet)
            contact_sheet(pictures, texts, made[-1], self.sheet_title)
        return made
