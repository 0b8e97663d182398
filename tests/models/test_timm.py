"""Networks of timm: their weights, preprocessing and layers; rebuilt from a model file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from tests.models.timm_import import define_torchvision_ops, needs_timm, save_random_weights

from kedge.config import BackboneConfig, BackboneOptions, HeadConfig
from kedge.errors import KedgeError
from kedge.models.embedding import Embedding, ModelConfig
from kedge.models.heads import build_head
from kedge.models.model import Model
from kedge.models.pretrained import PretrainedNetwork, load_pretrained
from kedge.models.timm_backbone import TimmBackbone

NETWORKS = {  # of each family a small one, and a size that it can take
    "resnet18": 64,
    "convnext_atto": 64,
    "vit_tiny_patch16_224": 96,
    "vit_small_patch14_dinov2": 70,
    "vit_base_patch32_clip_224": 64,
    "swin_tiny_patch4_window7_224": 112,  # has tables that are not in its state dict
}


@pytest.fixture(autouse=True)
def timm_can_be_imported(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("skipif") is not None:
        define_torchvision_ops()


def loaded(name: str, file: Path, size: int | None = None) -> PretrainedNetwork:
    found = load_pretrained(BackboneOptions(f"timm:{name}", weights=str(file)), size)
    assert found is not None
    return found


def model_of(network: PretrainedNetwork) -> Model:
    """A model without classes, as training makes it."""
    assert network.origin is not None
    backbone = BackboneConfig(network.origin.architecture)
    n_features = network.module(torch.zeros(2, 3, *[network.image_size] * 2)).shape[1]
    config = ModelConfig(
        backbone, HeadConfig(), 3, network.image_size, n_features, pretrained=network.origin
    )
    embedding = Embedding(config, network.module)
    head = build_head(config.head, n_features)
    return Model(config, embedding, head, (), torch.empty(0, 0), ())


@needs_timm
@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_network_is_loaded_saved_and_rebuilt_without_its_weights(name: str, tmp_path: Path) -> None:
    file, size = tmp_path / "weights.safetensors", NETWORKS[name]
    save_random_weights(name, file)
    network = loaded(name, file, size)
    model = model_of(network)
    model.save(tmp_path / "model.kedge")
    file.unlink()
    again = Model.load(tmp_path / "model.kedge")
    assert again.config == model.config
    images = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    assert torch.equal(model.embed(images), again.embed(images))
    backbone = again.embedding.backbone
    assert isinstance(backbone, TimmBackbone)
    assert backbone.n_features(size) == model.config.n_features
    # Every weight is in one group.
    names = [name for group in backbone.layer_groups() for name in group]
    assert sorted(names) == sorted(name for name, _ in backbone.named_parameters())


@needs_timm
def test_weights_and_preprocessing_are_those_of_timm(tmp_path: Path) -> None:
    """At its own size the features are those of timm's network before its classifier."""
    import timm

    name, file = "vit_tiny_patch16_224", tmp_path / "weights.pth"
    save_random_weights(name, file)
    network = loaded(name, file)
    assert (network.image_size, network.interpolation) == (224, "bicubic")
    assert (network.mean, network.std) == ((0.5,) * 3, (0.5,) * 3)
    assert network.origin is not None
    assert network.origin.architecture == f"timm:{name}"
    assert network.origin.version == timm.__version__
    plain = timm.create_model(name, pretrained=False)
    plain.load_state_dict(torch.load(file))
    images = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        expected = plain.eval().forward_head(plain.forward_features(images), pre_logits=True)
        assert torch.equal(network.module.eval()(images), expected)
    groups = network.module.layer_groups()
    assert all(name.startswith("network.blocks.10.") for name in groups[-2])
    assert "network.norm.weight" in groups[-1]


@needs_timm
def test_wrong_weights_are_an_error(tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    save_random_weights("resnet18", file)
    with pytest.raises(KedgeError, match=r"weights\.pt: .*cls_token"):
        loaded("vit_tiny_patch16_224", file)
    with pytest.raises(KedgeError, match=r"weights\.pt: .*layer1"):
        loaded("resnet50", file)
    with pytest.raises(KedgeError, match="--weights FILE"):
        load_pretrained(BackboneOptions("timm:resnet18"), None)


@needs_timm
@pytest.mark.parametrize(
    "name",
    [
        "hf-hub:timm/resnet18",
        "hf_hub:timm/resnet18",
        "local-dir:folder",
        "timm/resnet18",
        "resnet18.no_such_tag",
        "no_such_network",
        "../resnet18",
        "",
    ],
)
def test_only_names_of_the_registry_are_built(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the user or from a file; nothing is fetched or read."""
    import timm.models._factory as factory

    for loader in ("load_model_config_from_hf", "load_model_config_from_path"):
        monkeypatch.setattr(factory, loader, lambda *a, **k: pytest.fail("something is fetched"))
    with pytest.raises(KedgeError, match="timm"):
        TimmBackbone(name, 3, 224)


def test_without_timm_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(KedgeError, match=r"pip install 'kedge\[timm\]'"):
        load_pretrained(BackboneOptions("timm:resnet18"), None)
