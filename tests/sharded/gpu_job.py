"""What a rank of test_gpu.py does: sharded tensors on a device, saved by two ranks that share it.

python gpu_job.py WHAT DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import deeppart
from tests.sharded.layouts import end_job


def whole(name: str, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    return torch.rand(shape, generator=generator)


def trained(mesh: DeviceMesh | None, steps: int) -> tuple[dict[str, Any], torch.optim.Optimizer]:
    """Parameters split in three ways, and an optimizer that has made some steps; all by the same numbers everywhere."""
    kinds = {"rows": (Shard(0), (5001, 700)), "columns": (Shard(1), (900, 1501)), "norm": (Replicate(), (4000,))}
    parameters = {}
    for name, (placement, shape) in kinds.items():
        full = whole(name, *shape).cuda()
        split = full if mesh is None else distribute_tensor(full, mesh, [placement], src_data_rank=None)
        parameters[name] = torch.nn.Parameter(split)
    optimizer = torch.optim.AdamW(parameters.values(), lr=0.01)
    for step in range(steps):
        for name, parameter in parameters.items():
            full = whole(f"{name}{step}", *kinds[name][1]).cuda()
            gradient = full if mesh is None else distribute_tensor(full, mesh, [kinds[name][0]], src_data_rank=None)
            parameter.grad = gradient
        optimizer.step()
    return {"model": parameters, "optimizer": optimizer}, optimizer


def locals_of(state: dict[str, Any]) -> list[torch.Tensor]:
    tensors = list(state["model"].values())
    for values in state["optimizer"].state_dict()["state"].values():
        tensors += [values["exp_avg"], values["exp_avg_sq"]]
    return [(each._local_tensor if isinstance(each, DTensor) else each).detach().clone() for each in tensors]


def main(what: str, directory: Path) -> None:
    alone = what == "alone"
    os.environ["LOCAL_RANK"] = "0"  # one device for all ranks; a mesh goes by this
    if not alone:
        dist.init_process_group("gloo")
    mesh = None if alone else DeviceMesh("cuda", torch.arange(dist.get_world_size()))
    told: dict[str, Any] = {}
    if not alone:
        for mode in ("eager", "lazy"):
            state, optimizer = trained(mesh, 2)
            with deeppart.Checkpointer(persistent_dir=str(directory / mode), capture=mode, timeout=60) as ck:
                for step in (1, 2):
                    pending = ck.checkpoint(state, step)
                    kept = locals_of(state)
                    optimizer.step()
                    pending.wait("persistent")
                for tensor in state["model"].values():
                    tensor.detach()._local_tensor.zero_()
                told[f"step {mode}"] = ck.restore(state)
                told[mode] = all(map(torch.equal, kept, locals_of(state)))
            fresh, _ = trained(mesh, 0)  # whose optimizer has not stepped
            with deeppart.Checkpointer(persistent_dir=str(directory / mode), capture=mode, timeout=60) as ck:
                ck.restore(fresh)
                told[f"fresh {mode}"] = all(map(torch.equal, kept, locals_of(fresh)))
    else:
        for mode in ("eager", "lazy"):
            expected, _ = trained(None, 2)
            expected["optimizer"].step()
            state, _ = trained(None, 0)
            with deeppart.Checkpointer(persistent_dir=str(directory / mode)) as ck:
                ck.restore(state)
            told[mode] = all(map(torch.equal, locals_of(expected), locals_of(state)))
    (directory / f"told-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(told))
    if not alone:
        end_job()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
