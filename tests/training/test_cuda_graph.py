"""The parts of the captured step that can be tested without a GPU."""

import pytest
import torch
from tests.training.small_round import (
    BASE,
    CONFIG,
    FIRST,
    TABLE,
    same,
    scheduled,
    untrained,
)

from kedge.config import EpisodeShape
from kedge.data.pools import Pool
from kedge.episodes.sampler import EpisodeSampler
from kedge.errors import KedgeError
from kedge.models.trainable import trainable_copy
from kedge.training.cuda_graph import _restored, _StaticEpisodes
from kedge.training.loop import EpochRunner
from kedge.training.step import ExecutionMode, StepInputs, TrainStep
from kedge.utils.progress import no_tick

CPU = torch.device("cpu")


def sampler(shape: EpisodeShape, n_episodes: int) -> EpisodeSampler:
    return EpisodeSampler("", Pool.all("all", TABLE), shape, n_episodes, CPU)


@pytest.mark.parametrize("shape", [EpisodeShape((2, 3), 1, 2), EpisodeShape(2, (1, 2), 2)])
def test_episodes_whose_shape_varies_are_refused(shape: EpisodeShape) -> None:
    """Even if those of one epoch happen to have the same shape."""
    episodes = sampler(shape, 1)
    with pytest.raises(KedgeError, match="ways and shots"):
        _StaticEpisodes(episodes, episodes.sample((0, 0, 0)))


@pytest.mark.parametrize("resident", [True, False])
def test_buffers_hold_the_episodes_of_each_epoch_at_the_same_address(resident: bool) -> None:
    episodes = sampler(EpisodeShape((3, 3), (2, 2), 2), 5)
    episodes.loader.resident = resident
    static = _StaticEpisodes(episodes, episodes.sample((0, 0, 0)))
    assert (static.images is None) == resident
    addresses = [buffer.data_ptr() for buffer in (static.positions, *static.rest)]
    for epoch in (0, 1):
        indices = episodes.sample((0, 0, epoch))
        static.load(indices)
        order = [3, 0, 4]
        loaded = iter(()) if resident else static.stream(order)
        for i, expected in zip(order, episodes.batches(indices, order), strict=True):
            next(loaded, None)
            got = static.batch(torch.tensor([i]))
            assert torch.equal(got.images, expected.images)
            assert torch.equal(got.classes, expected.classes)
            assert got.n_shot == expected.n_shot
            for name in ("top", "left", "mirrored", "colour"):
                drawn = (getattr(batch.augmentation, name) for batch in (got, expected))
                assert torch.equal(*drawn), name
    assert [buffer.data_ptr() for buffer in (static.positions, *static.rest)] == addresses


@pytest.mark.parametrize("trained_before", [False, True])
def test_capturing_restores_weights_statistics_and_moments(trained_before: bool) -> None:
    """Also of class embeddings, and the averages of all these."""
    student = untrained(head="ecm")
    student.embedding.train()
    embeddings = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    step = TrainStep(student, untrained(head="ecm"), BASE, 1e-2, embeddings, {}, ema=0.5)
    episodes = EpisodeSampler("", FIRST.train, CONFIG.episode, 3, CPU)
    batches = [StepInputs(b) for b in episodes.batches(episodes.sample((0, 0, 0)), range(3))]

    def moments() -> list[torch.Tensor]:
        return [t.clone() for state in step.optimizer.state.values() for t in state.values()]

    if trained_before:
        step(batches[0])

    def states() -> list[dict[str, torch.Tensor]]:
        both = (step.state(), step.averaged_state())
        return [{key: value.clone() for key, value in state.items()} for state in both]

    before = states(), moments()
    assert same(*before[0]) == (not trained_before)
    with _restored(step):
        step(batches[1])
        step(batches[2])
        assert not any(map(same, states(), before[0]))
    assert all(map(same, states(), before[0]))
    expected = before[1] or [torch.zeros_like(moment) for moment in moments()]
    assert all(map(torch.equal, moments(), expected))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("backbone", ["conv4", "resnet12"])
def test_captured_step_with_kernels_is_that_of_autograd(backbone: str) -> None:
    """The same episodes, blocks dropped, losses and statistics as without graph and kernels."""
    found = []
    for mode in (ExecutionMode(captured=True, fused=True), ExecutionMode()):
        start = untrained(backbone).to("cuda")
        student = trainable_copy(start)
        step = TrainStep(student, start, BASE, 1e-4, None, {}, mode)
        runner = EpochRunner(step, FIRST.train, start.anchors, scheduled(episodes=5), 0)
        losses = [runner.epoch(epoch, no_tick).loss for epoch in range(2)]
        statistics = [b for b in student.embedding.buffers() if b.is_floating_point()]
        found.append([torch.tensor(losses, device="cuda"), *statistics])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-3)
