"""A round on a user's images: training, then what makes the model know every delivered class.

`train_round` leaves anchors for the classes it trained on. Here the classes that only validated or
were too small get anchors too, and the means of old classes are corrected for drift. Where
validation chose nothing, anchors come from all delivered images, those of validation too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from kedge.config import EpisodeOptions, Privacy, TrainConfig
from kedge.data.pools import Pool, RoundData
from kedge.data.table import ImageTable
from kedge.episodes.train_val_split import TrainValSplit
from kedge.errors import KedgeError
from kedge.evaluation.known_novelty import RoundSpread
from kedge.evaluation.outcome import measure_round
from kedge.methods.base import Memory
from kedge.methods.registry import Method
from kedge.models.calibration import Calibration
from kedge.models.drift_compensation import DeliveredFeatures, compensated_means
from kedge.models.model import VIRTUAL_SAMPLES, Model
from kedge.training.duration import tell_duration
from kedge.training.privacy import check_privacy, with_noise, without_sources
from kedge.training.round import train_round, trains
from kedge.training.step import default_device
from kedge.utils import distributed, progress

MAX_CONTRAST = 500  # trained images, and classes, that missing anchors are fitted against


def limit_shots_to_memory(
    split: TrainValSplit, method: Method, memory: Memory, options: EpisodeOptions
) -> TrainValSplit:
    """The split with as many shots as the images kept of old classes allow for old episodes.

    Raises KedgeError if the user asked for more shots, or the memory lacks what the method needs.
    """
    alignment, shape = method.alignment, split.shape
    while alignment is not None and method.weight:
        try:
            alignment.check(shape)
            alignment.rehearsal_pool(memory, shape)
            break
        except KedgeError:
            if options.n_shot is not None or shape.n_shot == 1:
                raise
            shape = replace(shape, n_shot=shape.shots[1] - 1)
    if shape == split.shape:
        return split
    reasons = [reason for reason in split.reasons if not reason.startswith("--n-shot")]
    fewer = f"--n-shot {shape.n_shot}: support images per class, as many as the kept images allow"
    return replace(split, shape=shape, reasons=[fewer, *reasons])


def train_user_round(
    start: Model,
    split: TrainValSplit,
    method: Method,
    config: TrainConfig,
    checkpoint: str | Path | None,
    table: ImageTable,
    memory: Memory | None = None,
    privacy: Privacy | None = None,
) -> Model:
    """The model after its next round; its classes are the older ones, then those of the table.

    `split` divides the images of the table into training and validation.
    """
    if privacy is not None:
        check_privacy(privacy, start, split, table, config)
    path = None if checkpoint is None else Path(checkpoint)
    n_episodes = config.schedule.epochs * config.schedule.episodes
    round = start.lineage[-1].round + 1 if start.lineage else 0
    round_data = RoundData(round, split.train, split.val)
    start = start.to(default_device())
    if trains(config.schedule) and (path is None or not path.exists()):
        tell_duration(start, round_data, method, config, memory or {})
    with progress.task(f"round {round}: episodes", n_episodes) as tick:
        model = train_round(start, round_data, method, config, path, tick, memory).model
    all_images = config.schedule.annealing == "cosine" and _few_for_anchors(model, split, table)
    if all_images:
        model = _anchors_of_all_images(start, model, split, table)
    else:
        model = _add_missing_anchors(model, split, table)
    delivered = set(table.classes)
    classes = (*(name for name in model.classes if name not in delivered), *table.classes)
    *earlier, entry = model.lineage
    trained = set(entry.classes)
    untrained = tuple(name for name in table.classes if name not in trained)
    lineage = (*earlier, replace(entry, untrained=untrained))
    model = replace(model, classes=classes, anchors=model.anchors_of(classes), lineage=lineage)
    features = DeliveredFeatures.of(start, model, table)
    model = replace(model, class_means=compensated_means(start, model, table, features))
    model = replace(model, calibration=_with_counts(start, model, table))
    spread = None
    if privacy is not None:  # before it is measured, so that the outcome includes the noise
        model = replace(with_noise(model, start, table.classes, privacy), spread=None)
    else:
        spread = RoundSpread.of(start, model, features)
        model = replace(model, spread=spread.spread())
    model = _measured(start, model, split, table, features, all_images, spread).to("cpu")
    if privacy is not None:
        model = without_sources(model, start, privacy)
    means = None if model.class_means is None else distributed.broadcast(model.class_means)
    spread_after = None if model.spread is None else distributed.broadcast(model.spread)
    anchors = distributed.broadcast(model.anchors)
    return replace(model, anchors=anchors, class_means=means, spread=spread_after)


def _measured(
    start: Model,
    model: Model,
    split: TrainValSplit,
    table: ImageTable,
    features: DeliveredFeatures,
    all_images: bool,
    spread: RoundSpread | None,
) -> Model:
    """The model with what its round did in its lineage, and with how novel known images are.
    `all_images` says whether anchors are of all delivered images, those held back too."""
    # Only anchors of classes that trained lack the images that did not; those of a round without
    # training lack none.
    trained = model.lineage[-1].best_epoch > 0 and not all_images
    in_anchors = set(table.classes) - set(split.train.classes if trained else ())
    held_back, few_shot = split.held_back, split.few_shot
    measured = measure_round(start, model, table, features, held_back, few_shot, in_anchors, spread)
    outcome, scores = distributed.broadcast(measured)
    *earlier, entry = model.lineage
    calibration = model.calibration
    if calibration is not None and (model.spread is None) != (start.spread is None):
        calibration = replace(calibration, novelty=())  # they were measured in another space
    if calibration is not None and scores:
        calibration = calibration.with_novelty(scores)
    lineage = (*earlier, replace(entry, outcome=outcome))
    return replace(model, lineage=lineage, calibration=calibration)


def _with_counts(start: Model, model: Model, table: ImageTable) -> Calibration | None:
    """The calibration with the number of images that the mean of each delivered class comes from:
    those of its anchor, or if the class was known, those that were pooled with its stored mean."""
    if model.calibration is None:
        return None
    counts, known = model.calibration.counts, set(start.classes)
    n_images = dict(zip(table.classes, table.counts.tolist(), strict=True))
    again = {name: n_images[name] + VIRTUAL_SAMPLES for name in n_images if name in known}
    added = {name: n_images[name] for name in n_images if name not in counts}
    return distributed.broadcast(model.calibration.with_counts(again | added))


def _few_for_anchors(model: Model, split: TrainValSplit, table: ImageTable) -> bool:
    """Whether anchors of trained classes were made from a part of the delivered images only."""
    counts = dict(zip(table.classes, table.counts.tolist(), strict=True))
    trained = zip(split.train.classes, split.train.counts.tolist(), strict=True)
    return not model.head.learns_class_embeddings and any(n < counts[name] for name, n in trained)


def _anchors_of_all_images(
    start: Model, model: Model, split: TrainValSplit, table: ImageTable
) -> Model:
    """The model with anchors of the delivered classes from all their images. A known class that is
    delivered with too few images for an episode keeps its anchor."""
    small = set(start.classes) - {*split.train.classes, *split.val.classes}
    names = [name for name in table.classes if name not in small]
    pool = Pool.all("delivered", table, names)
    # From the calibration before the round, since this counts the round's classes again.
    return replace(model, calibration=start.calibration).with_anchors_of(pool)


def _add_missing_anchors(model: Model, split: TrainValSplit, table: ImageTable) -> Model:
    """Add anchors of delivered classes that were not trained on.

    A known class that is delivered with too few images for an episode keeps its anchor. Anchors of
    trained classes do not change, but a sample of their images is passed to the head too, since
    some heads define a class by its difference from others.
    """
    trained, n_classes = split.train, len(split.train.classes)
    # Validation images given separately are not part of the delivery.
    val_names = split.val.classes if split.val.table is table else ()
    unchanged = {*trained.classes, *(set(model.classes) - set(val_names))}
    missing = [name for name in table.classes if name not in unchanged]
    if not missing:
        return model
    image_stride, class_stride = (-(-n // MAX_CONTRAST) for n in (len(trained), n_classes))
    rows = tuple(rows[::image_stride] for rows in trained.class_rows[::class_stride])
    contrast = replace(trained, classes=trained.classes[::class_stride], class_rows=rows)
    pool = Pool.concat("delivered", [Pool.all("missing", table, missing), contrast])
    with torch.no_grad():
        added = model.head.anchors(model.class_features(pool))[: len(missing)]
    without_anchor = set(missing)
    kept = [name for name in model.classes if name not in without_anchor]
    anchors = torch.cat([model.anchors_of(kept), added])
    return replace(model, classes=(*kept, *missing), anchors=anchors)
