"""The ECM head against gradient descent by autograd, one task at a time."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kedge.config import HeadConfig
from kedge.errors import KedgeError
from kedge.models.heads import ECMHead, build_head, ecm

T, D = 2.0, 6
SHAPES = [(5, 1), (3, 2), (4, 5)]  # ways, shots: fewer images than features, as many, and more


def features(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def make(**options: float | str) -> ECMHead:
    """In float64, with a lift that is not orthonormal any more."""
    torch.manual_seed(0)
    head = ECMHead(D, T, **options).double()
    torch.testing.assert_close(head.lift.T @ head.lift, torch.eye(D).double(), atol=1e-5, rtol=0)
    with torch.no_grad():
        head.lift += 0.2 * features(2 * D, D, seed=9)
    return head


def slow_logits(lift: Tensor, z: Tensor, c: Tensor) -> Tensor:
    u = torch.stack([lift @ each for each in z])
    return torch.stack([torch.stack([-((x - y) ** 2).sum() / T for y in c]) for x in u])


def slow_fit(
    lift: Tensor,
    classes: Sequence[Tensor],
    steps: int = 100,
    inner_lr: float = 0.1,
    l2: float = 0.0,
) -> Tensor:
    """Gradient descent in the lifted space on the mean cross-entropy of all examples."""
    start = torch.stack([of_class.mean(0) @ lift.T for of_class in classes])
    z = torch.cat(list(classes))
    targets = torch.tensor([k for k, of_class in enumerate(classes) for _ in of_class])
    c = start.detach().requires_grad_()
    for _ in range(steps):
        loss = F.cross_entropy(slow_logits(lift, z, c), targets)
        loss = loss + l2 / 2 * ((c - start.detach()) ** 2).sum()
        (gradient,) = torch.autograd.grad(loss, c)
        c = (c - inner_lr * gradient).detach().requires_grad_()
    return c.detach()


@pytest.mark.parametrize(("k", "s"), SHAPES)
@pytest.mark.parametrize("options", [{}, {"inner_lr": 0.5, "l2": 0.3}])
def test_fit_is_gradient_descent(k: int, s: int, options: dict[str, float]) -> None:
    head, support = make(inner_steps=20, **options), features(2, k, s, D)
    for one, points in zip(support, head.fit(support), strict=True):
        expected = slow_fit(head.lift.detach(), list(one), 20, **options)
        torch.testing.assert_close(points, expected)


def test_fit_is_precise_in_float32_far_from_the_origin() -> None:
    head, support = make(), (features(4, 5, D) + 300).float()
    expected = slow_fit(head.lift.detach(), list(support.double()))
    torch.testing.assert_close(head.float().fit(support).double(), expected, rtol=0, atol=2e-3)


def test_unequal_classes_are_fitted_to_their_own_examples() -> None:
    head, support = make(inner_steps=20), features(3, 4, D)
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 0], [1, 0, 1, 0]], dtype=torch.bool)
    classes = [z[own] for z, own in zip(support, mask, strict=True)]
    torch.testing.assert_close(head.fit(support, mask), slow_fit(head.lift.detach(), classes, 20))


@pytest.mark.parametrize("sizes", [(2, 1, 3), (1, 7, 30), (9,)])
@pytest.mark.parametrize("chunk", [1, 40, 10**9])
def test_anchors_are_fitted_to_all_images_in_any_chunks(
    sizes: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ecm, "CHUNK_NUMEL", chunk)
    head = make(inner_steps=10, training="inner")
    classes = [features(n, D, seed=n) for n in sizes]
    torch.testing.assert_close(head.anchors(classes), slow_fit(head.lift.detach(), classes, 10))


@pytest.mark.parametrize(("k", "s"), SHAPES)
def test_gradients_pass_through_the_fit(k: int, s: int) -> None:
    head = make(inner_steps=5, inner_lr=0.5)
    episode = (0.7 * features(k, s + 1, D)).requires_grad_()

    def loss(episode: Tensor, *_: Tensor) -> Tensor:
        return head.loss(episode, s, None)

    assert torch.autograd.gradcheck(loss, (episode, head.lift), eps=1e-6, atol=1e-7)


def test_joint_training_classifies_all_images_whatever_the_shots_and_ways() -> None:
    head, episode = make(), features(4, 7, D)
    embeddings = head.initial_class_embeddings(list(features(4, 9, D, seed=1))).detach()
    losses = [head.loss(episode, n_shot, embeddings) for n_shot in (1, 6)]
    assert losses[0] == losses[1]
    logits = slow_logits(head.lift, episode.flatten(0, 1), embeddings)
    expected = F.cross_entropy(logits, torch.arange(4).repeat_interleave(7))
    torch.testing.assert_close(losses[0], expected)
    few, _ = head.episode_logits(episode[:2], 1, embeddings[:2])
    torch.testing.assert_close(logits[:14, :2], few)


def test_inner_training_differs_only_in_class_embeddings() -> None:
    joint, inner = make(), make(training="inner")
    assert (joint.learns_class_embeddings, inner.learns_class_embeddings) == (True, False)
    support, episode = features(3, 2, D), features(3, 5, D)
    assert torch.equal(joint.fit(support), inner.fit(support))
    assert torch.equal(joint.loss(episode, 2, None), inner.loss(episode, 2, None))
    assert make(lr_scale=3.0).class_lr_scale == 3


@pytest.mark.parametrize(
    "option", ["training=both", "inner_steps=0", "inner_lr=0", "inner_lr=nan", "l2=-1", "steps=5"]
)
def test_bad_option_is_named(option: str) -> None:
    with pytest.raises(KedgeError, match=option.partition("=")[0]):
        build_head(HeadConfig(f"ecm {option}"), D)
