"""Direct feature alignment against loops."""

import pytest
import torch
from torch import Tensor

from kedge.errors import KedgeError
from kedge.methods import DirectFeatureAlignment
from kedge.methods.base import AlignmentInputs
from kedge.models.heads import PrototypeHead

N, D = 4, 6


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


NEW, OLD = normal(N, D, seed=0), normal(N, D, seed=1)


def penalty(new: Tensor, dimensions: str = "sum") -> Tensor:
    dfa = DirectFeatureAlignment(dimensions=dimensions)
    return dfa.penalty(AlignmentInputs(new, OLD, PrototypeHead(D, 2.0), None))


@pytest.mark.parametrize(("dimensions", "divisor"), [("sum", 1), ("mean", D)])
def test_penalty_is_the_mean_squared_length_of_the_moves(dimensions: str, divisor: int) -> None:
    total = 0.0
    for new, old in zip(NEW.tolist(), OLD.tolist(), strict=True):
        total += sum((a - b) ** 2 for a, b in zip(new, old, strict=True))
    assert penalty(NEW, dimensions).item() == pytest.approx(total / N / divisor)


@pytest.mark.parametrize(("dimensions", "divisor"), [("sum", 1), ("mean", D)])
def test_gradient_points_back_to_the_old_feature(dimensions: str, divisor: int) -> None:
    new = NEW.clone().requires_grad_()
    (slope,) = torch.autograd.grad(penalty(new, dimensions), new)
    torch.testing.assert_close(slope, 2 * (NEW - OLD) / N / divisor)


def test_dimensions_are_summed_unless_told_otherwise() -> None:
    sight = AlignmentInputs(NEW, OLD, PrototypeHead(D, 2.0), None)
    assert DirectFeatureAlignment().penalty(sight) == penalty(NEW, "sum")


def test_it_asks_for_no_anchors() -> None:
    assert DirectFeatureAlignment().anchors_per_step(n_way=5, n_anchors=64) == 0


@pytest.mark.usefixtures("unchecked")
def test_an_option_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(KedgeError, match="DFA: dimensions must be"):
        DirectFeatureAlignment(dimensions="some")
