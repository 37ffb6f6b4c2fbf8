"""What a rank of test_dcp.py does, under torchrun: saves sharded tensors by DCP, and their full ones by rank 0.

python -m tests.sharded.dcp_job DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from tests.mpi.torchrun_job import tell


def main(directory: Path) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    row = DeviceMesh("cpu", list(range(4)))
    torch.manual_seed(7)
    global_state: dict[str, tuple[torch.Tensor, DeviceMesh, list[Any]]] = {
        "uneven": (torch.randn(7, 5), row, [Shard(0)]),
        "fewer": (torch.randn(2, 3), row, [Shard(0)]),
        "columns": (torch.randn(3, 9).to(torch.bfloat16), row, [Shard(1)]),
        "both": (torch.randn(6, 10), mesh, [Shard(0), Shard(1)]),
        "hybrid": (torch.randn(9), mesh, [Replicate(), Shard(0)]),
        "whole": (torch.randn(4), row, [Replicate()]),
    }
    sharded: dict[str, Any] = {name: distribute_tensor(x, on, how) for name, (x, on, how) in global_state.items()}
    dcp.save(
        {"model": {"layers": [sharded, {"n": 5}]}, "plain": torch.arange(5), "step": 3},
        checkpoint_id=directory / "ckpt",
    )
    if dist.get_rank() == 0:
        torch.save({name: x for name, (x, _, _) in global_state.items()}, directory / "wholes.pt")
    tell(directory, done=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
