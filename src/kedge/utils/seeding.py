"""Random numbers that depend on a key only, not on a device, a process or earlier draws."""

from __future__ import annotations

import zlib

import numpy as np


def generator(*key: int | str) -> np.random.Generator:
    """A generator for a key such as ("train", seed, round, epoch)."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key]
    return np.random.default_rng(np.random.SeedSequence(words))


def torch_seed(*key: int | str) -> int:
    """A seed for PyTorch's generators (initial weights, DropBlock)."""
    return int(generator(*key).integers(2**63))
