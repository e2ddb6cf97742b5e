"""The ids that a run reads for a text, whatever it is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from allyouneed.predict.answers import Prompt
from allyouneed.predict.labels import Texts
from allyouneed.predict.questions import TokenizedQuestion
from allyouneed.run import Run
from allyouneed.text.layout import Laid


def ids_of(run: Run, text: str, **decode: Any) -> list[int]:
    read = run.predictor.read(text, run.decode(**decode))
    if isinstance(read, Prompt):
        return read.ids
    if isinstance(read, Laid):
        return read.ids
    if isinstance(read, Texts):
        first, *second = read.tokens
        return run.processor.layout.lay(first, second[0] if second else None, most=run.model.limit).ids
    if isinstance(read, TokenizedQuestion):
        tensors = run.predictor.gather([read]).windows.collate(np.arange(1)).tensors
        return tensors["ids"][0].tolist()
    return [id for row in read for id in row.ids]
