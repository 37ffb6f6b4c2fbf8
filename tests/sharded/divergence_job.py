"""What a rank of test_divergence.py does: replicas of shards that come to differ.

python divergence_job.py DIRECTORY
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import deeppart
from tests.sharded.layouts import build, clear, end_job, fill, mesh_of, tensors, wrong

BAD = "/model/blocks.1.up.weight"


def _messages(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(each.message) for each in caught if issubclass(each.category, deeppart.DeeppartWarning)]


def main(directory: Path) -> None:
    dist.init_process_group("gloo")
    rank, told = dist.get_rank(), dict[str, Any]()
    state = build("hsdp", mesh_of("hsdp", 4))
    locals_of = {path: getattr(tensor, "_local_tensor", tensor).detach() for path, tensor in tensors(state)}

    def job() -> deeppart.Checkpointer:
        return deeppart.Checkpointer(persistent_dir=str(directory / "ckpt"), keep={"persistent": 9}, timeout=60)

    with job() as ck, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in (1, 2):
            fill(state, step)
            ck.checkpoint(state, step).wait("persistent")
        told["before"] = _messages(caught)
        fill(state, 3)
        if rank == 2:  # the replica of rank 0
            locals_of[BAD].view(torch.int32)[0, 0] += 1
        ck.checkpoint(state, 3).wait("persistent")
        ck.checkpoint(state, 4).wait("persistent")
        told["after"] = _messages(caught)[len(told["before"]) :]
    mine = locals_of[BAD].clone()
    clear(state)
    with job() as ck:
        told["step"] = ck.restore(state)
    told["own"] = torch.equal(locals_of[BAD], mine)
    told["others"] = [each for each in wrong(state, 3) if each != BAD]
    dist.barrier()
    other = build("fsdp", mesh_of("fsdp", 4))
    clear(other)
    with job() as ck:
        try:
            ck.restore(other)
        except deeppart.DeeppartError as error:
            told["strict"] = [type(error).__name__, str(error)]
        told["untouched"] = all(
            bool((getattr(tensor, "_local_tensor", tensor) == -1).all()) for _, tensor in tensors(other)
        )
        told["rank0"] = ck.restore(other, per_rank="rank0")
    told["of rank 0"] = wrong(other, 3)
    dist.barrier()
    with job() as ck:
        told["earlier"] = ck.restore(other, step=2)
    told["at 2"] = wrong(other, 2)
    (directory / f"told-{rank}.json").write_text(json.dumps(told))
    end_job()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
