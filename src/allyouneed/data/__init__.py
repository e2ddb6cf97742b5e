"""Files and named data sets -> examples -> batches."""

from __future__ import annotations

from allyouneed.data.sources import Dataset, open_data

__all__ = ["Dataset", "open_data"]
