"""Loggers of the training curve: a function that is called after every epoch.

    with kedge.log_epochs(print):
        kedge.train("first-delivery/")

It is called between epochs, when the numbers are on the host and the checkpoint is written; without
it nothing is computed or copied. docs/extending.md has examples for Weights & Biases and MLflow.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from kedge.errors import require
from kedge.evaluation.results import EpochResult
from kedge.utils import distributed
from kedge.utils.text import folder_name, pip_install

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

EpochLogger = Callable[[str, EpochResult], object]

_logger: ContextVar[EpochLogger | None] = ContextVar("kedge_epoch_logger", default=None)


@contextmanager
def log_epochs(logger: EpochLogger) -> Iterator[None]:
    """Call a function after every epoch of every training in the body.

    Args:
        logger: gets the name of the training, such as "seed-0/IDA/round-1", and the `EpochResult`,
            which has epoch, loss, cross_entropy, penalty, val_accuracy and lr. Of several processes
            for one training only the first calls it.
    """
    token = _logger.set(logger)
    try:
        yield
    finally:
        _logger.reset(token)


def current_logger() -> EpochLogger | None:
    """That of the innermost `log_epochs`."""
    return _logger.get()


def log_epoch(seed: int, method: str, round: int, epoch: EpochResult) -> None:
    """Tell the logger, if there is one, of an epoch that has ended."""
    if (logger := _logger.get()) is not None and distributed.rank() == 0:
        logger(f"seed-{seed}/{folder_name(method)}/round-{round}", epoch)


class TensorBoardLogger:
    """Writes event files for TensorBoard: a folder for each training, of which a stopped and
    continued one has several files."""

    def __init__(self, folder: str | Path) -> None:
        installed = importlib.util.find_spec("tensorboardX") is not None
        require(installed, f"Event files need tensorboardX: {pip_install('tensorboard')}.")
        self.folder = Path(folder)
        self.writers: dict[str, SummaryWriter] = {}

    def __call__(self, name: str, epoch: EpochResult) -> None:
        from tensorboardX import SummaryWriter

        if name not in self.writers:
            self.writers[name] = SummaryWriter(str(self.folder / name))
        values = vars(epoch).items()
        for key, value in values:
            if key != "epoch" and value is not None:
                self.writers[name].add_scalar(key, value, epoch.epoch)
        self.writers[name].flush()

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


@contextmanager
def log_to_tensorboard(folder: str | Path | None) -> Iterator[None]:
    """`log_epochs` with event files in a folder; nothing if there is none."""
    if folder is None:
        yield
        return
    logger = TensorBoardLogger(folder)
    try:
        with log_epochs(logger):
            yield
    finally:
        logger.close()
