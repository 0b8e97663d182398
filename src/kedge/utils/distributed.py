"""Collectives over ranks; the only module that uses torch.distributed.

    torchrun --standalone --nproc-per-node 4 -m kedge bench --tasks-per-step 4

starts four ranks, each on a GPU of its own if there are any. They share the episodes of every step
and learn exactly what a single process learns with the same options. Modules are not wrapped:
`kedge.training` averages the gradients. In a single process every function here is a no-op.
"""

from __future__ import annotations

import atexit
import functools
import operator
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from kedge.errors import require

if TYPE_CHECKING:  # every command imports this module, and PyTorch takes seconds to load
    from torch import Tensor

T = TypeVar("T")


def init() -> None:
    """Join the process group if torchrun started this process. May be called twice."""
    if _launched_world_size() == 1 or _group() is not None:
        return
    # Imported here since it takes seconds, and a single process does not need it.
    import torch
    from torch.distributed import destroy_process_group, init_process_group

    local_size, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    enough, each = local_size <= gpus or gpus == 0, "each process needs its own GPU"
    require(enough, f"--nproc-per-node is {local_size}: {each}, so start at most {gpus}.")
    if gpus == 0:
        init_process_group("gloo")
        return
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    init_process_group("nccl", device_id=device)
    atexit.register(destroy_process_group)  # NCCL warns at exit of a group that still exists


def world_size() -> int:
    dist = _group()
    return 1 if dist is None else int(dist.get_world_size())


def rank() -> int:
    dist = _group()
    return 0 if dist is None else int(dist.get_rank())


def is_first_rank() -> bool:
    """Whether this process is rank 0, or will be when it has joined the group."""
    return os.environ["RANK"] == "0" if _launched_world_size() > 1 else rank() == 0


def barrier() -> None:
    """Block until every rank has reached this point."""
    if (dist := _group()) is not None and world_size() > 1:
        import torch

        nccl = dist.get_backend() == "nccl"
        dist.barrier(device_ids=[torch.cuda.current_device()] if nccl else None)


def all_reduce(tensor: Tensor) -> Tensor:
    """The sum over all ranks, on every rank. The argument is not changed."""
    if (dist := _group()) is None or world_size() == 1:
        return tensor
    import torch

    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def sum_over_ranks(compute: Callable[[int], Tensor], indices: range) -> Tensor:
    """The sum of `compute(i)` over all indices, which are shared by the ranks."""
    return all_reduce(_pairwise_sum(compute, shard(indices)))


def shard(indices: range) -> range:
    """The indices of this rank: every world_size-th."""
    return indices[rank() :: world_size()]


def shard_in_sum_order(indices: range) -> list[int]:
    """The indices of this rank in the order in which `sum_over_ranks` computes them."""
    return _sum_order(shard(indices))


def _sum_order(indices: range) -> list[int]:
    return [*indices] if len(indices) % 2 else _sum_order(indices[::2]) + _sum_order(indices[1::2])


def _pairwise_sum(compute: Callable[[int], Tensor], indices: range) -> Tensor:
    """The sum of every other index plus that of the rest: two ranks get the bits of one process."""
    if len(indices) % 2:
        return functools.reduce(operator.add, map(compute, indices))
    return _pairwise_sum(compute, indices[::2]) + _pairwise_sum(compute, indices[1::2])


def broadcast(value: T) -> T:
    """The value of rank 0, for decisions on which all ranks must agree to the last bit."""
    if (dist := _group()) is None or world_size() == 1:
        return value
    values = [value if rank() == 0 else None]
    dist.broadcast_object_list(values, src=0)
    assert values[0] is not None
    return values[0]


def is_first_to_fail() -> bool:
    """Whether no other rank has failed before, so that only one rank reports the error."""
    if _launched_world_size() == 1:
        return True
    if (dist := _group()) is None:
        return os.environ["LOCAL_RANK"] == "0"
    try:
        store = dist.distributed_c10d._get_default_store()
        return bool(store.add("kedge has failed", 1) == 1)
    except RuntimeError:  # the rank that hosted the store has ended
        return True


def _launched_world_size() -> int:
    """Ranks that torchrun started. Without torchrun WORLD_SIZE may mean something else."""
    by_torchrun = {"RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"} <= os.environ.keys()
    return int(os.environ.get("WORLD_SIZE", "1")) if by_torchrun else 1


def _group() -> Any:
    """The module torch.distributed if a process group was made; without loading PyTorch."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None
