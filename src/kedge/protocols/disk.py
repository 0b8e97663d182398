"""What the benchmarks on images on disk have in common."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from kedge.images.readers import open_images
from kedge.images.table import ImageTable

HELD_OUT = (
    "of each trained class 300 images are held out where all have 900, otherwise a sixth of the "
    "smallest, or 20 if that is less"
)


@lru_cache(maxsize=1)  # every seed asks again, and reading takes minutes
def opened(data: str, image_size: int | None, n_channels: int | None) -> ImageTable:
    return open_images(data, image_size, n_channels)


def held_out(table: ImageTable, classes: Sequence[str]) -> int:
    """300 as in the paper where there are 900; else a sixth of the smallest class, but no fewer
    than an episode needs (5 shots and 15 queries) unless that were more than half of it."""
    least = min(len(table.rows_of(name)) for name in classes)
    return 300 if least >= 900 else max(least // 6, min(20, least // 2))
