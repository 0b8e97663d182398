"""Augmentation of batches against loops over single pixels."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kedge.data.augment import Augmentation, augment, draw_augmentation, jitter, padding, to_float
from kedge.utils.seeding import generator

SIZE = 16
PAD = 2  # 8 pixels at 84 are 1.5 here


def images(n: int, channels: int, size: int = SIZE) -> Tensor:
    seeded = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, channels, size, size), generator=seeded, dtype=torch.uint8)


def how(n: int, colour: Sequence[float] = (1, 1, 1)) -> Augmentation:
    """No crop and no flip."""
    pad, factors = torch.full((n,), PAD), torch.tensor(colour, dtype=torch.float32)
    return Augmentation(
        pad, pad, torch.full((n,), False), factors.expand(n, 3), torch.zeros(n).long()
    )


def clamp(value: float) -> float:
    return min(1.0, max(0.0, value))


def grey(rgb: Sequence[float]) -> float:
    return 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]


def slow_crop(image: list, pad: int, top: int, left: int, mirrored: bool) -> list:
    """channels × h × w of 0…255 to the same of 0…1."""
    out = []
    for channel in image:
        h, w = len(channel), len(channel[0])
        rows = []
        for y in range(h):
            row = []
            for x in range(w):
                from_y, from_x = y + top - pad, x + left - pad
                inside = 0 <= from_y < h and 0 <= from_x < w
                row.append(channel[from_y][from_x] / 255 if inside else 0.0)
            rows.append(row[::-1] if mirrored else row)
        out.append(rows)
    return out


def slow_jitter(image: list, brightness: float, contrast: float, saturation: float) -> list:
    """Brightness scales; contrast moves away from the mean grey; saturation from each grey."""
    h, w = len(image[0]), len(image[0][0])
    pixels = {(y, x): [c[y][x] for c in image] for y in range(h) for x in range(w)}
    pixels = {at: [clamp(brightness * v) for v in rgb] for at, rgb in pixels.items()}
    mean = sum(grey(rgb) for rgb in pixels.values()) / len(pixels)
    pixels = {at: [clamp(mean + contrast * (v - mean)) for v in p] for at, p in pixels.items()}
    for at, rgb in pixels.items():
        pixels[at] = [clamp(grey(rgb) + saturation * (v - grey(rgb))) for v in rgb]
    return [[[pixels[y, x][c] for x in range(w)] for y in range(h)] for c in range(len(image))]


@pytest.mark.parametrize(("channels", "size", "pad"), [(1, 16, 2), (3, 16, 2), (1, 28, 3)])
def test_batch_equals_the_loops(channels: int, size: int, pad: int) -> None:
    assert padding(size) == pad
    assert padding(84) == 8
    batch = images(6, channels, size)
    drawn = draw_augmentation(generator("augment", 3), 1, 6, size).of(0, 6)
    got = augment(batch, drawn)
    assert got.shape == batch.shape
    for i in range(6):
        top, left = drawn.top[i].item(), drawn.left[i].item()
        expected = slow_crop(batch[i].tolist(), pad, top, left, drawn.mirrored[i].item())
        if channels == 3:
            expected = slow_jitter(expected, *drawn.colour[i].tolist())
        torch.testing.assert_close(got[i], torch.tensor(expected), rtol=0, atol=1e-5)


def test_neutral_augmentation_is_the_image_and_grey_is_not_jittered() -> None:
    colour, grey = images(3, 3), images(3, 1)
    for batch in (colour, grey):
        torch.testing.assert_close(augment(batch, how(3)), to_float(batch), rtol=0, atol=1e-6)
        torch.testing.assert_close(to_float(batch), batch.float() / 255)
    jittered = how(3, colour=(0.6, 1.4, 0.7))
    assert torch.equal(augment(grey, jittered), augment(grey, how(3)))
    assert not torch.equal(augment(colour, jittered), augment(colour, how(3)))


def test_jitter_by_hand() -> None:
    """Two pixels, red and mid-grey."""
    pixels = torch.tensor([[[[1.0, 0.5]], [[0.0, 0.5]], [[0.0, 0.5]]]])  # 1 image, 3 × 1 × 2

    def after(*factors: float) -> list:
        return jitter(pixels, torch.tensor([factors]).float())[0, :, 0].T.flatten().tolist()

    assert after(1, 1, 1) == pytest.approx([1, 0, 0, 0.5, 0.5, 0.5])
    assert after(0.6, 1, 1) == pytest.approx([0.6, 0, 0, 0.3, 0.3, 0.3])
    assert after(1.4, 1, 1) == pytest.approx([1, 0, 0, 0.7, 0.7, 0.7])  # 1.4 is clamped
    mean = (0.299 + 0.5) / 2
    low, mid = mean + 0.5 * (0 - mean), mean + 0.5 * (0.5 - mean)
    assert after(1, 0.5, 1) == pytest.approx([mean + 0.5 * (1 - mean), low, low, mid, mid, mid])
    assert after(1, 1, 0) == pytest.approx([0.299, 0.299, 0.299, 0.5, 0.5, 0.5])


def test_same_key_gives_the_same_pixels() -> None:
    batch = images(5, 3)
    results = []
    for noise in range(2):
        torch.manual_seed(noise)
        drawn = draw_augmentation(generator("augment", 0, 1, 2), 3, 5, SIZE)
        results.append(augment(batch, drawn.of(2, 5)))
    assert torch.equal(*results)
    other = draw_augmentation(generator("augment", 0, 1, 3), 3, 5, SIZE)
    assert not torch.equal(augment(batch, other.of(2, 5)), results[0])


def test_all_crops_flips_and_factors_are_drawn() -> None:
    drawn = draw_augmentation(generator("augment", 5), 40, 100, SIZE)
    assert drawn.top.shape == (40, 100)
    assert drawn.colour.shape == (40, 100, 3)
    crops = set(zip(drawn.top.flatten().tolist(), drawn.left.flatten().tolist(), strict=True))
    assert crops == {(y, x) for y in range(2 * PAD + 1) for x in range(2 * PAD + 1)}
    assert drawn.mirrored.float().mean().item() == pytest.approx(0.5, abs=0.03)
    for factors in drawn.colour.unbind(-1):
        assert 0.6 <= factors.min() < 0.61
        assert 1.39 < factors.max() <= 1.4
        assert factors.mean().item() == pytest.approx(1, abs=0.02)
