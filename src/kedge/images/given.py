"""What the Python API takes in place of a path: arrays, lists of images, or a data set.

Nothing is copied or kept but labels; pictures are asked for again when they are fetched.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from kedge import progress
from kedge.errors import KedgeError
from kedge.images.pictures import Picture
from kedge.images.pixels import array_of, image_of, whole_number
from kedge.images.readers.contract import Catalogue, Pictures
from kedge.images.readers.parquet import distinct, numbered
