"""kedge: few-shot image classifiers that keep getting better.

Public names are listed here, and loaded when they are first used.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kedge.api import evaluate as evaluate
    from kedge.api import evaluate_by_class as evaluate_by_class
    from kedge.api import load as load
    from kedge.api import remember as remember
    from kedge.api import train as train
    from kedge.api import update as update
    from kedge.config import EpisodeShape as EpisodeShape
    from kedge.config import Privacy as Privacy
    from kedge.config import Schedule as Schedule
    from kedge.data.open import open_images as open_images
    from kedge.data.table import ImageTable as ImageTable
    from kedge.errors import KedgeError as KedgeError
    from kedge.errors import KedgeWarning as KedgeWarning
    from kedge.estimator import KedgeClassifier as KedgeClassifier
    from kedge.evaluation.by_class import Evaluation as Evaluation
    from kedge.evaluation.results import Score as Score
    from kedge.experiments.experiment import Experiment as Experiment
    from kedge.experiments.records import Record as Record
    from kedge.experiments.runner import run_experiment as run_experiment
    from kedge.models.classifier import Classifier as Classifier
    from kedge.models.model import Model as Model
    from kedge.report.model_card import write_hub_folder as write_hub_folder
    from kedge.report.record_report import write_report as write_report
    from kedge.training.loggers import log_epochs as log_epochs
    from kedge.utils.progress import set_verbosity as set_verbosity

_HOME = {
    "train": "kedge.api",
    "update": "kedge.api",
    "load": "kedge.api",
    "remember": "kedge.api",
    "evaluate": "kedge.api",
    "evaluate_by_class": "kedge.api",
    "open_images": "kedge.data.open",
    "ImageTable": "kedge.data.table",
    "Model": "kedge.models.model",
    "Classifier": "kedge.models.classifier",
    "KedgeClassifier": "kedge.estimator",
    "Score": "kedge.evaluation.results",
    "Evaluation": "kedge.evaluation.by_class",
    "EpisodeShape": "kedge.config",
    "Schedule": "kedge.config",
    "Privacy": "kedge.config",
    "Experiment": "kedge.experiments.experiment",
    "run_experiment": "kedge.experiments.runner",
    "Record": "kedge.experiments.records",
    "write_report": "kedge.report.record_report",
    "write_hub_folder": "kedge.report.model_card",
    "log_epochs": "kedge.training.loggers",
    "set_verbosity": "kedge.utils.progress",
    "KedgeError": "kedge.errors",
    "KedgeWarning": "kedge.errors",
}
_EXTRA = {"KedgeClassifier"}  # needs more packages, so `from kedge import *` leaves it out
__all__ = [name for name in _HOME if name not in _EXTRA]
__version__ = "0.1.0"

# By default waiting OpenMP threads spin; where another program uses a core, a training step then
# takes 20 times as long (LOG.md). Read when torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kedge' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*_HOME, "__version__"]
