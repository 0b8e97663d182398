"""What every head must do. A new head is tested by being listed in HEADS."""

import inspect

import pytest
import torch
from torch import Tensor

from kedge.config import HeadConfig
from kedge.heads import HEADS, Head, build_head

D = 8  # features
SHAPES = [(2, 1), (2, 5), (5, 1), (5, 5), (7, 3), (20, 2)]  # ways, shots


@pytest.fixture(params=sorted(HEADS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def head(name: str) -> Head:
    return make(name)


def make(name: str, temperature: float = 2.0) -> Head:
    torch.manual_seed(0)
    return build_head(HeadConfig(name, temperature), D).eval()


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def clusters(k: int, n: int, seed: int = 0) -> Tensor:
    """k classes of n features, each class a tight cloud far from the others. Shape: k, n, D."""
    return 5 * normal(k, 1, D, seed=seed) + 0.5 * normal(k, n, D, seed=seed + 1)


@pytest.mark.parametrize(("k", "s"), SHAPES)
@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_shapes_for_any_ways_shots_and_leading_dimensions(
    head: Head, k: int, s: int, leading: tuple[int, ...]
) -> None:
    representatives = head.fit(normal(*leading, k, s, D))
    assert representatives.shape[:-1] == (*leading, k)
    for n in (1, 9):
        assert head.logits(normal(*leading, n, D), representatives).shape == (*leading, n, k)


@pytest.mark.parametrize(("k", "s"), SHAPES)
def test_a_batch_of_episodes_equals_one_episode_at_a_time(head: Head, k: int, s: int) -> None:
    support, features = normal(2, 3, k, s, D), normal(2, 3, 6, D, seed=1)
    together = head.logits(features, head.fit(support))
    for i in range(2):
        for j in range(3):
            alone = head.logits(features[i, j], head.fit(support[i, j]))
            torch.testing.assert_close(together[i, j], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "garbage",
    [
        0.0,
        1e6,
        float("nan"),
    ],
)
def test_what_stands_in_the_padding_does_not_matter(head: Head, garbage: float) -> None:
    present = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0, 1, 0, 1]], dtype=torch.bool)
    support, features = normal(3, 4, D), normal(5, D, seed=1)
    padded = torch.where(present[..., None], support, torch.tensor(garbage))
    torch.testing.assert_close(
        head.logits(features, head.fit(padded, present)),
        head.logits(features, head.fit(support, present)),
    )


@pytest.mark.parametrize(("k", "s"), SHAPES)
def test_a_padded_episode_equals_the_unpadded_one(head: Head, k: int, s: int) -> None:
    support, features = normal(2, k, s, D), normal(2, 6, D, seed=1)
    unpadded = head.logits(features, head.fit(support))
    padded = torch.cat([support[:, :, :1] * 0 + 77, support, support[:, :, :1] - 99], dim=2)
    present = torch.ones(2, k, s + 2, dtype=torch.bool)
    present[:, :, 0] = present[:, :, -1] = False
    torch.testing.assert_close(head.logits(features, head.fit(padded, present)), unpadded)
    everything = torch.ones(2, k, s, dtype=torch.bool)
    torch.testing.assert_close(head.logits(features, head.fit(support, everything)), unpadded)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e3])
@pytest.mark.parametrize("s", [1, 5])
def test_logits_and_loss_are_finite_at_any_scale_of_the_features(
    head: Head, scale: float, s: int
) -> None:
    episode = scale * normal(5, s + 3, D) + scale
    logits = head.logits(episode[:, s:].flatten(0, 1), head.fit(episode[:, :s]))
    assert logits.isfinite().all()
    assert head.loss(episode, s, torch.arange(5)).isfinite()


@pytest.mark.parametrize(("k", "s"), SHAPES)
def test_loss_is_a_scalar_that_falls_against_its_gradient(head: Head, k: int, s: int) -> None:
    episode = normal(k, s + 3, D).requires_grad_()
    loss = head.loss(episode, s, torch.arange(k))
    assert loss.shape == ()
    loss.backward()
    slope = episode.grad
    assert slope is not None
    assert slope.isfinite().all()
    assert (slope.abs().sum(-1) > 0).all(), "some image of the episode teaches nothing"
    further = episode.detach() - 1e-2 * slope / slope.norm()
    assert head.loss(further, s, torch.arange(k)) < loss


def test_permuting_classes_permutes_logits_and_leaves_the_loss(head: Head) -> None:
    episode, order = normal(5, 6, D), torch.tensor([3, 0, 4, 1, 2])
    features = normal(7, D, seed=1)
    logits = head.logits(features, head.fit(episode[:, :2]))
    permuted = head.logits(features, head.fit(episode[order, :2]))
    torch.testing.assert_close(permuted, logits[:, order], rtol=1e-4, atol=1e-4)
    classes = torch.arange(5)
    torch.testing.assert_close(
        head.loss(episode[order], 2, classes[order]), head.loss(episode, 2, classes)
    )


def test_the_order_of_the_examples_does_not_matter(head: Head) -> None:
    support, features = normal(4, 5, D), normal(7, D, seed=1)
    torch.testing.assert_close(
        head.logits(features, head.fit(support.flip(1))),
        head.logits(features, head.fit(support)),
        rtol=1e-4,
        atol=1e-4,
    )


def test_inputs_are_left_as_they_were(head: Head) -> None:
    episode, present = normal(3, 4, D), torch.ones(3, 2, dtype=torch.bool)
    before = episode.clone()
    head.logits(episode[:, 2:].flatten(0, 1), head.fit(episode[:, :2], present))
    head.loss(episode, 2, torch.arange(3))
    head.anchors(list(episode))
    assert torch.equal(episode, before)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 7, 30), (40, 2, 9, 9, 1)])
def test_anchors_of_unequal_classes_serve_as_representatives(
    head: Head, sizes: tuple[int, ...]
) -> None:
    features = [cloud[:n] for cloud, n in zip(clusters(len(sizes), 40), sizes, strict=True)]
    anchors = head.anchors(features)
    assert anchors.shape == head.fit(normal(len(sizes), 1, D)).shape
    for i, of_class in enumerate(features):
        logits = head.logits(of_class, anchors)
        assert logits.shape == (len(of_class), len(sizes))
        assert (logits.argmax(1) == i).all(), "a tight class is nearest to its own anchor"


def test_some_of_the_anchors_are_representatives_too(head: Head) -> None:
    """A step is held against a few anchors only, drawn from all of them."""
    anchors = head.anchors(list(clusters(6, 10)))
    features, chosen = normal(9, D, seed=3), torch.tensor([4, 1])
    torch.testing.assert_close(
        head.logits(features, anchors[chosen]).diff(),
        head.logits(features, anchors)[:, chosen].diff(),
        rtol=1e-4,
        atol=1e-3,
    )


def test_temperature_divides_the_logits_and_changes_no_decision(name: str) -> None:
    cool, warm = make(name, 1.0), make(name, 4.0)
    support, features = normal(5, 3, D), normal(50, D, seed=1)
    representatives = cool.fit(support)
    torch.testing.assert_close(
        4 * warm.logits(features, representatives), cool.logits(features, representatives)
    )
    decisions = [h.logits(features, representatives).argmax(1) for h in (cool, warm)]
    assert torch.equal(*decisions)


@pytest.mark.parametrize(("k", "s"), SHAPES)
def test_separable_clusters_are_told_apart(head: Head, k: int, s: int) -> None:
    episode = clusters(k, s + 10)
    logits = head.logits(episode[:, s:].flatten(0, 1), head.fit(episode[:, :s]))
    right = logits.argmax(1) == torch.arange(k).repeat_interleave(10)
    assert right.float().mean() > 0.9


def test_the_constructor_only_stores(name: str) -> None:
    kind = HEADS[name]
    head = kind(D, 3.5)
    assert list(inspect.signature(kind).parameters) == ["n_features", "temperature"]
    assert (head.n_features, head.temperature) == (D, 3.5)
    assert not [key for key in vars(head) if key.endswith("_")], "fitted before fit"


def test_a_head_is_final_and_is_built_by_its_name(name: str) -> None:
    assert type(make(name)) is HEADS[name]
    assert HEADS[name].__bases__ == (Head,)
    assert getattr(HEADS[name], "__final__", False)
