"""Models, their files and their classifiers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from kedge import api
from kedge.data.decode import ImageSpec, decode
from kedge.data.open import open_images
from kedge.data.pack import pack_images
from kedge.data.pools import Pool
from kedge.data.readers import read_index
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.models.model import Model
from kedge.models.model_file import current_spec
from kedge.utils.atomic_io import load_tensors, save_tensors

SHORT = {"n_way": 2, "n_shot": 1, "n_query": 2, "epochs": 1, "episodes": 2, "val_episodes": 4}
Plainly = Callable[[dict[str, str]], dict[str, dict[str, Any]]]


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


def test_saving_twice_gives_the_same_bytes(model: Model, file: Path, tmp_path: Path) -> None:
    model.save(tmp_path / "again")
    Model.load(file).save(tmp_path / "loaded")
    assert (tmp_path / "again").read_bytes() == file.read_bytes()
    assert (tmp_path / "loaded").read_bytes() == file.read_bytes()


def test_loading_keeps_no_file_open_and_no_tie_to_the_file(model: Model, file: Path) -> None:
    loaded = [Model.load(file) for _ in range(20)]
    if Path("/proc/self/maps").exists():
        assert str(file) not in Path("/proc/self/maps").read_text()
        opened = [os.readlink(f"/proc/self/fd/{fd}") for fd in _open_files()]
        assert str(file) not in opened
    file.write_bytes(b"\xff" * file.stat().st_size)
    assert bits(loaded[0]) == bits(model)


def _open_files() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


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


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.999])
def test_truncated_file_is_refused(file: Path, kept: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content))])
    refused(file)


def test_every_flipped_bit_is_noticed(file: Path, tmp_path: Path) -> None:
    """In weights and anchors, but also in the checksum, class names, settings and lineage."""
    content = file.read_bytes()
    anywhere = np.random.default_rng(0).integers(0, len(content), 100).tolist()
    unnoticed = []
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
def test_file_of_every_version_gives_what_it_gave(version: int) -> None:
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
        loaded.classifier().probabilities(images),
        torch.tensor(expected["probabilities"]),
        rtol=1e-4,
        atol=2e-6,
    )


def test_file_of_this_version_has_the_same_bytes_as_ever(tmp_path: Path) -> None:
    Model.load(DATA / "format-2.kedge").save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (DATA / "format-2.kedge").read_bytes()


def test_damaged_file_of_the_first_version_is_refused(tmp_path: Path) -> None:
    content = (DATA / "format-1.kedge").read_bytes()
    for position in (content.index(b"first 1") + 6, len(content) - 1):
        damaged = bytearray(content)
        damaged[position] ^= 1
        (tmp_path / "flipped").write_bytes(damaged)
        assert "checksum" in refused(tmp_path / "flipped")


def test_options_of_earlier_versions_are_renamed_when_read() -> None:
    assert Model.load(DATA / "ecm.kedge").config.head.head == "ecm inner_steps=20"
    assert current_spec("DFA lambda=2 dimensions=mean") == "DFA lambda=2 reduction=mean"
    assert current_spec("EIML exemplars=3") == "EIML exemplars=3"


def test_file_of_a_newer_version_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.utils.atomic_io.VERSION", 3)
    about, tensors = {"format": "of the future"}, {"a": torch.ones(2)}
    save_tensors(tmp_path / "newer", tensors, about)
    monkeypatch.undo()
    assert "version 3" in refused(tmp_path / "newer")


def test_other_files(tmp_path: Path, first: Path) -> None:
    (tmp_path / "text").write_text("epoch,loss\n")
    open_images(first).save(tmp_path / "images")
    for path in (tmp_path / "missing", tmp_path / "text", tmp_path / "images", tmp_path):
        refused(path)


# ── forged files ─────────────────────────────────────────────────────────────────────────────


def changed(about: dict, *keys: str | int, value: object) -> dict:
    """A deep copy in which one entry is another."""
    about = json.loads(json.dumps(about))
    inner = about
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return about


FORGERIES: dict[str, tuple[tuple[str | int, ...], object]] = {
    "huge width": (("config", "backbone", "width"), 2**20),
    "width in words": (("config", "backbone", "width"), "wide"),
    "no backbone": (("config", "backbone"), None),
    "unknown backbone": (("config", "backbone", "backbone"), "os.system"),
    "unknown head": (("config", "head", "head"), "svm"),
    "other channels": (("config", "n_channels"), 3),
    "huge images": (("config", "image_size"), 2**40),
    "temperature in words": (("config", "head", "temperature"), "hot"),
    "config is a list": (("config",), []),
    "classes are a number": (("classes",), 6),
    "lineage of words": (("lineage",), ["round 0"]),
    "other settings of a round": (("lineage", 0, "config"), {"speed": 3}),
    "classes with one name": (("classes",), ["a"] * 6),
    "other features": (("config", "n_features"), 8),
    "more": (("more",), 1),
    "unknown resize": (("config", "fit"), "fill"),
    "inverted in words": (("config", "inverted"), "no"),
}


@pytest.fixture(scope="module")
def loaded(
    model: Model, first: Path, tmp_path_factory: pytest.TempPathFactory, plainly: Plainly
) -> dict[str, dict[str, Any]]:
    """What comes of loading files that were forged with care: the checksum is right."""
    folder = tmp_path_factory.mktemp("forged")
    honest = folder / "honest.kedge"
    model.save(honest)
    about, tensors = load_tensors(honest, "model")
    expressions = {"honest": f"kedge.Model.load({str(honest)!r})"}
    for name, (keys, value) in FORGERIES.items():
        path = folder / f"{name}.kedge"
        forged = changed(about, *keys, value=value)
        save_tensors(path, tensors, forged)
        expressions[name] = f"kedge.Model.load({str(path)!r})"
    images = f"kedge.open_images({str(first)!r})"
    classifier = f"{expressions['honest']}.classifier({images})"
    expressions["floats"] = f"{classifier}.predict({images}.images / 255)"
    return plainly(expressions)


@pytest.mark.slow
def test_forged_content_is_refused_and_takes_no_memory(loaded: dict[str, dict[str, Any]]) -> None:
    assert loaded["honest"]["said"].startswith("gave Model(")
    for name in FORGERIES:
        kind, _, sentence = loaded[name]["said"].partition(": ")
        assert kind == "KedgeError", loaded[name]["said"][:200]
        assert f"{name}.kedge: " in sentence
        assert loaded[name]["grown_mb"] < 300  # the huge width would need gigabytes
    # Pixels in 0…1, as many libraries give them, would all be black.
    assert loaded["floats"]["said"].startswith("KedgeError: ")


# ── classifier ───────────────────────────────────────────────────────────────────────────────


def test_classifier_takes_unequal_shots(model: Model, first: Path) -> None:
    """Each class's representative is that of its own examples, however many others have."""
    table = open_images(first)
    a, b, c = (table.images[table.rows_of(f"first {i}")] for i in range(3))
    mixed = model.classifier({"a": a[:1], "b": b[:12], "c": c[:5]})
    assert mixed.classes == ("a", "b", "c")
    for i, examples in enumerate((a[:1], b[:12], c[:5])):
        expected = model.embed(examples).mean(0)
        torch.testing.assert_close(mixed.representatives[i], expected, rtol=1e-5, atol=1e-5)
    probabilities = mixed.probabilities(torch.cat([a, b, c]))
    torch.testing.assert_close(probabilities.sum(1), torch.ones(36))
    assert mixed.predict(a[:1]) == ["a"]


def test_the_likeliest_classes_come_first_with_their_own_probabilities(
    model: Model, first: Path
) -> None:
    table, classifier = open_images(first), model.classifier()
    probabilities = classifier.probabilities(table.images)
    for n in (1, 3, 6, 9):
        for row, top in zip(probabilities, classifier.top(table.images, n), strict=True):
            by_name = dict(zip(classifier.classes, row.tolist(), strict=True))
            likeliest = sorted(by_name.items(), key=lambda each: each[1], reverse=True)
            assert top == likeliest[:n]
    assert len({tuple(name for name, _ in top) for top in classifier.top(table.images)}) > 1


def test_examples_are_brought_to_the_models_size_but_tables_are_not(model: Model) -> None:
    large = torch.zeros(2, 3, 20, 20, dtype=torch.uint8)
    assert model.classifier({"a": large}).classes == ("a",)
    with pytest.raises(KedgeError, match=r"3×20×20.*takes 1×16×16"):
        model.classifier(ImageTable.build(large, [0, 0], ["a"]))


def test_classifier_refuses_wrong_sizes_and_no_classes(model: Model, first: Path) -> None:
    table = open_images(first)
    classifier = model.classifier(table)
    with pytest.raises(KedgeError, match="takes 1×16×16"):
        classifier.predict(torch.zeros(2, 1, 20, 20, dtype=torch.uint8))
    assert classifier.predict(table.images[:0]) == []
    with pytest.raises(KedgeError, match="no image"):
        model.classifier({})
    for empty in (table.images[:0].numpy(), []):
        with pytest.raises(KedgeError, match="class 'b'"):
            model.classifier({"a": table.images[:3].numpy(), "b": empty})


# ── anchors ──────────────────────────────────────────────────────────────────────────────────


def test_class_that_is_delivered_again_gets_a_new_anchor(model: Model, first: Path) -> None:
    table = open_images(first)
    rows = table.rows_of("first 2")
    other = ImageTable.build(255 - table.images[rows].numpy(), [0] * len(rows), ["first 2"])
    after = model.with_anchors_of(Pool.all("new", other))
    assert sorted(after.classes) == sorted(model.classes)  # still one entry
    for i, name in enumerate(model.classes):
        anchor = after.anchors[after.classes.index(name)]
        if name == "first 2":
            expected = model.embed(other.images).mean(0)
            torch.testing.assert_close(anchor, expected, rtol=1e-5, atol=1e-5)
            assert not torch.allclose(anchor, model.anchors[i])
        else:
            assert torch.equal(anchor, model.anchors[i])


def test_anchor_is_the_mean_of_all_images_of_its_class(first: Path, second: Path) -> None:
    table = open_images(first)
    model = api.train(first, val=second, width=4, **SHORT)  # so that all images are trained on
    for name, anchor in zip(model.classes, model.anchors, strict=True):
        expected = model.embed(table.images[table.rows_of(name)]).mean(0)
        torch.testing.assert_close(anchor, expected, rtol=1e-5, atol=1e-5)


# ── a backbone of one's own ──────────────────────────────────────────────────────────────────


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


def test_own_backbone_has_to_be_handed_in_again(own: Model, tmp_path: Path) -> None:
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


def test_teacher_is_left_as_it_was(model: Model, second: Path) -> None:
    before, lineage = bits(model), model.lineage
    better = api.update(model, second, **SHORT)
    assert bits(model) == before
    assert model.lineage == lineage
    assert bits(better)["backbone.blocks.0.weight"] != before["backbone.blocks.0.weight"]


# ── images are seen as in training ───────────────────────────────────────────────────────────


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


@pytest.fixture(scope="module")
def straightened(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    """Trained on images three times as wide as high, packed with --fit stretch; and the images."""
    folder, rng = tmp_path_factory.mktemp("wide"), np.random.default_rng(0)
    for k in range(6):
        (folder / "wide" / f"kind {k}").mkdir(parents=True)
        for i in range(8):
            pixels = rng.integers(0, 256, (20, 60), dtype=np.uint8)
            pixels[:, :15] = 40 * k  # only those are of the class that a square leaves out
            Image.fromarray(pixels).save(folder / "wide" / f"kind {k}" / f"{i}.png")
    pack_images(read_index(folder / "wide"), ImageSpec(16, 1, "stretch"), folder / "packed")
    return api.train(folder / "packed", width=4, **SHORT), folder / "wide"


def by_hand(folder: Path, look: ImageSpec) -> Tensor:
    files = sorted(folder.rglob("*.png"))
    return torch.stack([torch.tensor(decode(file, look)) for file in files])


@pytest.mark.parametrize("kind", ["on_white", "straightened"])
def test_images_are_seen_as_in_training(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    trained, folder = request.getfixturevalue(kind)
    look = ImageSpec(28, 1, "crop", True) if kind == "on_white" else ImageSpec(16, 1, "stretch")
    images = by_hand(folder, look)
    assert not torch.equal(images, by_hand(folder, ImageSpec(look.image_size, 1)))  # it matters
    trained.save(tmp_path / "model.kedge")
    better = api.update(trained, folder, **SHORT)
    for each in (trained, Model.load(tmp_path / "model.kedge"), better):
        assert each.image_spec == look
        assert torch.equal(each.open(folder).images, images)
        table = open_images(folder, spec=look)
        ours, theirs = each.classifier(folder), each.classifier(table)
        assert torch.equal(ours.representatives, theirs.representatives)


def test_packed_images_must_be_as_in_training(on_white: tuple[Model, Path], tmp_path: Path) -> None:
    """Pixels in a packed file are not inverted any more."""
    trained, folder = on_white
    pack_images(read_index(folder), ImageSpec(28, 1), tmp_path / "plain")
    with pytest.raises(KedgeError, match="plain"):
        trained.open(tmp_path / "plain")
    pack_images(read_index(folder), trained.image_spec, tmp_path / "inverted")
    assert torch.equal(trained.open(tmp_path / "inverted").images, trained.open(folder).images)


def test_what_is_in_memory_is_not_inverted_again(on_white: tuple[Model, Path]) -> None:
    """Examples are taken as the images to predict are, which are arrays too."""
    trained, folder = on_white
    table = trained.open(folder)
    given = {name: table.images[table.rows_of(name)] for name in table.classes}
    expected = trained.classifier(folder)
    for support in (given, (table.images.numpy(), table.labels, table.classes), table):
        classifier = trained.classifier(support)
        assert torch.equal(classifier.representatives, expected.representatives)
    assert expected.predict(table.images) == trained.classifier(given).predict(table.images)


def test_model_file_that_does_not_say_how_is_as_it_was(
    on_white: tuple[Model, Path], tmp_path: Path
) -> None:
    """Before images could be inverted or straightened, none was."""
    path = tmp_path / "old.kedge"
    on_white[0].save(path)
    about, tensors = load_tensors(path, "model")
    tensors = {key: value.clone() for key, value in tensors.items()}
    del about["config"]["fit"], about["config"]["inverted"]
    save_tensors(path, tensors, about)
    old = Model.load(path)
    assert old.image_spec == ImageSpec(28, 1, "crop", False)
    assert bits(old) == bits(on_white[0])


# ── what a classifier takes ──────────────────────────────────────────────────────────────────


def test_classes_may_be_numbers(model: Model, first: Path) -> None:
    images = open_images(first).images
    classifier = model.classifier({0: images[:5], 1: images[12:17]})
    assert classifier.classes == ("class 0000", "class 0001")
    named = model.classifier({"x": images[:5], "y": images[12:17]})
    assert torch.equal(classifier.representatives, named.representatives)


def test_every_layout_gives_the_same_probabilities(model: Model, first: Path) -> None:
    table = open_images(first)
    grey = model.classifier(table)
    pixels = table.images.numpy()
    expected = grey.probabilities(table.images)
    for form in (pixels, pixels[:, 0], pixels.transpose(0, 2, 3, 1), table.images[:, 0]):
        assert torch.equal(grey.probabilities(form), expected)
        assert grey.predict(form) == grey.predict(table.images)
    colours = np.random.default_rng(0).integers(0, 256, (60, 3, 16, 16), dtype=np.uint8)
    labels = np.repeat(np.arange(6), 10)
    colour = api.train((colours, labels), width=4, **SHORT).classifier((colours, labels))
    expected = colour.probabilities(colours)
    last = np.ascontiguousarray(colours.transpose(0, 2, 3, 1))
    reversed_view = np.ascontiguousarray(colours[..., ::-1])[..., ::-1]
    for array in (last, torch.from_numpy(last), reversed_view):
        torch.testing.assert_close(colour.probabilities(array), expected)
    with pytest.raises(KedgeError, match="takes 3×16×16"):
        colour.probabilities(colours[:, 0])
