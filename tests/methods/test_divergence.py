"""How far two verdicts are apart, against the definitions."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kedge.errors import KedgeError
from kedge.methods.divergence import (
    DIVERGENCES,
    check_divergence,
    divergence,
    temperature_ratio,
)
from kedge.models.heads import PrototypeHead

N, K = 5, 4  # images, classes


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


OLD, NEW = 2 * normal(N, K, seed=0), 2 * normal(N, K, seed=1)


@pytest.fixture(params=sorted(DIVERGENCES))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def softmax(logits: list[float]) -> list[float]:
    odds = [math.exp(x) for x in logits]
    return [o / sum(odds) for o in odds]


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def js(p: list[float], q: list[float]) -> float:
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return (kl(p, middle) + kl(q, middle)) / 2


def squared(p: list[float], q: list[float]) -> float:
    return sum((math.log(a) - math.log(b)) ** 2 for a, b in zip(p, q, strict=True))


DEFINITIONS: dict[str, Callable[[list[float], list[float]], float]] = {
    "kl": kl,
    "reverse": lambda old, new: kl(new, old),
    "js": js,
    "squared": squared,
}


def test_every_divergence_has_its_definition_here() -> None:
    assert DEFINITIONS.keys() == DIVERGENCES.keys()


@pytest.mark.parametrize("factor", [1.0, 0.25, 3.0])
def test_it_is_the_mean_of_its_definition(name: str, factor: float) -> None:
    """And what is sharper is sharper on both sides."""
    each = [
        DEFINITIONS[name](softmax((factor * old).tolist()), softmax((factor * new).tolist()))
        for old, new in zip(OLD, NEW, strict=True)
    ]
    found = divergence(name, OLD, NEW, factor)
    assert found.shape == ()
    assert found.item() == pytest.approx(sum(each) / N, rel=1e-10)


def test_it_is_zero_for_equal_verdicts_and_for_no_others(name: str) -> None:
    assert divergence(name, OLD, OLD).item() == pytest.approx(0, abs=1e-12)
    shifted = OLD + normal(N, 1, seed=2)  # which softmax does not see
    assert divergence(name, OLD, shifted).item() == pytest.approx(0, abs=1e-12)
    for i in range(N):
        for k in range(K):
            moved = OLD.clone()
            moved[i, k] += 0.1
            assert divergence(name, OLD, moved).item() > 1e-9


def test_it_is_flat_where_verdicts_are_equal(name: str) -> None:
    new = OLD.clone().requires_grad_()
    (slope,) = torch.autograd.grad(divergence(name, OLD, new), new)
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-12)


def test_the_two_directions_of_kl_are_each_others_mirror() -> None:
    assert divergence("reverse", OLD, NEW) == divergence("kl", NEW, OLD)
    assert abs(divergence("reverse", OLD, NEW) - divergence("kl", OLD, NEW)) > 0.01


@pytest.mark.parametrize("symmetric", ["js", "squared"])
def test_the_others_have_no_direction(symmetric: str) -> None:
    there, back = divergence(symmetric, OLD, NEW), divergence(symmetric, NEW, OLD)
    assert there.item() == pytest.approx(back.item(), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_jensen_shannon_is_at_most_log_2(dtype: torch.dtype) -> None:
    """Which it reaches for verdicts that have nothing in common."""
    for factor in (1, 10, 1000):
        found = divergence("js", factor * OLD.to(dtype), factor * NEW.to(dtype))
        assert 0 <= found.item() <= math.log(2) + 1e-6
    apart = 1000 * torch.eye(2, dtype=dtype)
    assert divergence("js", apart, apart.flip(0)).item() == pytest.approx(math.log(2))


def test_certain_verdicts_leave_value_and_gradient_finite(name: str) -> None:
    """In float32 most of these probabilities are exactly 0."""
    old, new = 1000 * torch.eye(3), (1000 * torch.eye(3).roll(1, 0)).requires_grad_()
    found = divergence(name, old, new)
    (slope,) = torch.autograd.grad(found, new)
    assert found.isfinite()
    assert slope.isfinite().all()


def test_a_temperature_takes_the_place_of_the_heads_own() -> None:
    head = PrototypeHead(3, 2.0)
    assert temperature_ratio(head, None) == 1
    assert temperature_ratio(head, 2.0) == 1
    z, c = normal(N, 3, seed=3), normal(K, 3, seed=4)
    cold = PrototypeHead(3, 0.5).logits(z, c)
    torch.testing.assert_close(temperature_ratio(head, 0.5) * head.logits(z, c), cold)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bad", [0, -1.0, math.inf, math.nan, "warm"])
def test_a_temperature_that_makes_no_sense_is_refused(bad: object) -> None:
    with pytest.raises(KedgeError, match=r"^IDA: temperature must be a number above 0\.$"):
        check_divergence("IDA", "kl", bad)  # type: ignore[arg-type]


def test_an_unknown_divergence_is_refused_with_the_known_ones() -> None:
    with pytest.raises(KedgeError, match=r"^EIML: .* one of kl, reverse, js, squared\.$"):
        check_divergence("EIML", "hellinger", None)
