"""Indirect discriminant alignment against loops, and the freedom that it leaves."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kedge.errors import KedgeError
from kedge.methods import DirectFeatureAlignment, IndirectDiscriminantAlignment
from kedge.methods.base import AlignmentInputs
from kedge.methods.divergence import DIVERGENCES
from kedge.models.heads import PrototypeHead

T = 2.0
N, D, A = 4, 6, 3  # images, features, anchors
IDA, DFA = IndirectDiscriminantAlignment(), DirectFeatureAlignment()


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


NEW, OLD, ANCHORS = normal(N, D, seed=0), normal(N, D, seed=1), normal(A, D, seed=2)


def penalty(
    new: Tensor, old: Tensor = OLD, anchors: Tensor = ANCHORS, divergence: str = "kl"
) -> float:
    ida = IndirectDiscriminantAlignment(divergence=divergence)
    return ida.penalty(AlignmentInputs(new, old, PrototypeHead(D, T), anchors)).item()


def direct(new: Tensor) -> float:
    return DFA.penalty(AlignmentInputs(new, OLD, PrototypeHead(D, T), None)).item()


def softmax(z: list[float], anchors: list[list[float]]) -> list[float]:
    scores = [-sum((x - y) ** 2 for x, y in zip(z, c, strict=True)) / T for c in anchors]
    odds = [math.exp(s - max(scores)) for s in scores]
    return [o / sum(odds) for o in odds]


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def slow(new: list, direction: Callable[[list, list], float]) -> float:
    """Mean over the images, with the old and the new distribution given to `direction`."""
    anchors = ANCHORS.tolist()
    pairs = zip(OLD.tolist(), new, strict=True)
    return sum(direction(softmax(o, anchors), softmax(n, anchors)) for o, n in pairs) / N


def test_penalty_is_kl_from_old_to_new_and_not_the_reverse() -> None:
    forward = slow(NEW.tolist(), lambda old, new: kl(old, new))
    backward = slow(NEW.tolist(), lambda old, new: kl(new, old))
    assert abs(forward - backward) > 0.1, "these features cannot tell the two apart"
    assert penalty(NEW) == pytest.approx(forward, rel=1e-9)


def js(p: list[float], q: list[float]) -> float:
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return (kl(p, middle) + kl(q, middle)) / 2


def squared(p: list[float], q: list[float]) -> float:
    return sum((math.log(a) - math.log(b)) ** 2 for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize(
    ("name", "direction"),
    [("kl", kl), ("reverse", lambda old, new: kl(new, old)), ("js", js), ("squared", squared)],
)
def test_the_option_says_which_divergence(name: str, direction: Callable) -> None:
    ida = IndirectDiscriminantAlignment(divergence=name)
    value = ida.penalty(AlignmentInputs(NEW, OLD, PrototypeHead(D, T), ANCHORS)).item()
    assert value == pytest.approx(slow(NEW.tolist(), direction), rel=1e-9)


@pytest.mark.parametrize("temperature", [0.5, 2.0, 7.0])
def test_the_option_says_which_temperature_both_softmaxes_have(temperature: float) -> None:
    """Whatever the head's own is."""
    warm = IndirectDiscriminantAlignment(temperature=temperature)
    head = PrototypeHead(D, temperature)
    same = IDA.penalty(AlignmentInputs(NEW, OLD, head, ANCHORS)).item()
    for own in (1.0, 3.0):
        value = warm.penalty(AlignmentInputs(NEW, OLD, PrototypeHead(D, own), ANCHORS)).item()
        assert value == pytest.approx(same, rel=1e-9)


def test_gradient_is_that_of_the_loops() -> None:
    new = NEW.clone().requires_grad_()
    value = IDA.penalty(AlignmentInputs(new, OLD, PrototypeHead(D, T), ANCHORS))
    (slope,) = torch.autograd.grad(value, new)
    for i in range(N):
        for j in range(D):
            step = torch.zeros(N, D, dtype=torch.float64)
            step[i, j] = 1e-5
            rise = slow((NEW + step).tolist(), kl) - slow((NEW - step).tolist(), kl)
            assert slope[i, j].item() == pytest.approx(rise / 2e-5, rel=1e-5, abs=1e-8)


def test_penalty_survives_probabilities_that_underflow() -> None:
    """Far from every anchor but one, float32 softmax is exactly 0 for the others."""
    old, new = 300 * torch.eye(D)[:2], 300 * torch.eye(D)[1:3]
    anchors = 300 * torch.eye(D)[:3]
    value = IDA.penalty(AlignmentInputs(new, old, PrototypeHead(D, T), anchors))
    assert value.item() == pytest.approx(2 * 300**2 / T, rel=1e-4)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_penalty_is_the_same_in_any_rotated_or_shifted_space(name: str) -> None:
    turn, _ = torch.linalg.qr(normal(D, D, seed=3))
    shift = 10 * normal(D, seed=4)
    turned = [points @ turn + shift for points in (NEW, OLD, ANCHORS)]
    here = penalty(NEW, divergence=name)
    assert penalty(*turned, divergence=name) == pytest.approx(here, rel=1e-9)
    assert penalty(NEW @ turn, divergence=name) != pytest.approx(here, rel=1e-2)


def across(anchors: Tensor) -> Tensor:
    """The projection onto all that is orthogonal to the differences between the anchors."""
    differences = (anchors[1:] - anchors[0]).T
    basis, _ = torch.linalg.qr(differences)
    return torch.eye(D, dtype=torch.float64) - basis @ basis.T


@pytest.mark.parametrize("name", DIVERGENCES)
def test_features_move_freely_across_the_anchors_while_dfa_holds_them(name: str) -> None:
    move = normal(N, D, seed=5) @ across(ANCHORS)
    assert move.norm() > 1
    here = penalty(NEW, divergence=name)
    assert penalty(NEW + 3 * move, divergence=name) == pytest.approx(here, rel=1e-9)
    assert direct(NEW + 3 * move) != pytest.approx(direct(NEW), rel=1e-2)
    assert direct(OLD + 3 * move) > 1
    assert penalty(OLD + 3 * move, divergence=name) == pytest.approx(0, abs=1e-12)


def test_features_are_held_along_the_anchors_differences() -> None:
    along = normal(N, D, seed=5) @ (torch.eye(D, dtype=torch.float64) - across(ANCHORS))
    assert penalty(OLD + along) > 1e-2


def test_one_anchor_tells_nothing_apart() -> None:
    assert penalty(NEW, OLD, ANCHORS[:1]) == 0


@pytest.mark.parametrize(
    ("option", "expected"), [("ways", 5), ("all", 64), (2, 2), (17, 17), (500, 64)]
)
def test_the_option_says_how_many_anchors_a_step_is_held_against(
    option: int | str, expected: int
) -> None:
    ida = IndirectDiscriminantAlignment(anchors=option)
    assert ida.anchors_per_step(n_way=5, n_anchors=64) == expected


def test_as_many_anchors_as_ways_unless_told_otherwise() -> None:
    assert IDA.anchors_per_step(n_way=7, n_anchors=64) == 7
    assert IDA.anchors_per_step(n_way=7, n_anchors=4) == 4


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"divergence": "cosine"}, "IDA: divergence must be one of kl, reverse, js, squared"),
        ({"divergence": 3}, "IDA: divergence must be one of"),
        ({"temperature": 0}, "IDA: temperature must be a number above 0"),
        ({"temperature": -2.0}, "IDA: temperature must be"),
        ({"temperature": math.nan}, "IDA: temperature must be"),
        ({"temperature": "cold"}, "IDA: temperature must be"),
    ],
)
def test_verdicts_that_make_no_sense_are_refused(options: dict, reason: str) -> None:
    with pytest.raises(KedgeError, match=reason):
        IndirectDiscriminantAlignment(**options)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("option", [1, 0, -3, 2.5, "some", True])
def test_an_option_that_makes_no_sense_is_refused(option: object) -> None:
    with pytest.raises(KedgeError, match="IDA: anchors must be"):
        IndirectDiscriminantAlignment(anchors=option)
