"""README.md of an exported model: what it is, what it was trained on, and how well it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allyouneed.predict.processor import Processor

PIPELINES = {
    "lm": "text-generation", "pretrain": "fill-mask", "classify": "text-classification", "tag": "token-classification",
    "answer": "question-answering", "embed": "feature-extraction", "recognize": "image-classification",
    "translate": "translation",
}  # fmt: skip
OPENED_BY = {
    "lm": "AutoModelForCausalLM", "pretrain": "AutoModelForMaskedLM", "classify": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification", "answer": "AutoModelForQuestionAnswering", "embed": "AutoModel",
    "recognize": "AutoModelForImageClassification", "translate": "AutoModelForSeq2SeqLM",
}  # fmt: skip


def card(architecture: str, processor: Processor, about: Mapping[str, Any], version: str) -> str:
    kind = processor.recipe.task_kind
    data = about.get("data", {}).get("name") or "not known here: this model was trained elsewhere"
    scores = [
        f"| {split} | {name} | {value:.4g} | `{signature}` |"
        for split, name, value, signature in about.get("scores", ())
    ]
    table = "\n".join(["| split | score | value | how |", "| --- | --- | --- | --- |", *scores]) if scores else "None."
    reader = "AutoImageProcessor" if kind == "recognize" else "AutoTokenizer"
    return f"""---
library_name: transformers
pipeline_tag: {PIPELINES[kind]}
tags:
- allyouneed
---

# {architecture}

A `{processor.recipe.model_kind}` for the task `{kind}`, exported from allyouneed {version}.

```python
from transformers import {OPENED_BY[kind]}, {reader}

model = {OPENED_BY[kind]}.from_pretrained(".")
reader = {reader}.from_pretrained(".")
```

## Data

{data}

## Scores

{table}
"""
