"""Validation after every epoch."""

from __future__ import annotations

import pytest
import torch
from tests.training.small_round import FIRST, base_model, scheduled

from kedge.config import TrainConfig
from kedge.data.table import ImageTable
from kedge.episodes.sampler import sample_episodes
from kedge.evaluation.accuracy import episode_accuracies
from kedge.training.validation import Validator
from kedge.utils.seeding import generator


@pytest.mark.parametrize("n_episodes", [1, 200])  # of which 1 draws less than half of the images
def test_only_images_that_episodes_draw_are_embedded(
    monkeypatch: pytest.MonkeyPatch, n_episodes: int
) -> None:
    pool, model = FIRST.val, base_model()
    config: TrainConfig = scheduled(val_episodes=n_episodes)
    rng = generator("validation", config.seed)
    episodes = sample_episodes(pool, config.episode, n_episodes, rng)
    expected = episode_accuracies(model.head, model.embed_rows(pool.table, pool.rows), episodes)

    taken: list[int] = []
    take = ImageTable.take
    monkeypatch.setattr(
        ImageTable, "take", lambda table, r: (taken.append(len(r)), take(table, r))[1]
    )
    accuracy = Validator(pool, config, torch.device("cpu"))(model)
    assert accuracy == pytest.approx(float(expected.mean()))
    assert sum(taken) == len(episodes.positions.unique())
