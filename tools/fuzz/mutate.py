"""Changes of bytes and of lists, at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
NUMBERS = (
    *(0, 1, 2, 7, 127, 128, 255, 256, 511, 512, 4095, 65535, 1 << 20, (1 << 31) - 1, 1 << 31),
    *((1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1),
)
BLOCK = 16  # bytes that are moved at most, but for a few times


def change_bytes(rng: random.Random, data: bytes) -> bytes:
    """A few bytes are changed, removed, repeated or added."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        if not changed:
            return rng.randbytes(rng.randrange(1, BLOCK))
        at, n = rng.randrange(len(changed)), rng.randrange(1, BLOCK)
        n = rng.randrange(len(changed)) + 1 if rng.random() < 0.05 else n
        kind = rng.randrange(6)
        if kind == 0:
            changed[at] = rng.randrange(256)
        elif kind == 1:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del changed[at : at + n]
        elif kind == 3:
            changed[at:at] = changed[at : at + n] * rng.choice((1, 1, 1, 30))
        elif kind == 4:
            changed[at:at] = rng.randbytes(n)
        else:
            size = rng.choice((1, 2, 4, 8))
            number = rng.choice(NUMBERS) & ((1 << 8 * size) - 1)
            changed[at : at + size] = number.to_bytes(size, rng.choice(("little", "big")))
    return bytes(changed)


def repeat_piece(rng: random.Random, data: bytes, n_bytes: int) -> bytes:
    """A few bytes are repeated up to so many: what takes quadratic time or memory shows then."""
    at, n = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 3, 8, 64, 512))
    piece = data[at : at + n] or b"\0"
    return data[:at] + piece * (n_bytes // len(piece)) + data[at + n :]


def change_list(
    rng: random.Random, items: Sequence[T], change: Callable[[T], T], new: Callable[[], T]
) -> list[T]:
    """Some items are changed, removed, repeated, moved or added."""
    changed = list(items)
    for _ in range(rng.choice((1, 1, 2, 4))):
        kind = rng.randrange(7)
        if kind == 0 or not changed:
            changed.insert(rng.randrange(len(changed) + 1), new())
            continue
        at = rng.randrange(len(changed))
        if kind == 1:
            del changed[at : at + rng.choice((1, 1, 2, 8))]
        elif kind == 2:
            n = rng.choice((1, 1, 2, 8))
            changed[at:at] = changed[at : at + n] * rng.choice((1, 1, 2, 50))
        elif kind == 3:
            other = rng.randrange(len(changed))
            changed[at], changed[other] = changed[other], changed[at]
        else:
            changed[at] = change(changed[at])
    return changed
