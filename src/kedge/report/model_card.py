"""A model as a folder for a model hub: its file, config.json, and a model card.

    FOLDER/model.safetensors   the model file, unchanged: `kedge.load(FOLDER)` reads nothing else
           config.json         network, input and classes for other programs, under timm's keys
           README.md           the card: YAML for the hub, then what the lineage says

The names are those of the Hugging Face Hub (https://huggingface.co/docs/hub/model-cards), which is
neither asked nor needed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from kedge import __version__
from kedge.errors import KedgeError, require
from kedge.models import model_file
from kedge.models.model import Model
from kedge.models.model_file import HUB_FILE, ModelContents
from kedge.report.format import counted
from kedge.report.model_report import NOT_MEASURED, rounds_table
from kedge.report.model_summary import describe_model
from kedge.report.outcome import history_table, outcome_sentence, outcome_table
from kedge.report.render import markdown, markdown_grid
from kedge.report.table import Cell, Column, Row, Section, Table
from kedge.utils.atomic_io import (
    exclusive,
    fsync_folder,
    make_folder,
    write_atomically,
    write_text_atomically,
)
from kedge.utils.regular_file import open_regular
from kedge.utils.text import printable

LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}")  # an identifier of the hub's list
TAGS = ("kedge", "few-shot-learning", "incremental-learning")


def write_hub_folder(
    model: Model | str | Path, folder: str | Path, *, license: str = "other"
) -> Path:
    """Write a model as a folder for a model hub; returns its path.

    Args:
        model: a model, or the path of its file, which is copied.
        folder: a new one; `kedge.load(folder)` reads it. All of it is written, or nothing.
        license: of the model, as the hub names licenses: "apache-2.0", "cc-by-4.0", … Which one is
            right depends on the images and on the first weights, so it is for you to say.
    """
    folder = Path(folder)
    require(bool(folder.name), f"{folder}: give the name of a new folder.")
    require(
        LICENSE.fullmatch(license) is not None,
        f"--license {license!r}: give an identifier such as apache-2.0, cc-by-4.0 or other.",
    )
    part = folder.with_name(f".{folder.name}.part")
    with exclusive(folder.parent, f".{folder.name}.lock", file=folder):
        _refuse_existing(folder)
        try:
            shutil.rmtree(part, ignore_errors=True)  # of a command that was killed
            make_folder(part)
            _write_files(model, part, folder.name, license)
            os.rename(part, folder)  # which an empty folder allows, but no other
            fsync_folder(folder.parent)
        except OSError as error:
            _refuse_existing(folder)
            reason = error.strerror or error
            raise KedgeError(f"{folder}: could not be written ({reason}).") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def _refuse_existing(folder: Path) -> None:
    empty = folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())
    if os.path.lexists(folder) and not empty:
        raise KedgeError(f"{folder}: already exists and is not overwritten; choose another folder.")


def _write_files(model: Model | str | Path, folder: Path, name: str, license: str) -> None:
    file = folder / HUB_FILE
    if isinstance(model, Model):
        model.save(file)
    else:
        with open_regular(model_file.find(Path(model))) as source:
            write_atomically(file, partial(shutil.copyfileobj, source))
    contents = model_file.read(file)
    about = describe_model(file, contents)
    config = json.dumps(_config(contents), indent=1, ensure_ascii=False) + "\n"
    write_text_atomically(folder / "config.json", config.encode(errors="replace").decode())
    write_text_atomically(folder / "README.md", model_card(about, contents, name, license))


def _config(model: ModelContents) -> dict[str, Any]:
    """What other programs need to know, under the keys of timm's config.json."""
    config = model.config
    mean, std = (model.weights[f"embedding.{key}"].flatten().tolist() for key in ("mean", "std"))
    return {
        "library_name": "kedge",
        "library_version": __version__,
        "architecture": config.backbone.backbone,
        "num_classes": len(model.classes),
        "num_features": config.n_features,
        "label_names": list(model.classes),
        "pretrained_cfg": {
            "input_size": [config.n_channels, config.image_size, config.image_size],
            "interpolation": config.interpolation,
            "crop_mode": "center" if config.resize == "crop" else "squash",
            "mean": mean,
            "std": std,
        },
    }


# ── the card ─────────────────────────────────────────────────────────────────────────────────


def model_card(about: dict[str, Any], model: ModelContents, name: str, license: str) -> str:
    """README.md: front matter in YAML, then Markdown; texts of the model are escaped in both."""
    sections = {
        "Use": _use(model, name),
        "Intended use": INTENDED,
        "Data and training": _training(model),
        "Accuracy": _accuracy(model),
        "Limits": _limits(model),
        "Classes": markdown_grid(_class_table(about)),
        "File": f"{HUB_FILE}: kedge model, version {about['version']}, SHA-256 {about['sha256']}.",
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())
    return f"{_front_matter(license)}\n# {markdown(name)}\n\n{_summary(about, model)}\n\n{body}\n"


def _front_matter(license: str) -> str:
    lines = [
        f"license: {json.dumps(license)}",
        "library_name: kedge",
        "pipeline_tag: image-classification",
        "tags:",
        *(f"- {tag}" for tag in TAGS),
    ]
    return "\n".join(["---", *lines, "---", ""])


def _summary(about: dict[str, Any], model: ModelContents) -> str:
    side, colour = model.config.image_size, "colour" if model.config.n_channels == 3 else "grey"
    return (
        f"An image classifier that knows {counted(len(model.classes), 'classes')} after "
        f"{counted(len(model.lineage), 'rounds')} of training, and tells other classes apart from "
        f"a few examples of each. Network: {markdown(about['network'])}, "
        f"{about['weights']:,} weights, for images of {side}×{side} px in {colour}. Made with "
        f"kedge {__version__}."
    )


def _use(model: ModelContents, name: str) -> str:
    backbone = ", backbone=…" if model.own_backbone else ""
    path = json.dumps(printable(name, one_line=True), ensure_ascii=False)
    own = "\n\nThe network is the author's own: pass its module as `backbone`." * bool(backbone)
    fence = "`" * (max(map(len, re.findall("`+", name)), default=0) + 3)
    return (
        f"{fence}python\nimport kedge  # pip install kedge\n"
        f"model = kedge.load({path}{backbone})  # this folder; needs no connection\n"
        f'model.predict(["photo.jpg"])\n{fence}{own}'
    )


INTENDED = (
    "Naming images like those that it was trained on, among the classes below "
    "(`model.predict`), or among any classes of such images from a few examples of each "
    "(`model.classifier`). It can be updated with new classes without the images of the old ones "
    "(`kedge.update`)."
)


def _training(model: ModelContents) -> str:
    table = rounds_table(model.lineage)
    parts = [markdown_grid(table), markdown(table.caption)]
    if (origin := model.config.pretrained) is not None and origin.sha256:
        of = " ".join(filter(None, (origin.architecture, origin.version)))
        parts.insert(0, f"Training started from weights of {markdown(of)}.")
    return "\n\n".join(parts)


def _accuracy(model: ModelContents) -> str:
    measured = [entry for entry in model.lineage if entry.outcome is not None]
    if not measured:
        return NOT_MEASURED.replace("is below", "is above")
    last = measured[-1]
    parts = [f"Round {last.round}: {markdown(outcome_sentence(last))}"]
    histories = [history_table(model.lineage)] if measured[1:] else []
    for table in (outcome_table(last), *histories):
        if table is not None:
            texts = (f"**{markdown(table.title)}**", markdown_grid(table), markdown(table.caption))
            parts += filter(None, texts)
    return "\n\n".join(parts)


def _limits(model: ModelContents) -> str:
    outcomes = [entry.outcome for entry in model.lineage if entry.outcome is not None]
    estimated = any(change.estimated for o in outcomes for change in o.naming)
    few_shot = any(outcome.few_shot is not None for outcome in outcomes)
    limits = [
        "Every image gets the name of a class, also one that shows none of them, unless "
        "`model.predict(images, reject=0.05)` is used (kedge's docs: None of these).",
        "Accuracies are of images from the same deliveries as the training images. Other cameras, "
        "places or groups of people were not measured.",
        "Few-shot accuracy is the mean over random classes"
        + (" that were held back" if few_shot else ", and was not measured here")
        + "; for given classes and examples it may be far from that.",
    ]
    if estimated:
        limits.append(
            "An estimate is computed from the anchors of classes whose images are gone, not "
            "measured on images (kedge's docs: Reading an outcome)."
        )
    limits.append(
        "The file holds no image, but class names, a mean vector of each class, and where the "
        "images came from as shown above (kedge's docs: The model file)."
    )
    return "\n".join(f"- {limit}" for limit in limits)


def _class_table(about: dict[str, Any]) -> Table:
    rows = [
        Row(each["name"], (Cell(str(each["round"])), Cell(str(each["images"] or "unknown"))))
        for each in about["classes"]
    ]
    columns = (Column("learned in round"), Column("images"))
    return Table("classes", "Classes", columns, (Section(tuple(rows)),), "", stub="class")
