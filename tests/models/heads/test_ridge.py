"""The ridge head against weighted least squares, one task and one class at a time."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from kedge.models.heads import RidgeHead
from kedge.models.heads.ridge import MIN_STRENGTH

T, D = 2.0, 6
# Ways, shots: fewer images than features, about as many, and more: computed differently.
SHAPES = [(5, 1), (7, 1), (4, 5)]


def features(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) + 0.5


@pytest.fixture
def head() -> RidgeHead:
    return RidgeHead(D, T).double()


def slow_vector(head: RidgeHead, own: Tensor, rest: Tensor) -> Tensor:
    """Least squares on the system with the ridge written below it."""
    x = torch.cat([own, rest])
    x = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    y = torch.tensor([1.0] * len(own) + [-1.0] * len(rest)).double()
    weights = [0.5 / len(own)] * len(own) + [0.5 / max(1, len(rest))] * len(rest)
    root = torch.tensor(weights).double().sqrt()
    size = sum(w * (each @ each).item() for w, each in zip(weights, x, strict=True))
    ridge = (head.log_strength.exp().item() + MIN_STRENGTH) * size
    system = torch.cat([root[:, None] * x, ridge**0.5 * torch.eye(D + 1).double()])
    wanted = torch.cat([root * y, torch.zeros(D + 1).double()])
    return torch.linalg.lstsq(system, wanted[:, None]).solution[:, 0]


def slow_fit(head: RidgeHead, classes: Sequence[Tensor]) -> Tensor:
    rows = []
    for i, own in enumerate(classes):
        others = [other for j, other in enumerate(classes) if j != i]
        rows.append(slow_vector(head, own, torch.cat([own[:0], *others])))
    return torch.stack(rows)


@pytest.mark.parametrize(("k", "s"), SHAPES)
@pytest.mark.parametrize("strength", [-6.0, 1.0])
def test_rows_are_those_of_least_squares(head: RidgeHead, k: int, s: int, strength: float) -> None:
    nn.init.constant_(head.log_strength, strength)
    support = features(2, k, s, D)
    fitted = head.fit(support)
    for one, rows in zip(support, fitted, strict=True):
        torch.testing.assert_close(rows, slow_fit(head, list(one)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sizes", [(2, 1, 3), (1, 7, 30), (5,)])
def test_anchors_are_rows_over_all_images(head: RidgeHead, sizes: tuple[int, ...]) -> None:
    classes = [features(n, D, seed=n) for n in sizes]
    torch.testing.assert_close(head.anchors(classes), slow_fit(head, classes), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("k", "s"), SHAPES)
def test_gradients_pass_through_the_solution(head: RidgeHead, k: int, s: int) -> None:
    def loss(episode: Tensor, *_: Tensor) -> Tensor:
        return head.loss(episode, s, None)

    episode = features(k, s + 1, D).requires_grad_()
    assert torch.autograd.gradcheck(loss, (episode, head.log_strength, head.log_scale), atol=1e-6)


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_the_ridge_means_the_same_at_any_number_of_shots(head: RidgeHead, factor: float) -> None:
    """Twice the same examples are no news."""
    support = factor * features(3, 2, D)
    torch.testing.assert_close(
        head.fit(support.repeat(1, 5, 1)), head.fit(support), rtol=1e-6, atol=1e-9
    )


def test_the_weakest_ridge_still_solves_in_float32() -> None:
    own = RidgeHead(D, T)
    nn.init.constant_(own.log_strength, -50)
    for shape in [(5, 1), (5, 5)]:
        support = features(*shape, D).float() + 1000
        support[0] = support[1]
        support[:, :, 0] = 0
        assert own.fit(support).isfinite().all()
