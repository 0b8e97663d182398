"""Indirect discriminant alignment against a loop, and the freedom that it leaves."""

import math

import pytest
import torch
from torch import Tensor

from kedge.errors import KedgeError
from kedge.methods.base import AlignmentInputs
from kedge.methods.dfa import DirectFeatureAlignment
from kedge.methods.divergence import DIVERGENCES
from kedge.methods.ida import IndirectDiscriminantAlignment
from kedge.models.heads import PrototypeHead

T = 2.0
N, D, A = 4, 6, 3  # images, features, anchors


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


NEW, OLD, ANCHORS = normal(N, D, seed=0), normal(N, D, seed=1), normal(A, D, seed=2)


def penalty(
    new: Tensor,
    old: Tensor = OLD,
    anchors: Tensor = ANCHORS,
    temperature: float = T,
    **options: str | float,
) -> Tensor:
    ida = IndirectDiscriminantAlignment(**options)
    return ida.penalty(AlignmentInputs(new, old, PrototypeHead(D, temperature), anchors))


def softmax(z: list[float]) -> list[float]:
    anchors = ANCHORS.tolist()
    scores = [-sum((x - y) ** 2 for x, y in zip(z, c, strict=True)) / T for c in anchors]
    odds = [math.exp(s - max(scores)) for s in scores]
    return [o / sum(odds) for o in odds]


def slow(new: Tensor) -> float:
    """The mean of KL(old ‖ new) over the images."""
    pairs = zip(map(softmax, OLD.tolist()), map(softmax, new.tolist()), strict=True)
    return sum(p * math.log(p / q) for old, new in pairs for p, q in zip(old, new, strict=True)) / N


def test_penalty_and_gradient_equal_the_loop() -> None:
    new = NEW.clone().requires_grad_()
    value = penalty(new)
    assert value.item() == pytest.approx(slow(NEW), rel=1e-9)
    assert penalty(NEW, divergence="reverse").item() != pytest.approx(slow(NEW), rel=1e-2)
    (gradient,) = torch.autograd.grad(value, new)
    for i, j in ((0, 0), (1, 3), (3, 5)):
        step = torch.zeros(N, D, dtype=torch.float64)
        step[i, j] = 1e-5
        slope = (slow(NEW + step) - slow(NEW - step)) / 2e-5
        assert gradient[i, j].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("temperature", [0.5, 7.0])
def test_option_temperature_replaces_that_of_the_head(temperature: float) -> None:
    expected = penalty(NEW, temperature=temperature).item()
    ida = IndirectDiscriminantAlignment(temperature=temperature)
    inputs = AlignmentInputs(NEW, OLD, PrototypeHead(D, 3.0), ANCHORS)
    assert ida.penalty(inputs).item() == pytest.approx(expected, rel=1e-9)


def test_penalty_is_finite_if_probabilities_underflow() -> None:
    eye = 300 * torch.eye(D)
    assert penalty(eye[1:3], eye[:2], eye[:3]).item() == pytest.approx(2 * 300**2 / T, rel=1e-4)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_features_are_free_across_the_anchors_where_dfa_is_not(name: str) -> None:
    basis, _ = torch.linalg.qr((ANCHORS[1:] - ANCHORS[0]).T)
    along = normal(N, D, seed=5) @ (basis @ basis.T)
    across = 3 * (normal(N, D, seed=5) - along)
    here = penalty(NEW, divergence=name).item()
    assert penalty(NEW + across, divergence=name).item() == pytest.approx(here, rel=1e-9)
    assert penalty(OLD + across, divergence=name).item() == pytest.approx(0, abs=1e-12)
    assert penalty(OLD + along, divergence=name) > 1e-3
    dfa = DirectFeatureAlignment()
    assert dfa.penalty(AlignmentInputs(OLD + across, OLD, PrototypeHead(D, T))) > 1
    rotation, _ = torch.linalg.qr(normal(D, D, seed=3))
    rotated = [points @ rotation + 10 for points in (NEW, OLD, ANCHORS)]
    assert penalty(*rotated, divergence=name).item() == pytest.approx(here, rel=1e-9)


def test_one_anchor_constrains_nothing() -> None:
    assert penalty(NEW, OLD, ANCHORS[:1]) == 0


@pytest.mark.parametrize(("option", "expected"), [("ways", 5), ("all", 64), (17, 17), (500, 64)])
def test_number_of_anchors_per_step(option: int | str, expected: int) -> None:
    assert IndirectDiscriminantAlignment(anchors=option).anchors_per_step(5, 64) == expected
    assert IndirectDiscriminantAlignment().anchors_per_step(n_way=7, n_anchors=4) == 4


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("option", [1, -3, 2.5, "some", True])
def test_bad_option_is_named(option: object) -> None:
    with pytest.raises(KedgeError, match="anchors"):
        IndirectDiscriminantAlignment(anchors=option)
