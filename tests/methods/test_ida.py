"""Indirect discriminant alignment against a loop, and the freedom that it leaves."""

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


def reference(new: Tensor) -> Tensor:
    """The mean of KL(old ‖ new) over the images."""
    p, q = ((-(z[:, None] - ANCHORS).square().sum(-1) / T).softmax(-1) for z in (OLD, new))
    return (p * (p / q).log()).sum(-1).mean()


def test_penalty_and_gradient_equal_the_definition() -> None:
    new = NEW.clone().requires_grad_()
    value, expected = penalty(new), reference(new)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    assert penalty(NEW, divergence="reverse").item() != pytest.approx(value.item(), rel=1e-2)
    gradients = (torch.autograd.grad(each, new)[0] for each in (value, expected))
    torch.testing.assert_close(*gradients)


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
