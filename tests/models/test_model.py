"""Models, their files and their classifiers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from kedge import api
from kedge.data.decode import ImageSpec
from kedge.data.decode_pool import decode_each
from kedge.data.open import open_images
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.models import model_file
from kedge.models.model import Model
from kedge.models.model_file import current_spec
from kedge.utils.atomic_io import load_tensors

SHORT = {"n_way": 2, "n_shot": 1, "n_query": 2, "epochs": 1, "episodes": 2, "val_episodes": 4}


@pytest.fixture(scope="module")
def model(first: Path) -> Model:
    return api.train(first, width=4, **SHORT)


@pytest.fixture
def file(model: Model, tmp_path: Path) -> Path:
    model.save(tmp_path / "model.kedge")
    return tmp_path / "model.kedge"


def bits(model: Model) -> dict[str, bytes]:
    named = {**model.embedding.state_dict(), **model.head.state_dict(), "anchors": model.anchors}
    return {key: value.contiguous().numpy().tobytes() for key, value in named.items()}


def test_everything_comes_back(model: Model, file: Path, first: Path) -> None:
    loaded = Model.load(file)
    assert bits(loaded) == bits(model)
    assert loaded.config == model.config
    assert loaded.classes == model.classes == tuple(f"first {i}" for i in range(6))
    assert loaded.lineage == model.lineage
    assert loaded.fingerprint == model.fingerprint
    images = open_images(first).images
    assert torch.equal(loaded.embed(images), model.embed(images))
    assert not loaded.embedding.training
    assert not any(p.requires_grad for p in loaded.embedding.parameters())
    assert not loaded.anchors.requires_grad
    file.write_bytes(b"\xff" * file.stat().st_size)  # the tensors are not mapped from the file
    assert bits(loaded) == bits(model)


def test_model_moves_as_a_copy(model: Model) -> None:
    before = bits(model)
    elsewhere = model.to("meta")
    assert elsewhere.device.type == "meta"
    assert {p.device.type for p in model.embedding.parameters()} == {"cpu"}
    assert bits(model) == before


def test_file_holds_no_image(file: Path, first: Path) -> None:
    """Neither as bytes nor as the floats that the network sees."""
    content = file.read_bytes()
    images = open_images(first).images.numpy()
    mean, std = (load_tensors(file, "")[1][f"embedding.{k}"].numpy() for k in ("mean", "std"))
    scaled = images.astype(np.float32) / 255
    normalised = (scaled - mean) / std
    for form in (images, scaled, normalised):
        rows = form.reshape(-1, form.shape[-1])
        for row in rows[:: max(1, len(rows) // 300)]:
            if len(np.unique(row)) > 3:  # a flat row proves nothing
                assert row.tobytes() not in content


def refused(path: Path) -> str:
    with pytest.raises(KedgeError) as caught:
        Model.load(path)
    sentence = str(caught.value)
    assert path.name in sentence
    assert "\n" not in sentence
    return sentence


def test_every_flipped_bit_is_noticed(file: Path, tmp_path: Path) -> None:
    """In weights and anchors, but also in the checksum, class names, settings and lineage."""
    content = file.read_bytes()
    anywhere = np.random.default_rng(0).integers(0, len(content), 100).tolist()
    unnoticed = []
    (tmp_path / "cut").write_bytes(content[:-1])
    refused(tmp_path / "cut")
    for position in (*anywhere, *range(0, 1000, 7), content.index(b"first 3") + 6):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        (tmp_path / "flipped").write_bytes(damaged)
        try:
            Model.load(tmp_path / "flipped")
            unnoticed.append((position, content[position - 12 : position + 12]))
        except KedgeError:
            pass
    assert unnoticed == []


DATA = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("version", [1, 2])
def test_files_of_every_version_give_the_same_predictions(version: int) -> None:
    loaded = Model.load(DATA / f"format-{version}.kedge")
    expected = json.loads((DATA / "expected.json").read_text(encoding="utf-8"))
    numbers = torch.arange(7 * 16 * 16).reshape(7, 1, 16, 16)
    images = (numbers * numbers // 7 % 251).to(torch.uint8)
    assert list(loaded.classes) == expected["classes"]
    assert loaded.fingerprint == expected["fingerprint"]
    assert [entry.method for entry in loaded.lineage] == ["base", "EIML exemplars=3"]
    # The numbers were rounded to six digits, and another machine may round otherwise.
    torch.testing.assert_close(
        loaded.embed(images), torch.tensor(expected["features"]), rtol=1e-4, atol=2e-6
    )
    torch.testing.assert_close(
        loaded.classifier().predict_proba(images),
        torch.tensor(expected["probabilities"]),
        rtol=1e-4,
        atol=2e-6,
    )


def test_saving_a_loaded_file_gives_the_same_bytes(tmp_path: Path) -> None:
    Model.load(DATA / "format-2.kedge").save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (DATA / "format-2.kedge").read_bytes()


def test_damaged_file_of_format_1_is_refused(tmp_path: Path) -> None:
    content = (DATA / "format-1.kedge").read_bytes()
    for position in (content.index(b"first 1") + 6, len(content) - 1):
        damaged = bytearray(content)
        damaged[position] ^= 1
        (tmp_path / "flipped").write_bytes(damaged)
        assert "checksum" in refused(tmp_path / "flipped")


def test_a_file_of_too_many_rounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes time to be read and shown."""
    monkeypatch.setattr(model_file, "MOST_ROUNDS", 0)
    assert "1 rounds" in refused(DATA / "base.kedge")


def test_options_of_earlier_versions_are_renamed_when_read() -> None:
    assert Model.load(DATA / "ecm.kedge").config.head.head == "ecm inner_steps=20"
    assert current_spec("DFA lambda=2 dimensions=mean") == "DFA lambda=2 reduction=mean"
    assert current_spec("EIML exemplars=3") == "EIML exemplars=3"


# ── classifier ───────────────────────────────────────────────────────────────────────────────


def test_classifier_takes_unequal_shots(model: Model, first: Path) -> None:
    table = open_images(first)
    a, b, c = (table.images[table.rows_of(f"first {i}")] for i in range(3))
    mixed = model.classifier({"a": a[:1], "b": b[:12], "c": c[:5]})
    assert mixed.classes == ("a", "b", "c")
    for i, examples in enumerate((a[:1], b[:12], c[:5])):
        expected = model.embed(examples).mean(0)
        torch.testing.assert_close(mixed.representatives[i], expected, rtol=1e-5, atol=1e-5)
    probabilities = mixed.predict_proba(torch.cat([a, b, c]))
    torch.testing.assert_close(probabilities.sum(1), torch.ones(36))
    assert mixed.predict(a[:1]) == ["a"]


def test_top_classes_are_sorted_by_probability(model: Model, first: Path) -> None:
    table, classifier = open_images(first), model.classifier()
    probabilities = classifier.predict_proba(table.images)
    for n in (1, 3, 6, 9):
        for row, top in zip(probabilities, classifier.top(table.images, n), strict=True):
            by_name = dict(zip(classifier.classes, row.tolist(), strict=True))
            likeliest = sorted(by_name.items(), key=lambda each: each[1], reverse=True)
            assert top == likeliest[:n]
    assert len({tuple(name for name, _ in top) for top in classifier.top(table.images)}) > 1


@pytest.mark.filterwarnings("ignore::kedge.errors.KedgeWarning")  # of copies and empty classes
def test_examples_are_resized_but_tables_are_not(model: Model) -> None:
    large = torch.zeros(2, 3, 20, 20, dtype=torch.uint8)
    assert model.classifier({"a": large}).classes == ("a",)
    with pytest.raises(KedgeError, match=r"3×20×20.*takes 1×16×16"):
        model.classifier(ImageTable.build(large, [0, 0], ["a"]))


@pytest.mark.filterwarnings("ignore::kedge.errors.KedgeWarning")  # of copies and empty classes
def test_classifier_refuses_wrong_sizes_and_no_classes(model: Model, first: Path) -> None:
    table = open_images(first)
    classifier = model.classifier(table)
    wrong = ImageTable.build(torch.zeros(2, 1, 20, 20, dtype=torch.uint8), [0, 0], ["a"])
    with pytest.raises(KedgeError, match="takes 1×16×16"):
        classifier.predict(wrong)
    assert classifier.predict(table.images[:0]) == []
    with pytest.raises(KedgeError, match="no image"):
        model.classifier({})
    for empty in (table.images[:0].numpy(), []):
        with pytest.raises(KedgeError, match="class 'b'"):
            model.classifier({"a": table.images[:3].numpy(), "b": empty})


# ── anchors ──────────────────────────────────────────────────────────────────────────────────


# ── custom backbones ───────────────────────────────────────────────────────────────────────────


class Own(nn.Module):
    """Any module from images to features will do."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, stride=2)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.first(images)).relu().mean((2, 3))


@pytest.fixture(scope="module")
def own(first: Path) -> Model:
    torch.manual_seed(0)
    backbone = Own()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    model = api.train(first, backbone=backbone, **SHORT)
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())
    return model


def test_own_backbone_is_trained_updated_and_reloaded(
    own: Model, second: Path, tmp_path: Path
) -> None:
    better = api.update(own, second, **SHORT)
    better.save(tmp_path / "own.kedge")
    loaded = Model.load(tmp_path / "own.kedge", backbone=Own())
    assert bits(loaded) == bits(better)
    images = open_images(second).images
    assert torch.equal(loaded.embed(images), better.embed(images))
    assert loaded.config.n_features == 6


def test_own_backbone_has_to_be_passed_in_again(own: Model, tmp_path: Path) -> None:
    own.save(tmp_path / "own.kedge")
    assert "backbone" in refused(tmp_path / "own.kedge")
    with pytest.raises(KedgeError, match=r"first\.weight"):
        Model.load(tmp_path / "own.kedge", backbone=Own(width=7))


class Tied(Own):
    """Two layers with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Conv2d(1, 6, 3, stride=2)
        self.second.weight = self.first.weight

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + self.second(images).mean((2, 3))


def test_own_backbone_may_share_weights(first: Path, tmp_path: Path) -> None:
    model = api.train(first, backbone=Tied(), **SHORT)
    model.save(tmp_path / "tied.kedge")
    assert bits(Model.load(tmp_path / "tied.kedge", backbone=Tied())) == bits(model)


# ── preprocessing as in training ─────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def on_white(
    tmp_path_factory: pytest.TempPathFactory, draw_classes: Callable[..., Path]
) -> tuple[Model, Path]:
    """Trained on Omniglot's folders, whose drawings are dark on white; and other such drawings."""
    folder = tmp_path_factory.mktemp("on white")
    draw_classes(
        folder / "images_background" / "Greek", [f"character{i:02}" for i in range(6)], side=28
    )
    draw_classes(folder / "support", ["a", "b", "c"], side=28)
    for path in folder.rglob("*.png"):
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    return api.train(folder / "images_background", width=4, **SHORT), folder / "support"


def decoded(folder: Path, spec: ImageSpec) -> Tensor:
    files = sorted(folder.rglob("*.png"))
    return torch.stack([torch.tensor(decode_each([file], spec)[0].pixels) for file in files])


def test_images_are_preprocessed_as_in_training(
    on_white: tuple[Model, Path], tmp_path: Path
) -> None:
    (trained, folder), spec = on_white, ImageSpec(28, 1, "crop", True)
    images = decoded(folder, spec)
    assert not torch.equal(images, decoded(folder, ImageSpec(spec.image_size, 1)))
    trained.save(tmp_path / "model.kedge")
    better = api.update(trained, folder, **SHORT)
    for each in (trained, Model.load(tmp_path / "model.kedge"), better):
        assert each.image_spec == spec
        assert torch.equal(each.open(folder).images, images)
        table = open_images(folder, spec=spec)
        ours, theirs = each.classifier(folder), each.classifier(table)
        assert torch.equal(ours.representatives, theirs.representatives)


# ── what a classifier takes ──────────────────────────────────────────────────────────────────


def test_every_layout_gives_the_same_probabilities(model: Model, first: Path) -> None:
    table = open_images(first)
    grey = model.classifier(table)
    pixels = table.images.numpy()
    expected = grey.predict_proba(table.images)
    for form in (pixels, pixels[:, 0], pixels.transpose(0, 2, 3, 1), table.images[:, 0]):
        assert torch.equal(grey.predict_proba(form), expected)
        assert grey.predict(form) == grey.predict(table.images)
    colours = np.random.default_rng(0).integers(0, 256, (60, 3, 16, 16), dtype=np.uint8)
    labels = np.repeat(np.arange(6), 10)
    colour = api.train((colours, labels), width=4, **SHORT).classifier((colours, labels))
    expected = colour.predict_proba(colours)
    last = np.ascontiguousarray(colours.transpose(0, 2, 3, 1))
    reversed_view = np.ascontiguousarray(colours[..., ::-1])[..., ::-1]
    for array in (last, torch.from_numpy(last), reversed_view):
        torch.testing.assert_close(colour.predict_proba(array), expected)
