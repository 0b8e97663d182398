"""The ECM head against gradient descent that nobody can misread: one task, plain autograd."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from kedge.config import HeadConfig
from kedge.errors import KedgeError
from kedge.models.heads import (
    ECMHead,
    build_head,
    ecm,
)

T, D = 2.0, 6
# Ways, shots: fewer images than features, as many, and more, which are computed differently.
SHAPES = [(2, 1), (5, 1), (2, 3), (3, 2), (3, 3), (4, 5)]


def features(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def head(**options: float | str) -> ECMHead:
    """In float64, with a lift that training has moved away from its orthonormal start."""
    torch.manual_seed(0)
    head = ECMHead(D, T, **options).double()
    with torch.no_grad():
        head.lift += 0.2 * features(2 * D, D, seed=9)
    return head


class Loss(nn.Module):
    """The loss as a module's forward, which is what functional_call can call."""

    def __init__(self, head: ECMHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, episode: Tensor, n_shot: int) -> Tensor:
        return self.head.loss(episode, n_shot, None)


def slow_logits(lift: Tensor, z: Tensor, c: Tensor) -> Tensor:
    u = torch.stack([lift @ each for each in z])
    return torch.stack([torch.stack([-((x - y) ** 2).sum() / T for y in c]) for x in u])


def slow_fit(
    lift: Tensor, classes: Sequence[Tensor], steps: int = 100, rate: float = 0.1, pull: float = 0.0
) -> Tensor:
    """Descent in the lifted space on the mean cross-entropy of all examples."""
    start = torch.stack([of_class.mean(0) @ lift.T for of_class in classes])
    z = torch.cat(list(classes))
    targets = torch.tensor([k for k, of_class in enumerate(classes) for _ in of_class])
    c = start.detach().requires_grad_()
    for _ in range(steps):
        loss = F.cross_entropy(slow_logits(lift, z, c), targets)
        loss = loss + pull / 2 * ((c - start.detach()) ** 2).sum()
        (slope,) = torch.autograd.grad(loss, c)
        c = (c - rate * slope).detach().requires_grad_()
    return c.detach()


@pytest.mark.parametrize(("k", "s"), SHAPES)
@pytest.mark.parametrize("options", [{}, {"rate": 0.5, "pull": 0.3}])
def test_a_fit_is_plain_gradient_descent(k: int, s: int, options: dict[str, float]) -> None:
    own = head(steps=20, **options)
    support = features(2, k, s, D)
    fitted = own.fit(support)
    for one, points in zip(support, fitted, strict=True):
        expected = slow_fit(own.lift.detach(), list(one), 20, **options)
        torch.testing.assert_close(points, expected)


def test_a_hundred_steps_in_float32_keep_their_digits_far_from_the_origin() -> None:
    own, support = head(), (features(4, 5, D) + 300).float()
    expected = slow_fit(own.lift.detach(), list(support.double()))
    torch.testing.assert_close(own.float().fit(support).double(), expected, rtol=0, atol=2e-3)


def test_unequal_classes_are_fitted_to_those_present() -> None:
    own = head(steps=20)
    present = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 0], [1, 0, 1, 0]], dtype=torch.bool)
    for seed in range(2):
        support = features(3, 4, D, seed=seed)
        classes = [of_class[there] for of_class, there in zip(support, present, strict=True)]
        expected = slow_fit(own.lift.detach(), classes, 20)
        torch.testing.assert_close(own.fit(support, present), expected)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1, 3), (1, 7, 30)])
@pytest.mark.parametrize("piece", [1, 40, 10**9])
def test_anchors_are_fitted_to_all_images_in_any_pieces(
    sizes: tuple[int, ...], piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ecm, "PIECE", piece)
    own = head(steps=10, training="inner")
    classes = [features(n, D, seed=n) for n in sizes]
    expected = slow_fit(own.lift.detach(), classes, 10)
    torch.testing.assert_close(own.anchors(classes), expected)


def test_a_class_alone_is_its_mean() -> None:
    own, only = head(), features(9, D)
    mean = own.lift @ only.mean(0)
    torch.testing.assert_close(own.anchors([only])[0], mean)
    torch.testing.assert_close(own.fit(only[None])[0], mean)


@pytest.mark.parametrize(("k", "s"), SHAPES)
def test_gradients_pass_through_the_fit(k: int, s: int) -> None:
    own = head(steps=5, rate=0.5)
    episode = (0.7 * features(k, s + 1, D)).requires_grad_()

    def loss(episode: Tensor, lift: Tensor) -> Tensor:
        return functional_call(Loss(own), {"head.lift": lift}, (episode, s))

    assert torch.autograd.gradcheck(loss, (episode, own.lift), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize(("k", "s"), [(5, 2), (5, 5), (8, 3)])
def test_the_support_is_told_apart_better_than_by_its_means(k: int, s: int) -> None:
    own, support = head(), features(k, s, D)
    targets = torch.arange(k).repeat_interleave(s)

    def loss(points: Tensor) -> float:
        return F.cross_entropy(own.logits(support.flatten(0, 1), points), targets).item()

    assert loss(own.fit(support)) < loss(own.rows(list(support))) - 0.05


def test_pull_holds_the_points_at_their_start() -> None:
    support = features(5, 3, D)
    means = head().rows(list(support))
    moves = [(head(pull=p).fit(support) - means).norm().item() for p in (0.0, 0.5, 5.0)]
    assert moves[0] > moves[1] > moves[2] > 0


def test_the_lift_starts_without_changing_distances() -> None:
    torch.manual_seed(0)
    own = ECMHead(D, T)
    assert own.lift.shape == (2 * D, D)
    torch.testing.assert_close(own.lift.T @ own.lift, torch.eye(D))


def test_a_logit_is_minus_the_squared_distance_after_the_lift() -> None:
    own, z, points = head(), features(5, D), features(3, 2 * D, seed=1)
    torch.testing.assert_close(own.logits(z, points), slow_logits(own.lift, z, points))


def test_joint_training_practises_all_images_whatever_the_shots() -> None:
    own, episode = head(), features(4, 7, D)
    rows = own.rows(list(features(4, 9, D, seed=1))).detach()
    losses = [own.loss(episode, n_shot, rows) for n_shot in (1, 3, 6)]
    assert losses[0] == losses[1] == losses[2]
    expected = F.cross_entropy(
        slow_logits(own.lift, episode.flatten(0, 1), rows), torch.arange(4).repeat_interleave(7)
    )
    torch.testing.assert_close(losses[0], expected)


def test_a_joint_row_does_not_see_who_else_is_in_the_episode() -> None:
    """Ways: the score of a class is the same in a task of two as in one of four."""
    own, episode = head(), features(4, 7, D)
    rows = own.rows(list(episode)).detach()
    many, _ = own.episode_logits(episode, 1, rows)
    few, _ = own.episode_logits(episode[:2], 1, rows[:2])
    torch.testing.assert_close(many[:14, :2], few)


def test_the_modes_differ_in_training_alone() -> None:
    joint, inner = head(), head(training="inner")
    assert (joint.learns_class_embeddings, inner.learns_class_embeddings) == (True, False)
    support, episode = features(3, 2, D), features(3, 5, D)
    assert torch.equal(joint.fit(support), inner.fit(support))
    assert torch.equal(joint.loss(episode, 2, None), inner.loss(episode, 2, None))


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("training=both", "training"),
        ("steps=0", "steps"),
        ("rate=0", "rate"),
        ("rate=nan", "rate"),
        ("pull=-1", "pull"),
    ],
)
def test_a_bad_option_is_named(option: str, named: str) -> None:
    with pytest.raises(KedgeError, match=named):
        build_head(HeadConfig(f"ecm {option}"), D)
