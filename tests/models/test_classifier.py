"""What `predict`, `predict_proba` and `score` take and give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import kedge
from kedge import api
from kedge.data.open import open_images
from kedge.errors import KedgeError
from kedge.models.model import Model

SHORT = {"n_way": 2, "n_shot": 1, "n_query": 2, "epochs": 1, "episodes": 2, "val_episodes": 4}
RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (18, 16, 16, 3), dtype=np.uint8)  # N×H×W×C
LABELS = np.repeat(["ant", "bat", "cat"], 6)


@pytest.fixture(scope="module")
def model() -> Model:
    return api.train((COLOUR, LABELS), width=4, backbone="conv4", **SHORT)


def tensors(array: np.ndarray) -> torch.Tensor:
    """As torchvision's ToTensor gives them."""
    return torch.from_numpy(array).permute(0, 3, 1, 2) / 255


class Batches:
    """A loader that is not PyTorch's."""

    dataset = ()

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def in_memory(array: np.ndarray, folder: Path) -> dict[str, Any]:
    """The same images in every form."""
    paths = [folder / f"{i}.png" for i in range(len(array))]
    for path, image in zip(paths, array, strict=True):
        Image.fromarray(image).save(path)
    pairs = TensorDataset(tensors(array), torch.arange(len(array)) % 3)
    return {
        "uint8": array,
        "channels first": array.transpose(0, 3, 1, 2),
        "floats": array / 255,
        "32-bit floats, channels first": (array / np.float32(255)).transpose(0, 3, 1, 2),
        "tensor": tensors(array),
        "list of arrays": list(array),
        "list of floats": [image / 255 for image in array],
        "list of tensors": list(tensors(array)),
        "Pillow": [Image.fromarray(image) for image in array],
        "paths": paths,
        "texts": [str(path) for path in paths],
        "generator": (path for path in paths),
        "data set": pairs,
        "pairs": [(image, 0) for image in array],
        "loader": DataLoader(pairs, batch_size=5),
        "loader of images": DataLoader(TensorDataset(tensors(array)), batch_size=5),
        "loader without batches": DataLoader(pairs, batch_size=None),
        "loader of lists": DataLoader(
            [Image.fromarray(image) for image in array], batch_size=5, collate_fn=list
        ),
    }


def test_every_form_gives_the_same(model: Model, tmp_path: Path) -> None:
    expected = model.predict_proba(COLOUR)
    assert expected.shape == (18, 3)
    for name, images in in_memory(COLOUR, tmp_path).items():
        assert torch.equal(model.predict_proba(images), expected), name


@pytest.mark.parametrize("grey", [False, True])
def test_one_image(model: Model, grey: bool, tmp_path: Path) -> None:
    one = COLOUR[3, ..., 0] if grey else COLOUR[3]
    Image.fromarray(one).save(tmp_path / "x.png")
    forms: list[Any] = [one, one / 255, torch.from_numpy(one), Image.fromarray(one)]
    forms += [tmp_path / "x.png", str(tmp_path / "x.png"), (tmp_path / "x.png").read_bytes()]
    forms += [] if grey else [one.transpose(2, 0, 1), tensors(COLOUR)[3]]
    expected = model.predict_proba([one])
    for image in forms:
        assert torch.equal(model.predict_proba(image), expected)
        assert len(model.predict(image)) == 1


def test_images_of_other_sizes_are_resized_and_grey_ones_are_coloured(model: Model) -> None:
    large = RNG.integers(0, 256, (4, 40, 32, 3), dtype=np.uint8)
    expected = model.predict_proba(list(map(Image.fromarray, large)))
    for images in (large, large / 255, tensors(large)):
        assert torch.equal(model.predict_proba(images), expected)
    grey = torch.equal(
        model.predict_proba(COLOUR[..., 0]), model.predict_proba(COLOUR[..., [0] * 3])
    )
    assert grey


def test_three_grey_images_are_no_colour_image(first: Path) -> None:
    grey = api.train(first, width=4, **SHORT)
    assert len(grey.predict(open_images(first).images[:3, 0])) == 3


def test_training_takes_a_loader(model: Model) -> None:
    numbers = torch.from_numpy(np.repeat([0, 1, 2], 6))
    pairs = TensorDataset(tensors(COLOUR), numbers)
    pairs.classes = ["ant", "bat", "cat"]  # type: ignore[attr-defined]
    loader = DataLoader(pairs, batch_size=5)
    trained = api.train(loader, width=4, backbone="conv4", **SHORT)
    assert trained.fingerprint == model.fingerprint
    shuffled = open_images(DataLoader(pairs, batch_size=5, shuffle=True))
    assert any("shuffle=False" in remark for remark in shuffled.remarks)
    assert sorted(shuffled.counts.tolist()) == [6, 6, 6]
    two = torch.zeros(2, 3, 8, 8)
    for wrong in ({"image": two}, two, (two,), (two, [1])):
        with pytest.raises(KedgeError, match="batch 0"):
            open_images(Batches([wrong]))


WRONG: dict[str, Callable[[], Any]] = {
    "divide": lambda: COLOUR.astype(np.float32),
    "Normalize": lambda: (COLOUR / 127.5 - 1)[0],
    "finite": lambda: COLOUR * np.nan,
    "uint8": lambda: COLOUR.astype(np.int64),
    "shape": lambda: COLOUR[None],
    "int": lambda: 5,
    "no image": list,
    "gone.png": lambda: ["gone.png"],
}


@pytest.mark.parametrize("word", WRONG)
def test_what_is_wrong_is_said(model: Model, word: str) -> None:
    with pytest.raises(KedgeError, match=word):
        model.predict(WRONG[word]())


def test_score_and_order_of_columns(model: Model) -> None:
    predicted = model.predict(COLOUR)
    best = model.predict_proba(COLOUR).argmax(1)
    assert [model.classes[i] for i in best] == predicted
    assert model.score(COLOUR, predicted) == 1
    share = np.mean(np.array(predicted) == LABELS)
    assert model.score(COLOUR, LABELS) == model.classifier().score(COLOUR, LABELS) == share
    with pytest.raises(KedgeError, match="'dog'"):
        model.score(COLOUR, ["dog"] * 18)
    with pytest.raises(KedgeError, match="18 images but 17 labels"):
        model.score(COLOUR, predicted[1:])


def test_labels_that_are_numbers_can_be_scored() -> None:
    numbers = np.repeat([0, 1, 2], 6)
    model = api.train((COLOUR, numbers), width=4, backbone="conv4", **SHORT)
    assert 0 <= model.score(COLOUR, numbers) <= 1


def test_what_a_session_shows(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "x.kedge")
    lines = repr(kedge.load(tmp_path / "x.kedge")).splitlines()
    assert len(lines) == 3
    for line, words in zip(lines, (["conv4", "16×16"], ["3", "ant"], ["base", "%"]), strict=True):
        assert all(word in line for word in words), line
    assert "3 classes: ant, bat, cat" in repr(model.classifier())
    table = open_images((COLOUR, LABELS))
    assert "3 classes of 6 images" in repr(table)
    assert "0 images" in repr(table.subset(torch.empty(0, dtype=torch.int64)))
