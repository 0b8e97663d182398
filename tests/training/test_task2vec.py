"""Which classes are hard to tell apart, and that measuring it changes nothing."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kedge.config import BackboneConfig, HeadConfig
from kedge.data.augment import to_float
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.models.backbones import Conv4, ResNet12
from kedge.models.embedding import ModelConfig
from kedge.models.heads import HEADS
from kedge.models.model import Model, new_model
from kedge.training.task2vec import class_fisher, fisher_distances, nearest_classes
from kedge.utils.progress import no_tick
from kedge.utils.seeding import generator

SIDE, PAIRS, PER_CLASS = 16, 5, 30
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
def test_similar_classes_are_nearest(head: str, backbone: str, width: int) -> None:
    near = nearest_classes(model(head, backbone, width), POOL, (0,))
    for i, others in enumerate(near.tolist()):
        assert sorted([i, *others]) == list(range(2 * PAIRS))
    assert (near[:, 0] == TWIN).sum() >= 2 * PAIRS - 1, "chance would find one or two"


@pytest.mark.parametrize(("head", "frozen"), [("prototype", True), ("ecm", False)])
def test_model_is_unchanged_and_the_key_decides(head: str, frozen: bool) -> None:
    own = model(head, width=4)
    own.embedding.requires_grad_(not frozen).train()
    own.embedding.backbone.blocks[1].eval()
    modules = [own.embedding, own.head]

    def state() -> tuple[list[bool], list[bool], str]:
        modes = [m.training for module in modules for m in module.modules()]
        flags = [w.requires_grad for module in modules for w in module.parameters()]
        return modes, flags, own.fingerprint

    before, rng_state = state(), torch.get_rng_state()
    with torch.no_grad():  # the caller may not be training
        near = nearest_classes(own, POOL, (1, "a"))
    assert state() == before
    assert torch.equal(torch.get_rng_state(), rng_state)
    assert all(w.grad is None for module in modules for w in module.parameters())
    torch.rand(5)
    assert torch.equal(nearest_classes(own, POOL, (1, "a")), near)
    assert not torch.equal(nearest_classes(own, POOL, (2, "a")), near)


# ── the Fisher information ───────────────────────────────────────────────────────────────────


def exact_fisher(own: Model, rows: Tensor, representatives: Tensor) -> Tensor:
    """One image and one label at a time, each label weighted by its probability."""
    weight = own.embedding.backbone.last_block.weight
    total = torch.zeros(len(weight), dtype=torch.float64)
    for row in rows:
        features = own.embedding(to_float(POOL.table.images[row][None]))
        log_p = own.head.logits(features, representatives).log_softmax(1)[0]
        for each in log_p:
            (gradient,) = torch.autograd.grad(each, weight, retain_graph=True)
            total += each.exp().item() * gradient.square().mean((1, 2, 3))
    return total / len(rows)


def test_estimate_is_near_the_exact_fisher() -> None:
    own, rows = model(width=6), POOL.class_rows[3][:20]
    means = own.head.anchors(own.class_features(POOL))
    estimates = [
        class_fisher(own, POOL, rows, generator("test", i), means, no_tick) for i in range(20)
    ]
    mean, exact = torch.stack(estimates).mean(0), exact_fisher(own, rows, means)
    torch.testing.assert_close(mean, exact, rtol=0.15, atol=0.02 * exact.max().item())


def test_distance_is_that_of_the_paper() -> None:
    fisher = torch.rand(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    distances = fisher_distances(fisher)
    for a in range(4):
        for b in range(4):
            both = fisher[a] + fisher[b]
            cosine = F.cosine_similarity(fisher[a] / both, fisher[b] / both, dim=0).item()
            assert distances[a, b].item() == pytest.approx(1 - cosine, abs=1e-12)


def test_filters_without_information_do_not_count() -> None:
    fisher = torch.tensor([[1.0, 0.0, 2.0], [2.0, 0.0, 1.0]]).double()
    torch.testing.assert_close(fisher_distances(fisher), fisher_distances(fisher[:, [0, 2]]))
    assert fisher_distances(torch.zeros(2, 3).double()).isfinite().all()


# ── the last block ───────────────────────────────────────────────────────────────────────────


def test_last_block_is_the_last_convolution_or_residual_block() -> None:
    assert Conv4(1, 4).last_block.weight.shape == (4, 4, 3, 3)
    block = ResNet12(1, (2, 3, 4, 5)).last_block
    assert [w.shape[0] for w in block.parameters() if w.ndim > 1] == [5, 5, 5, 5]


def test_last_layer_of_a_users_backbone_is_used() -> None:
    torch.manual_seed(0)
    layers = (nn.Flatten(), nn.Linear(SIDE**2, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU())
    near = nearest_classes(model(network=nn.Sequential(*layers)), POOL, (0,))
    assert (near[:, 0] == TWIN).sum() >= PAIRS


class WithUnusedLayer(nn.Module):
    """Has a last layer that is not used, as the classifier of many pretrained networks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.unused = nn.Linear(SIDE**2, 20), nn.Linear(20, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.used(images.flatten(1)).relu()


def test_backbone_whose_features_depend_on_no_filter_is_refused() -> None:
    for network in (nn.Flatten(), WithUnusedLayer()):
        with pytest.raises(KedgeError, match="last_block"):
            nearest_classes(model(network=network), POOL, (0,))


def test_unused_part_of_the_last_block_does_not_count() -> None:
    part, full = WithUnusedLayer(), WithUnusedLayer()
    part.last_block, full.last_block = part.used, nn.ModuleList(full.children())
    near = [nearest_classes(model(network=network), POOL, (0,)) for network in (part, full)]
    assert torch.equal(*near)
