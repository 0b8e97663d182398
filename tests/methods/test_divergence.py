"""Divergences against their definitions."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kedge.errors import KedgeError
from kedge.methods.divergence import DIVERGENCES, check_divergence, divergence
from kedge.models.heads import PrototypeHead

N, K = 5, 4  # images, classes


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


OLD, NEW = 2 * normal(N, K, seed=0), 2 * normal(N, K, seed=1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p / q).log()).sum(-1)


HEAD = PrototypeHead(3, 2.0)
DEFINITIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": kl,
    "reverse": lambda p, q: kl(q, p),
    "js": lambda p, q: (kl(p, (p + q) / 2) + kl(q, (p + q) / 2)) / 2,
    "squared": lambda p, q: (p.log() - q.log()).square().sum(-1),
}


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("ratio", [1.0, 0.25])
def test_mean_of_the_definition(name: str, ratio: float) -> None:
    expected = DEFINITIONS[name]((ratio * OLD).softmax(-1), (ratio * NEW).softmax(-1)).mean()
    value = divergence(name, OLD, NEW, HEAD, HEAD.temperature / ratio)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_zero_and_flat_for_equal_distributions(name: str) -> None:
    new = (OLD + normal(N, 1, seed=2)).requires_grad_()  # a shift that softmax ignores
    value = divergence(name, OLD, new, HEAD, None)
    (gradient,) = torch.autograd.grad(value, new)
    assert value.item() == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_finite_for_certain_predictions(name: str) -> None:
    """In float32 most of these probabilities are exactly 0."""
    old, new = 1000 * torch.eye(3), (1000 * torch.eye(3).roll(1, 0)).requires_grad_()
    value = divergence(name, old, new, HEAD, None)
    (gradient,) = torch.autograd.grad(value, new)
    assert value.isfinite()
    assert gradient.isfinite().all()
    if name == "js":
        assert value.item() == pytest.approx(math.log(2))  # its maximum


@pytest.mark.usefixtures("unchecked")
def test_bad_options_are_named() -> None:
    for bad in (0, -1.0, math.inf, math.nan, "warm"):
        with pytest.raises(KedgeError, match="IDA: temperature"):
            check_divergence("IDA", "kl", bad)  # type: ignore[arg-type]
    with pytest.raises(KedgeError, match="EIML: divergence"):
        check_divergence("EIML", "hellinger", None)
