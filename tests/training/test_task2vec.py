"""Which classes are hard to tell apart, and that nothing is changed by asking."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kedge.config import (
    BackboneConfig,
    EpisodeShape,
    HeadConfig,
)
from kedge.data.augment import to_float
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.episodes.sampler import sample_episodes
from kedge.errors import KedgeError
from kedge.models.backbones import Conv4, ResNet12
from kedge.models.heads import HEADS
from kedge.models.model import Model, new_model
from kedge.models.model_config import ModelConfig
from kedge.training.task2vec import (
    class_fisher,
    distances,
    nearest_classes,
)
from kedge.utils.progress import no_tick
from kedge.utils.seeding import generator

SIDE, PAIRS, PER_CLASS = 16, 5, 40
TWIN = torch.arange(2 * PAIRS) ^ 1


def paired_classes() -> Pool:
    """Classes 0 and 1 show one pattern, 2 and 3 another, …, each image under noise of its own."""
    seeded = torch.Generator().manual_seed(0)
    coarse = torch.rand(PAIRS, 1, 1, 4, 4, generator=seeded).repeat_interleave(2, 0)
    patterns = coarse.repeat_interleave(SIDE // 4, 3).repeat_interleave(SIDE // 4, 4)
    noise = torch.rand(2 * PAIRS, PER_CLASS, 1, SIDE, SIDE, generator=seeded)
    pixels = (255 * (0.7 * patterns + 0.3 * noise)).to(torch.uint8).flatten(0, 1)
    labels = torch.arange(2 * PAIRS).repeat_interleave(PER_CLASS).tolist()
    table = ImageTable.build(pixels, labels, [f"c{i}" for i in range(2 * PAIRS)])
    return Pool.all("training", table)


POOL = paired_classes()


def model(
    head: str = "prototype",
    backbone: str = "conv4",
    width: int = 32,
    network: nn.Module | None = None,
) -> Model:
    """Untrained, but its BatchNorm has seen the images."""
    config = ModelConfig(BackboneConfig(backbone, width), HeadConfig(head), 1, SIDE)
    built = new_model(config, POOL, 0, network)
    with torch.no_grad():
        for _ in range(20):
            built.embedding(to_float(POOL.table.images[::4]))
    built.embedding.eval()
    return built


@pytest.mark.parametrize(
    ("head", "backbone", "width"),
    [*((head, "conv4", 32) for head in sorted(HEADS)), ("prototype", "resnet12", 4)],
)
def test_classes_that_look_alike_are_nearest(head: str, backbone: str, width: int) -> None:
    near = nearest_classes(model(head, backbone, width), POOL, (0,))
    assert near.shape == (2 * PAIRS, 2 * PAIRS - 1)
    for i, others in enumerate(near.tolist()):
        assert sorted([i, *others]) == list(range(2 * PAIRS))
    assert (near[:, 0] == TWIN).sum() >= 2 * PAIRS - 1, "chance would find one or two"


def test_hard_episodes_are_made_of_them() -> None:
    near = nearest_classes(model(), POOL, (0,))
    shape = EpisodeShape(2, 1, 1)
    plans = [sample_episodes(POOL, shape, 400, generator("test"), n) for n in (None, near)]
    alike = [(TWIN[plan.classes[:, 0]] == plan.classes[:, 1]).float().mean() for plan in plans]
    assert alike[0] < 0.2
    assert alike[1] > 0.25, "half the tasks take one of the two nearest"


def test_the_same_key_gives_the_same_and_another_key_another() -> None:
    own = model(width=4)
    first = nearest_classes(own, POOL, (1, "a"))
    torch.rand(5)  # the global state has no part in it
    assert torch.equal(nearest_classes(own, POOL, (1, "a")), first)
    assert not torch.equal(nearest_classes(own, POOL, (2, "a")), first)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("head", sorted(HEADS))
def test_the_model_is_as_it_was(head: str, frozen: bool) -> None:
    own = model(head, width=4)
    own.embedding.requires_grad_(not frozen).train()
    own.embedding.backbone.blocks[1].eval()
    parts = [own.embedding, own.head]

    def state() -> list[tuple[bool, ...]]:
        modes = [m.training for part in parts for m in part.modules()]
        flags = [w.requires_grad for part in parts for w in part.parameters()]
        return [tuple(modes), tuple(flags)]

    before, weights = state(), own.fingerprint
    random = torch.get_rng_state()
    with torch.no_grad():  # the caller may not be training at all
        nearest_classes(own, POOL, (0,))
    assert state() == before
    assert own.fingerprint == weights
    assert torch.equal(torch.get_rng_state(), random)
    assert all(w.grad is None for part in parts for w in part.parameters())


def test_representatives_at_hand_save_a_pass() -> None:
    own, seen = model(width=4), []
    own.embedding.backbone.register_forward_hook(lambda m, args, out: seen.append(len(out)))
    near = nearest_classes(own, POOL, (0,))
    assert sum(seen) == 2 * len(POOL)
    means = own.head.anchors(own.class_features(POOL))
    seen.clear()
    assert torch.equal(nearest_classes(own, POOL, (0,), representatives=means), near)
    assert sum(seen) == len(POOL)


def exact_fisher(own: Model, rows: Tensor, representatives: Tensor) -> Tensor:
    """One image and one label at a time, each label by its probability."""
    weight = own.embedding.backbone.last_block.weight
    total = torch.zeros(len(weight), dtype=torch.float64)
    for row in rows:
        features = own.embedding(to_float(POOL.table.images[row][None]))
        log_p = own.head.logits(features, representatives).log_softmax(1)[0]
        for each in log_p:
            (slope,) = torch.autograd.grad(each, weight, retain_graph=True)
            total += each.exp().item() * slope.square().mean((1, 2, 3))
    return total / len(rows)


def test_the_estimate_is_near_the_exact_fisher() -> None:
    own = model(width=6)
    rows = POOL.class_rows[3][:20]
    means = own.head.anchors(own.class_features(POOL))
    estimates = [
        class_fisher(own, POOL, rows, means, generator("test", i), no_tick) for i in range(20)
    ]
    mean, exact = torch.stack(estimates).mean(0), exact_fisher(own, rows, means)
    torch.testing.assert_close(mean, exact, rtol=0.15, atol=0.02 * exact.max().item())


def test_the_distance_is_symmetric_and_that_of_the_paper() -> None:
    fisher = torch.rand(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    between = distances(fisher)
    torch.testing.assert_close(between, between.T)
    for a in range(4):
        for b in range(4):
            both = fisher[a] + fisher[b]
            cosine = F.cosine_similarity(fisher[a] / both, fisher[b] / both, dim=0).item()
            assert between[a, b].item() == pytest.approx(1 - cosine, abs=1e-12)
    assert between.diagonal().abs().max() < 1e-12


def test_filters_that_nobody_moves_do_not_count() -> None:
    fisher = torch.tensor([[1.0, 0.0, 2.0], [2.0, 0.0, 1.0]]).double()
    torch.testing.assert_close(distances(fisher), distances(fisher[:, [0, 2]]))
    assert distances(torch.zeros(2, 3).double()).isfinite().all()


def test_the_last_block_is_the_last_convolution_or_the_last_residual_block() -> None:
    assert Conv4(1, 4).last_block.weight.shape == (4, 4, 3, 3)
    block = ResNet12(1, (2, 3, 4, 5)).last_block
    assert [w.shape[0] for w in block.parameters() if w.ndim > 1] == [5, 5, 5, 5]


def test_a_backbone_of_ones_own_is_looked_at_where_it_ends() -> None:
    torch.manual_seed(0)
    layers = (nn.Flatten(), nn.Linear(SIDE**2, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU())
    near = nearest_classes(model(network=nn.Sequential(*layers)), POOL, (0,))
    assert (near[:, 0] == TWIN).sum() >= PAIRS


def test_a_backbone_without_filters_is_refused() -> None:
    with pytest.raises(KedgeError, match="last_block"):
        nearest_classes(model(network=nn.Flatten()), POOL, (0,))


class Spare(nn.Module):
    """A layer that is there and not used, as the classifier of many a pretrained network."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.spare = nn.Linear(SIDE**2, 20), nn.Linear(20, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.used(images.flatten(1)).relu()


@pytest.mark.parametrize("head", sorted(HEADS))
def test_a_last_layer_that_is_not_used_is_refused(head: str) -> None:
    with pytest.raises(KedgeError, match="last_block"):
        nearest_classes(model(head, network=Spare()), POOL, (0,))


def test_what_is_not_used_of_the_last_block_does_not_count() -> None:
    some, all_of_it = Spare(), Spare()
    some.last_block, all_of_it.last_block = some.used, nn.ModuleList(all_of_it.children())
    few, more = (nearest_classes(model(network=each), POOL, (0,)) for each in (some, all_of_it))
    assert torch.equal(few, more)
