"""What every head must do. A new head is tested by being listed in HEADS.

A head that learns rows is tested with rows at hand; without them it must manage too.
"""

import inspect

import pytest
import torch
from torch import Tensor

from kedge.config import HeadConfig
from kedge.errors import KedgeError
from kedge.models.heads import (
    HEADS,
    Head,
    build_head,
)

D = 8  # features
SHAPES = [(2, 1), (2, 5), (5, 1), (5, 5), (7, 3), (20, 2)]  # ways, shots
NAMES = [*sorted(HEADS), "ecm training=inner"]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def head(name: str) -> Head:
    return make(name)


def make(name: str, temperature: float = 2.0) -> Head:
    torch.manual_seed(0)
    return build_head(HeadConfig(name, temperature), D).eval()


def kind(name: str) -> type[Head]:
    return HEADS[name.split()[0]]


def rows_of(head: Head, episode: Tensor) -> Tensor | None:
    """As a round would have them for the classes of an episode; None if the head learns none."""
    return head.rows(list(episode)).detach() if head.learns_class_embeddings else None


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
    for rows in (rows_of(head, episode), None):
        assert head.loss(episode, s, rows).isfinite()


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e3])
def test_gradients_are_finite_at_any_scale_of_the_features(head: Head, scale: float) -> None:
    episode = (scale * normal(5, 4, D) + scale).requires_grad_()
    for rows in (rows_of(head, episode), None):
        loss = head.loss(episode, 1, rows)
        for slope in torch.autograd.grad(loss, [episode, *head.parameters()], allow_unused=True):
            assert slope is None or slope.isfinite().all()


@pytest.mark.parametrize(("k", "s"), SHAPES)
def test_loss_is_a_scalar_that_falls_against_its_gradient(head: Head, k: int, s: int) -> None:
    episode = normal(k, s + 3, D).requires_grad_()
    rows = rows_of(head, episode)
    loss = head.loss(episode, s, rows)
    assert loss.shape == ()
    loss.backward()
    slope = episode.grad
    assert slope is not None
    assert slope.isfinite().all()
    assert (slope.abs().sum(-1) > 0).all(), "some image of the episode teaches nothing"
    further = episode.detach() - 1e-2 * slope / slope.norm()
    assert head.loss(further, s, rows) < loss


@pytest.mark.parametrize(("k", "s"), SHAPES)
def test_the_loss_is_the_cross_entropy_of_what_is_practised(head: Head, k: int, s: int) -> None:
    episode = normal(k, s + 3, D)
    for rows in (rows_of(head, episode), None):
        logits, targets = head.episode_logits(episode, s, rows)
        assert logits.shape == (len(targets), k)
        assert torch.equal(targets.bincount(), torch.full((k,), len(targets) // k))
        right = logits.log_softmax(1)[torch.arange(len(targets)), targets]
        torch.testing.assert_close(head.loss(episode, s, rows), -right.mean())


@pytest.mark.parametrize(("k", "s"), SHAPES)
def test_queries_are_practised_on_the_support_where_no_rows_are_learned(
    head: Head, k: int, s: int
) -> None:
    episode = normal(k, s + 3, D)
    logits, targets = head.episode_logits(episode, s, None)
    expected = head.logits(episode[:, s:].flatten(0, 1), head.fit(episode[:, :s]))
    torch.testing.assert_close(logits, expected)
    assert torch.equal(targets, torch.arange(k).repeat_interleave(3))


def test_permuting_classes_permutes_logits_and_leaves_the_loss(head: Head) -> None:
    episode, order = normal(5, 6, D), torch.tensor([3, 0, 4, 1, 2])
    features = normal(7, D, seed=1)
    logits = head.logits(features, head.fit(episode[:, :2]))
    permuted = head.logits(features, head.fit(episode[order, :2]))
    torch.testing.assert_close(permuted, logits[:, order], rtol=1e-4, atol=1e-4)
    rows = rows_of(head, episode)
    theirs = None if rows is None else rows[order]
    torch.testing.assert_close(head.loss(episode[order], 2, theirs), head.loss(episode, 2, rows))


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
    rows = rows_of(head, episode)
    rows_before = None if rows is None else rows.clone()
    head.loss(episode, 2, rows)
    kept = head.anchors(list(episode), rows)
    assert torch.equal(episode, before)
    if rows is not None:
        kept.zero_()
        assert torch.equal(rows, rows_before), "anchors outlive the rows, which go on changing"


def test_rows_start_as_representatives_and_end_as_anchors(head: Head) -> None:
    features = [cloud[:n] for cloud, n in zip(clusters(3, 40), (40, 1, 9), strict=True)]
    if not head.learns_class_embeddings:
        return
    rows = head.rows(features)
    assert rows.shape == head.fit(normal(3, 1, D)).shape
    for i, of_class in enumerate(features):
        assert (head.logits(of_class, rows).argmax(1) == i).all()
    learned = (rows + 1).detach().requires_grad_()
    anchors = head.anchors(features, learned)
    assert torch.equal(anchors, learned)
    assert not anchors.requires_grad


def test_rows_learn_where_there_are_any(head: Head) -> None:
    episode = normal(5, 6, D)
    rows = rows_of(head, episode)
    if rows is not None:
        (slope,) = torch.autograd.grad(head.loss(episode, 2, rows.requires_grad_()), rows)
        assert (slope.abs().sum(1) > 0).all()


def test_every_parameter_of_a_head_learns(head: Head) -> None:
    episode = normal(5, 6, D).requires_grad_()
    head.loss(episode, 2, rows_of(head, episode)).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


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


def test_anchors_of_many_images_need_no_table_of_all_their_pairs(head: Head) -> None:
    """Which would have 6.4 · 10⁹ entries here."""
    assert head.anchors(list(clusters(2, 40_000))).isfinite().all()


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


def test_classes_come_from_images_alone(head: Head) -> None:
    """A single image of each is told from those of the others."""
    images = normal(6, D)
    points = head.from_images(list(images.split(1)))
    assert head.logits(images, points).argmax(-1).tolist() == [0, 1, 2, 3, 4, 5]


def test_anchors_are_means_where_the_head_says_so(head: Head) -> None:
    features = [normal(n, D, seed=n) for n in (3, 5, 4)]
    means = torch.stack([of_class.mean(0) for of_class in features])
    anchors = head.anchors(features, head.rows(features) if head.learns_class_embeddings else None)
    assert head.anchors_are_means == (anchors.shape == means.shape and anchors.equal(means))


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
    head = kind(name)(D, 3.5)
    parameters = inspect.signature(kind(name)).parameters
    assert list(parameters)[:2] == ["n_features", "temperature"]
    for option in list(parameters.values())[2:]:
        assert option.kind is inspect.Parameter.KEYWORD_ONLY
        assert option.default is not inspect.Parameter.empty
    assert (head.n_features, head.temperature) == (D, 3.5)
    assert not [key for key in vars(head) if key.endswith("_")], "fitted before fit"


def test_a_head_is_final_and_is_built_by_its_name(name: str) -> None:
    assert type(make(name)) is kind(name)
    assert kind(name).__bases__ == (Head,)
    assert getattr(kind(name), "__final__", False)


def test_parameters_follow_from_the_random_state_alone(name: str) -> None:
    for key, value in make(name).state_dict().items():
        assert torch.equal(value, make(name).state_dict()[key])


def test_a_head_can_be_built_without_memory_and_filled_from_a_file(name: str) -> None:
    original = make(name)
    with torch.device("meta"):
        head = build_head(HeadConfig(name), D)
    assert all(parameter.is_meta for parameter in head.parameters())
    head.load_state_dict(original.state_dict(), assign=True)
    support, features = normal(3, 2, D), normal(4, D, seed=1)
    expected = original.logits(features, original.fit(support))
    assert torch.equal(head.logits(features, head.fit(support)), expected)


def test_an_unknown_option_is_named(name: str) -> None:
    with pytest.raises(KedgeError, match="colour"):
        make(f"{name} colour=red")
