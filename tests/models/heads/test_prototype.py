"""The prototype head against its definition, without matrix products."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kedge.models.heads import PrototypeHead

T = 2.0
K, Q, D = 3, 2, 4
HEAD = PrototypeHead(D, T)


def features(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def reference_loss(episode: Tensor, n_shot: int) -> Tensor:
    queries, prototypes = episode[:, n_shot:].flatten(0, 1), episode[:, :n_shot].mean(1)
    logits = -(queries[:, None] - prototypes).square().sum(-1) / T
    return F.cross_entropy(logits, torch.arange(K).repeat_interleave(Q))


def test_a_prototype_is_the_mean_of_the_unmasked_examples() -> None:
    support = features(3, 4, D)
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 0], [1, 0, 1, 0]], dtype=torch.bool)
    expected = torch.stack([z[own].mean(0) for z, own in zip(support, mask, strict=True)])
    torch.testing.assert_close(HEAD.fit(support, mask), expected)


@pytest.mark.parametrize("n_shot", [1, 3])
def test_loss_and_gradient_equal_the_definition(n_shot: int) -> None:
    episode = features(K, n_shot + Q, D).requires_grad_()
    losses = HEAD.loss(episode, n_shot, None), reference_loss(episode, n_shot)
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, episode)[0] for loss in losses))


def test_float32_keeps_its_digits_far_from_the_origin() -> None:
    """Squares of 10⁴ in float32 are off by several whole units; the distances here are about 3."""
    episode = (features(K, 2 + Q, D) + 1e4).float().requires_grad_()
    exact = episode.detach().double().requires_grad_()
    loss, expected = HEAD.loss(episode, 2, None), reference_loss(exact, 2)
    assert loss.item() == pytest.approx(expected.item(), abs=0.01)
    (slope,), (wanted,) = torch.autograd.grad(loss, episode), torch.autograd.grad(expected, exact)
    torch.testing.assert_close(slope.double(), wanted, rtol=0, atol=0.01)
