"""What every alignment must do, with every head. A new one is tested by being listed."""

import dataclasses

import pytest
import torch
from torch import Tensor

from kedge.alignment import ALIGNMENTS, Alignment, Sight
from kedge.config import HeadConfig
from kedge.heads import HEADS, Head, build_head

N, D = 12, 6  # images of the episode, features


@pytest.fixture(params=sorted(ALIGNMENTS))
def alignment(request: pytest.FixtureRequest) -> Alignment:
    return ALIGNMENTS[request.param]()


@pytest.fixture(params=sorted(HEADS))
def head(request: pytest.FixtureRequest) -> Head:
    torch.manual_seed(0)
    return build_head(HeadConfig(request.param), D).eval().requires_grad_(False)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sight(alignment: Alignment, head: Head, n_anchors: int = 5, seed: int = 0) -> Sight:
    """A step in which the features have moved, held against as many anchors as it asks for."""
    old = normal(N, D, seed=seed)
    new = (old + 0.5 * normal(N, D, seed=seed + 1)).requires_grad_()
    anchors = head.anchors(list(normal(n_anchors, 7, D, seed=seed + 2)))
    shown = alignment.anchors_per_step(5, n_anchors)
    return Sight(new, old, head, anchors[:shown] if shown else None)


def test_penalty_is_zero_and_flat_while_nothing_has_changed(
    alignment: Alignment, head: Head
) -> None:
    seen = sight(alignment, head)
    new = seen.old.clone().requires_grad_()
    penalty = alignment.penalty(dataclasses.replace(seen, new=new))
    penalty.backward()
    assert penalty.item() == pytest.approx(0, abs=1e-6)
    assert new.grad is not None
    torch.testing.assert_close(new.grad, torch.zeros(N, D), rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_penalty_is_a_scalar_above_zero_when_features_have_moved(
    alignment: Alignment, head: Head, seed: int
) -> None:
    penalty = alignment.penalty(sight(alignment, head, seed=10 * seed))
    assert penalty.shape == ()
    assert penalty.isfinite()
    assert penalty.item() > 1e-3


def test_penalty_is_never_negative(alignment: Alignment, head: Head) -> None:
    """However small the move; rounding may cost a few ulps."""
    for seed, scale in enumerate([1e-4, 1e-2, 1, 100]):
        seen = sight(alignment, head, seed=seed)
        new = seen.old + scale * normal(N, D, seed=99)
        penalty = alignment.penalty(dataclasses.replace(seen, new=new))
        assert penalty.isfinite()
        assert penalty.item() >= -1e-6


def test_gradient_reaches_the_new_features_only(alignment: Alignment, head: Head) -> None:
    seen = sight(alignment, head)
    kept = {"old": seen.old, "anchors": seen.anchors, **head.state_dict()}
    before = {key: value.clone() for key, value in kept.items() if value is not None}
    alignment.penalty(seen).backward()
    assert seen.new.grad is not None
    assert seen.new.grad.isfinite().all()
    assert (seen.new.grad.abs().sum(1) > 0).all(), "some image is not held"
    assert seen.old.grad is None
    assert seen.anchors is None or seen.anchors.grad is None
    assert all(p.grad is None for p in head.parameters())
    for key, value in before.items():
        assert torch.equal(value, kept[key]), f"{key} was changed"


def test_penalty_falls_against_its_gradient(alignment: Alignment, head: Head) -> None:
    seen = sight(alignment, head)
    penalty = alignment.penalty(seen)
    (slope,) = torch.autograd.grad(penalty, seen.new)
    nearer = dataclasses.replace(seen, new=seen.new.detach() - 1e-2 * slope / slope.norm())
    assert alignment.penalty(nearer) < penalty


def test_penalty_is_the_mean_over_the_images(alignment: Alignment, head: Head) -> None:
    seen = sight(alignment, head)
    each = [
        alignment.penalty(dataclasses.replace(seen, new=new[None], old=old[None])).item()
        for new, old in zip(seen.new.detach(), seen.old, strict=True)
    ]
    assert alignment.penalty(seen).item() == pytest.approx(sum(each) / N, rel=1e-5)


def test_anchors_per_step_stays_within_what_there_is(alignment: Alignment) -> None:
    for n_way in (2, 5, 20):
        for n_anchors in (0, 1, 2, 4, 5, 64):
            assert 0 <= alignment.anchors_per_step(n_way, n_anchors) <= n_anchors


@pytest.mark.parametrize("n_anchors", [1, 2, 3, 50])
def test_any_number_of_anchors_will_do(alignment: Alignment, head: Head, n_anchors: int) -> None:
    seen = sight(alignment, head, n_anchors)
    penalty = alignment.penalty(seen)
    assert penalty.isfinite()
    (slope,) = torch.autograd.grad(penalty, seen.new)
    assert slope.isfinite().all()


def test_an_alignment_is_final_and_its_options_are_frozen(alignment: Alignment) -> None:
    assert type(alignment).__bases__ == (Alignment,)
    assert getattr(type(alignment), "__final__", False)
    for option in dataclasses.fields(alignment):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(alignment, option.name, None)
