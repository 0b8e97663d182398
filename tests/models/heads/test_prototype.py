"""The prototype head against plain loops."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kedge.models.heads import PrototypeHead

T = 2.0
K, S, Q, D = 3, 2, 2, 4
Numbers = list  # nested: ways, images, features


def mean(vectors: Numbers) -> Numbers:
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def score(z: Numbers, c: Numbers) -> float:
    return -sum((a - b) ** 2 for a, b in zip(z, c, strict=True)) / T


def slow_loss(episode: Numbers, n_shot: int) -> float:
    """Mean cross-entropy of the queries, one number at a time."""
    prototypes = [mean(of_class[:n_shot]) for of_class in episode]
    losses = []
    for way, of_class in enumerate(episode):
        for query in of_class[n_shot:]:
            scores = [score(query, c) for c in prototypes]
            top = max(scores)
            losses.append(top + math.log(sum(math.exp(x - top) for x in scores)) - scores[way])
    return sum(losses) / len(losses)


def slow_gradient(f: Callable[[Numbers], float], at: Tensor, step: float = 1e-5) -> Tensor:
    """Central differences, one coordinate at a time."""
    flat, slopes = at.double().flatten(), []
    for i in range(len(flat)):
        ahead, behind = flat.clone(), flat.clone()
        ahead[i] += step
        behind[i] -= step
        rise = f(ahead.view_as(at).tolist()) - f(behind.view_as(at).tolist())
        slopes.append(rise / (2 * step))
    return torch.tensor(slopes, dtype=torch.float64).view_as(at)


def features(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.fixture
def head() -> PrototypeHead:
    return PrototypeHead(D, T)


def test_a_prototype_is_the_mean_of_the_unmasked_examples(
    head: PrototypeHead,
) -> None:
    support = features(3, 4, D)
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 0], [1, 0, 1, 0]], dtype=torch.bool)
    fitted = head.fit(support, mask)
    for i in range(3):
        expected = mean(support[i][mask[i]].tolist())
        assert fitted[i].tolist() == pytest.approx(expected, abs=1e-12)


def test_a_logit_is_minus_the_squared_distance_over_the_temperature(head: PrototypeHead) -> None:
    z, c = features(5, D), features(K, D, seed=1)
    logits = head.logits(z, c)
    for i in range(5):
        for k in range(K):
            assert logits[i, k].item() == pytest.approx(score(z[i].tolist(), c[k].tolist()))


@pytest.mark.parametrize("n_shot", [1, 3])
def test_loss_and_gradient_equal_the_loops(head: PrototypeHead, n_shot: int) -> None:
    episode = features(K, n_shot + Q, D).requires_grad_()
    loss = head.loss(episode, n_shot, None)
    assert loss.item() == pytest.approx(slow_loss(episode.tolist(), n_shot), rel=1e-10)
    (slope,) = torch.autograd.grad(loss, episode)
    expected = slow_gradient(lambda numbers: slow_loss(numbers, n_shot), episode.detach())
    torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-7)


def test_float32_keeps_its_digits_far_from_the_origin(head: PrototypeHead) -> None:
    """Squares of 10⁴ in float32 are off by several whole units; the distances here are about 3."""
    episode = (features(K, 2 + Q, D) + 1e4).float().requires_grad_()
    queries = episode[:, 2:].flatten(0, 1)
    logits = head.logits(queries, head.fit(episode[:, :2]))
    prototypes = [mean(of_class[:2]) for of_class in episode.tolist()]
    expected = [[score(z, c) for c in prototypes] for z in queries.tolist()]
    torch.testing.assert_close(logits, torch.tensor(expected), rtol=0, atol=0.02)

    (slope,) = torch.autograd.grad(head.loss(episode, 2, None), episode)
    exact = slow_gradient(lambda numbers: slow_loss(numbers, 2), episode.detach().double(), 1e-3)
    torch.testing.assert_close(slope.double(), exact, rtol=0, atol=0.01)


def test_the_distance_is_not_divided_by_the_dimension() -> None:
    z, c = torch.ones(1, 100), torch.zeros(2, 100)
    assert PrototypeHead(100, 1.0).logits(z, c).tolist() == [[-100.0, -100.0]]
