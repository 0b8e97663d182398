"""The contract of a head. A new head is tested by being listed in HEADS; nothing changes here.

A head that learns class embeddings is tested with them, and without them too.
"""

import inspect

import pytest
import torch
from torch import Tensor

from kedge.config import HeadConfig
from kedge.errors import KedgeError
from kedge.models.heads import HEADS, Head, build_head

D = 8  # features
SHAPES = [(2, 1), (5, 5), (20, 2)]  # ways, shots
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


def embeddings_of(head: Head, episode: Tensor) -> Tensor | None:
    """Initial class embeddings of an episode's classes; None if the head learns none."""
    learns = head.learns_class_embeddings
    return head.initial_class_embeddings(list(episode)).detach() if learns else None


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def clusters(k: int, n: int, seed: int = 0) -> Tensor:
    """k well separated classes of n features. Shape: k, n, D."""
    return 5 * normal(k, 1, D, seed=seed) + 0.5 * normal(k, n, D, seed=seed + 1)


@pytest.mark.parametrize(("k", "s"), SHAPES)
def test_a_batch_of_episodes_equals_one_episode_at_a_time(head: Head, k: int, s: int) -> None:
    support, features = normal(2, 3, k, s, D), normal(2, 3, 6, D, seed=1)
    representatives = head.fit(support)
    assert representatives.shape[:-1] == (2, 3, k)
    together = head.logits(features, representatives)
    assert together.shape == (2, 3, 6, k)
    for i, j in ((0, 0), (1, 2)):
        one = head.logits(features[i, j], head.fit(support[i, j]))
        torch.testing.assert_close(together[i, j], one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", [0.0, 1e6, float("nan")])
@pytest.mark.parametrize(("k", "s"), SHAPES)
def test_padding_does_not_matter(head: Head, k: int, s: int, padding: float) -> None:
    support, features = normal(2, k, s, D), normal(2, 6, D, seed=1)
    expected = head.logits(features, head.fit(support))
    filler = torch.full((2, k, 1, D), padding)
    mask = torch.ones(2, k, s + 2, dtype=torch.bool)
    mask[:, :, 0] = mask[:, :, -1] = False
    padded = head.fit(torch.cat([filler, support, filler], 2), mask)
    torch.testing.assert_close(head.logits(features, padded), expected)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e3])
def test_logits_loss_and_gradients_are_finite_at_any_scale(head: Head, scale: float) -> None:
    for s in (1, 5):
        episode = (scale * normal(5, s + 3, D) + scale).requires_grad_()
        logits = head.logits(episode[:, s:].flatten(0, 1), head.fit(episode[:, :s]))
        assert logits.isfinite().all()
        for class_embeddings in (embeddings_of(head, episode), None):
            loss = head.loss(episode, s, class_embeddings)
            inputs = [episode, *head.parameters()]
            for gradient in torch.autograd.grad(loss, inputs, allow_unused=True):
                assert gradient is None or gradient.isfinite().all()


@pytest.mark.parametrize(("k", "s"), SHAPES)
def test_loss_is_the_cross_entropy_and_every_image_counts(head: Head, k: int, s: int) -> None:
    episode = normal(k, s + 3, D).requires_grad_()
    for class_embeddings in (embeddings_of(head, episode), None):
        logits, targets = head.episode_logits(episode, s, class_embeddings)
        assert logits.shape == (len(targets), k)
        assert torch.equal(targets.bincount(), torch.full((k,), len(targets) // k))
        loss = head.loss(episode, s, class_embeddings)
        of_target = logits.log_softmax(1)[torch.arange(len(targets)), targets]
        torch.testing.assert_close(loss, -of_target.mean())
        (gradient,) = torch.autograd.grad(loss, episode)
        assert (gradient.abs().sum(-1) > 0).all()
        descended = episode.detach() - 1e-2 * gradient / gradient.norm()
        assert head.loss(descended, s, class_embeddings) < loss
    expected = head.logits(episode[:, s:].flatten(0, 1), head.fit(episode[:, :s]))
    torch.testing.assert_close(logits, expected)
    assert torch.equal(targets, torch.arange(k).repeat_interleave(3))


def test_permuting_classes_or_examples_changes_nothing(head: Head) -> None:
    episode, order, features = normal(5, 6, D), torch.tensor([3, 0, 4, 1, 2]), normal(7, D, seed=1)
    logits = head.logits(features, head.fit(episode[:, :2]))
    permuted = head.logits(features, head.fit(episode[order, :2].flip(1)))
    torch.testing.assert_close(permuted, logits[:, order], rtol=1e-4, atol=1e-4)
    own = embeddings_of(head, episode)
    loss = head.loss(episode[order], 2, None if own is None else own[order])
    torch.testing.assert_close(loss, head.loss(episode, 2, own))


def test_inputs_are_not_modified(head: Head) -> None:
    episode, mask = normal(3, 4, D), torch.ones(3, 2, dtype=torch.bool)
    before, own = episode.clone(), embeddings_of(head, episode)
    head.logits(episode[:, 2:].flatten(0, 1), head.fit(episode[:, :2], mask))
    head.loss(episode, 2, own)
    anchors = head.anchors(list(episode), own)
    assert torch.equal(episode, before)
    if own is not None:
        copied = own.clone()
        anchors.zero_()
        assert torch.equal(own, copied), "anchors must not share memory with class embeddings"


def test_class_embeddings_classify_train_and_become_anchors(head: Head) -> None:
    if not head.learns_class_embeddings:
        return
    features = [z[:n] for z, n in zip(clusters(3, 40), (40, 1, 9), strict=True)]
    embeddings = head.initial_class_embeddings(features).detach().requires_grad_()
    assert embeddings.shape == head.fit(normal(3, 1, D)).shape
    for i, of_class in enumerate(features):
        assert (head.logits(of_class, embeddings).argmax(1) == i).all()
    (gradient,) = torch.autograd.grad(head.loss(normal(3, 6, D), 2, embeddings), embeddings)
    assert (gradient.abs().sum(1) > 0).all()
    anchors = head.anchors(features, embeddings)
    assert torch.equal(anchors, embeddings)
    assert not anchors.requires_grad


@pytest.mark.parametrize("sizes", [(1, 1), (40, 2, 9, 9, 1)])
def test_anchors_of_unequal_classes_are_representatives(head: Head, sizes: tuple[int, ...]) -> None:
    features = [z[:n] for z, n in zip(clusters(len(sizes), 40), sizes, strict=True)]
    anchors = head.anchors(features)
    assert anchors.shape == head.fit(normal(len(sizes), 1, D)).shape
    for i, of_class in enumerate(features):
        assert (head.logits(of_class, anchors).argmax(1) == i).all()
    # A step samples some of the anchors.
    z, some = normal(9, D, seed=3), torch.tensor([1, 0])
    logits = head.logits(z, anchors)[:, some].diff()
    torch.testing.assert_close(head.logits(z, anchors[some]).diff(), logits, rtol=1e-4, atol=1e-3)
    means = torch.stack([of_class.mean(0) for of_class in features])
    same = anchors.shape == means.shape and anchors.equal(means)
    assert same or not head.anchors_are_means


def test_anchors_of_many_images_do_not_need_all_pairs(head: Head) -> None:
    """A table of all pairs would have 0.9 · 10⁹ entries here."""
    assert head.anchors(list(clusters(2, 15_000))).isfinite().all()


def test_temperature_divides_the_logits(name: str) -> None:
    cool, warm = make(name, 1.0), make(name, 4.0)
    features, representatives = normal(50, D, seed=1), cool.fit(normal(5, 3, D))
    logits = 4 * warm.logits(features, representatives)
    torch.testing.assert_close(logits, cool.logits(features, representatives))


def test_a_head_is_final_and_its_options_are_keywords(name: str) -> None:
    kind = HEADS[name.split()[0]]
    assert type(make(name)) is kind
    assert kind.__bases__ == (Head,)
    assert getattr(kind, "__final__", False)
    parameters = inspect.signature(kind).parameters
    assert list(parameters)[:2] == ["n_features", "temperature"]
    for option in list(parameters.values())[2:]:
        assert option.kind is inspect.Parameter.KEYWORD_ONLY
        assert option.default is not inspect.Parameter.empty
    with pytest.raises(KedgeError, match="colour"):
        make(f"{name} colour=red")


def test_a_head_is_built_on_the_meta_device_and_loaded(name: str) -> None:
    original = make(name)
    for key, value in make(name).state_dict().items():
        assert torch.equal(value, original.state_dict()[key])
    with torch.device("meta"):
        head = build_head(HeadConfig(name), D)
    assert all(parameter.is_meta for parameter in head.parameters())
    head.load_state_dict(original.state_dict(), assign=True)
    support, features = normal(3, 2, D), normal(4, D, seed=1)
    expected = original.logits(features, original.fit(support))
    assert torch.equal(head.logits(features, head.fit(support)), expected)
