"""Several processes as one: the only file that knows the distributed engine.

    torchrun --standalone --nproc-per-node 4 -m kedge bench --batch 4

starts four processes, each on a GPU of its own where there are any. They share the episodes of
every step and learn what a single process would learn with the same --batch. Lightning Fabric
brings them together; modules are not wrapped, for gradients are averaged in `kedge.training.step`.

In a single process everything here does nothing, so that nobody has to ask first.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from kedge.config import require

T = TypeVar("T")


def start() -> None:
    """Join the others, if this process was started as one of several; once is enough."""
    if _n_started() == 1 or _together():
        return
    # It takes seconds to load, and a single process has no use for it.
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    here, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    require(
        here <= gpus or gpus == 0,
        f"{here} processes were started on a machine with {gpus} GPU{'s' if gpus > 1 else ''}, and "
        f"each needs its own: start at most {gpus} with --nproc-per-node.",
    )
    require(_n_started() % here == 0, "Every machine must start as many processes as the others.")
    Fabric(
        accelerator="cuda" if gpus else "cpu",
        strategy="ddp",
        devices=here,
        num_nodes=_n_started() // here,
        plugins=[TorchElasticEnvironment()],
    ).launch()


def world_size() -> int:
    return dist.get_world_size() if _together() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if _together() else 0


def barrier() -> None:
    """Until all processes have come here."""
    if world_size() > 1:
        gpu = dist.get_backend() == "nccl"
        dist.barrier(device_ids=[torch.cuda.current_device()] if gpu else None)


def all_reduce(tensor: Tensor) -> Tensor:
    """The sum over all processes, the same in each of them; every process has to ask for it."""
    if world_size() == 1:
        return tensor
    # A copy, since the engine sums in place and takes no other layout.
    sum_over_ranks = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(sum_over_ranks)
    return sum_over_ranks


def sum_over_ranks(of: Callable[[int], Tensor], numbers: range) -> Tensor:
    """The sum over the numbers, which are dealt out to the processes."""
    return all_reduce(_halves(of, shard(numbers)))


def shard(numbers: range) -> range:
    """Those that are this process' share."""
    return numbers[rank() :: world_size()]


def shard_in_sum_order(numbers: range) -> list[int]:
    """This process' share, in the order in which `total` comes to them."""
    asked: list[int] = []

    def note(i: int) -> Tensor:
        asked.append(i)
        return torch.zeros(())

    _halves(note, shard(numbers))
    return asked


def _halves(of: Callable[[int], Tensor], numbers: range) -> Tensor:
    """By halves of every other one. Two processes, each of which has every other one, do the same
    and come to the same last bit as a single one."""
    if len(numbers) % 2:
        return functools.reduce(torch.add, map(of, numbers))
    return _halves(of, numbers[::2]) + _halves(of, numbers[1::2])


def broadcast(value: T) -> T:
    """What the first process has. Two GPUs may differ in a last bit on which much depends."""
    if world_size() == 1:
        return value
    told = [value if rank() == 0 else None]
    dist.broadcast_object_list(told, src=0)
    assert told[0] is not None
    return told[0]


def first_to_fail() -> bool:
    """Whether this process is the first that has to give up, so that only one says why: others
    fail in the same way, or because it is gone."""
    if _n_started() == 1:
        return True
    if not _together():  # it is about how they were started
        return os.environ["LOCAL_RANK"] == "0"
    try:
        return dist.distributed_c10d._get_default_store().add("kedge has failed", 1) == 1
    except RuntimeError:  # whoever kept the store has ended
        return True


def _n_started() -> int:
    """By torchrun, on all machines together. Elsewhere WORLD_SIZE may mean something else."""
    by_torchrun = {"RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"} <= os.environ.keys()
    return int(os.environ.get("WORLD_SIZE", "1")) if by_torchrun else 1


def _together() -> bool:
    return dist.is_available() and dist.is_initialized()
