"""Several processes as one, and one process as it is."""

from pathlib import Path
from typing import Any

import torch

from kedge.engine import add_up, n_processes, rank

Ready = Any  # of conftest.py, which cannot be imported


def test_one_process_is_the_first_of_one_and_adds_nothing() -> None:
    tensor = torch.arange(3.0)
    assert (rank(), n_processes()) == (0, 1)
    assert add_up(tensor) is tensor


TWO = """
import os, torch
from torch import distributed
from kedge.engine import add_up, n_processes, rank

child = os.fork()
me = 0 if child else 1
meet = "file://" + os.path.abspath("meet")
distributed.init_process_group("gloo", init_method=meet, rank=me, world_size=2)
assert (rank(), n_processes()) == (me, 2)

number = torch.tensor(me + 1)
assert add_up(number).item() == 3
assert number.item() == me + 1, "the part is still a part"

like = torch.arange(24.0).reshape(1, 2, 3, 4)
for part in (like, like.to(memory_format=torch.channels_last), like.transpose(2, 3)):
    mine = part * (1 + 9 * me)
    assert torch.equal(add_up(mine), 11 * part)
    assert torch.equal(mine, part * (1 + 9 * me))
grown = add_up(torch.ones(2, requires_grad=True))
assert grown.tolist() == [2, 2] and not grown.requires_grad

distributed.barrier()
distributed.destroy_process_group()
assert (rank(), n_processes()) == (0, 1)
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_two_processes_add_up_whatever_the_layout(ready: Ready, tmp_path: Path) -> None:
    ended = ready(TWO, tmp_path)
    assert ended.rc == 0, ended.err
