"""What a rank of test_matrix.py does: saves in one layout, and restores in all.

python matrix_job.py LAYOUT RANKS DIRECTORY NODE_SIZE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

import deeppart
from tests.sharded.layouts import LAYOUTS, build, clear, fill, group_of, mesh_of, wrong

TIMEOUT_S = 60.0


def main(layout: str, ranks: int, directory: Path, node_size: int) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = {count: group_of(count) for count in range(1, size + 1)}

    def settings(count: int) -> dict[str, object]:
        local = directory / f"local-{count}" / "{rank}"
        return {
            "persistent_dir": str(directory / "ckpt"),
            "local_dir": str(local),
            "node_size": node_size,
            "every": {"partner": 0},
            "timeout": TIMEOUT_S,
        }

    mesh = mesh_of(layout, ranks)
    if rank < ranks:
        state = build(layout, mesh)
        with deeppart.Checkpointer(**settings(ranks), comm=groups[ranks]) as ck:  # type: ignore[arg-type]
            for step in (1, 2):
                fill(state, step)
                assert not wrong(state, step), "the oracle does not agree with itself"
                ck.checkpoint(state, step).wait("persistent")
    dist.barrier()
    found = {}
    for target, counts in LAYOUTS.items():
        for count in (each for each in counts if each <= size):
            dist.barrier()
            mesh = mesh_of(target, count)
            if rank < count:
                state = build(target, mesh)
                clear(state)
                with deeppart.Checkpointer(**settings(count), comm=groups[count]) as ck:  # type: ignore[arg-type]
                    restored = ck.restore(state)
                found[f"{target} {count}"] = wrong(state, 2) if restored == 2 else [f"step {restored}"]
    (directory / f"told-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
