"""kedge: few-shot image classifiers that keep getting better.

Everything public is listed here, and loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kedge.api import evaluate as evaluate
    from kedge.api import remember as remember
    from kedge.api import train as train
    from kedge.api import update as update
    from kedge.choices import EpisodeWish as EpisodeWish
    from kedge.choices import ScheduleWish as ScheduleWish
    from kedge.classifier import Classifier as Classifier
    from kedge.config import EpisodeShape as EpisodeShape
    from kedge.config import Schedule as Schedule
    from kedge.errors import KedgeError as KedgeError
    from kedge.evaluation import Score as Score
    from kedge.experiment import Experiment as Experiment
    from kedge.experiment import run_experiment as run_experiment
    from kedge.images.sources import open_images as open_images
    from kedge.images.table import ImageTable as ImageTable
    from kedge.model import Model as Model
    from kedge.records import Record as Record
    from kedge.report import write_report as write_report

_HOME = {
    "train": "kedge.api",
    "update": "kedge.api",
    "remember": "kedge.api",
    "evaluate": "kedge.api",
    "open_images": "kedge.images.sources",
    "ImageTable": "kedge.images.table",
    "Model": "kedge.model",
    "Classifier": "kedge.classifier",
    "Score": "kedge.evaluation",
    "EpisodeWish": "kedge.choices",
    "ScheduleWish": "kedge.choices",
    "EpisodeShape": "kedge.config",
    "Schedule": "kedge.config",
    "Experiment": "kedge.experiment",
    "run_experiment": "kedge.experiment",
    "Record": "kedge.records",
    "write_report": "kedge.report",
    "KedgeError": "kedge.errors",
}
__all__ = list(_HOME)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kedge' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
