"""One epoch: which episodes it draws, how steps share them, where the images come from."""

import itertools
import threading
from pathlib import Path

import pytest
import torch
from tests.training.small_round import (
    BASE,
    CONFIG,
    FIRST,
    NEW,
    OLD,
    SECOND,
    TABLE,
    Stopped,
    Witness,
    base_model,
    round_data,
    same,
    scheduled,
    stop_after,
    untrained,
    weights,
)
from torch import Tensor

from kedge.data import table as table_module
from kedge.data.packed_file import LazyImages
from kedge.data.table import ImageTable
from kedge.episodes.sampler import EpisodeSampler
from kedge.methods.registry import Method, parse_method
from kedge.training.round import memory_after_round, train_round
from kedge.training.step import MultiEpisodeStep, StepInputs, StepMetrics, TrainStep
from kedge.utils.seeding import torch_seed

CPU = torch.device("cpu")


@pytest.mark.parametrize("backbone", ["conv4", "resnet12"])  # the latter has DropBlock
def test_epoch_is_one_step_after_the_other(backbone: str) -> None:
    config = scheduled(epochs=1)
    student, start = untrained(backbone), untrained(backbone)
    step = TrainStep(student, start, BASE, 1e-2, None, {})
    sampler = EpisodeSampler("", FIRST.train, config.episode, 3, CPU)
    indices = sampler.sample((config.seed, 0, 0))
    student.embedding.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed("dropblock", config.seed, 0, 0))
        metrics = [step(StepInputs(batch)) for batch in sampler.batches(indices, range(3))]
    by_round = train_round(start, FIRST, BASE, config)
    assert by_round.history[0].loss == (StepMetrics.zeros(CPU) + sum(metrics))[0].div(3).item()
    assert same(student.embedding.state_dict(), by_round.model.embedding.state_dict())


def test_step_on_several_episodes_counts_and_reports_all_of_them() -> None:
    ticks: list[int] = []
    config = scheduled(tasks_per_step=3, lr=1e-9)
    result = train_round(untrained(), FIRST, BASE, config, tick=ticks.append)
    counters = [v for k, v in result.model.embedding.state_dict().items() if k.endswith("tracked")]
    assert {int(value) for value in counters} == {result.model.lineage[0].best_epoch}
    assert ticks == [3, 3, 3]
    one_by_one = train_round(untrained(), FIRST, BASE, scheduled(lr=1e-9)).history
    for several, single in zip(result.history, one_by_one, strict=True):
        assert several.loss == pytest.approx(single.loss, rel=1e-5), "the mean over all episodes"


def test_noise_belongs_to_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not depend on earlier draws, since other processes make those."""
    config = scheduled(epochs=1, episodes=4, tasks_per_step=4)
    original, seeds = MultiEpisodeStep.episode, []

    def spy(self: MultiEpisodeStep, inputs: StepInputs) -> Tensor:
        seeds.append(torch.initial_seed())
        return original(self, inputs)

    monkeypatch.setattr(MultiEpisodeStep, "episode", spy)
    train_round(untrained("resnet12"), FIRST, BASE, config)
    assert seeds == [torch_seed("dropblock", config.seed, 0, 0, i) for i in (0, 2, 1, 3)]


def test_rounds_and_epochs_see_different_episodes() -> None:
    """Without any real update only the episodes and augmentations differ."""
    still = scheduled(lr=1e-12)
    results = [train_round(untrained(), round_data(t, OLD), BASE, still) for t in (0, 1)]
    losses = [epoch.loss for result in results for epoch in result.history]
    assert len(set(losses)) == len(losses)


def test_every_step_draws_anchors_without_replacement() -> None:
    base, witness = base_model(), Witness(2)
    train_round(base, SECOND, Method("witness", "new", witness), scheduled(episodes=8))
    drawn = []
    for inputs in witness.seen:
        assert inputs.anchors is not None
        matches = [(base.anchors == anchor).all(1).nonzero().item() for anchor in inputs.anchors]
        drawn.append(frozenset(matches))
    assert len(drawn) == 24
    assert set(drawn) == {frozenset(pair) for pair in itertools.combinations(range(4), 2)}


def test_training_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(123)
    state = torch.random.get_rng_state()
    train_round(untrained("resnet12"), FIRST, BASE, scheduled(epochs=1))
    assert torch.equal(torch.random.get_rng_state(), state)


# ── images that stay in their file ───────────────────────────────────────────────────────────


@pytest.fixture
def in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageTable:
    monkeypatch.setattr(table_module, "EAGER_BYTES", 0)
    TABLE.save(tmp_path / "all.images")
    table = ImageTable.load(tmp_path / "all.images")
    assert isinstance(table.images, LazyImages)
    return table


@pytest.mark.parametrize("n_tasks", [1, 3])
def test_images_in_a_file_train_to_the_same_last_bit(n_tasks: int, in_a_file: ImageTable) -> None:
    """They are read ahead, which must not change their order."""
    config = scheduled(epochs=2, episodes=24, tasks_per_step=n_tasks)
    method, base = parse_method("EIML exemplars=4"), base_model()
    results = []
    for table in (TABLE, in_a_file):
        memory = memory_after_round(method, base, round_data(0, OLD, table), {}, config)
        results.append(train_round(base, round_data(1, NEW, table), method, config, memory=memory))
    assert results[0].history == results[1].history
    assert same(weights(results[0].model), weights(results[1].model))


def test_reading_ahead_ends_with_the_training(in_a_file: ImageTable) -> None:
    with pytest.raises(Stopped):
        train_round(untrained(), round_data(0, OLD, in_a_file), BASE, CONFIG, tick=stop_after(2))
    assert not [t for t in threading.enumerate() if t.name.startswith("kedge reads ahead")]
