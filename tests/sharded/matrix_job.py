"""What a rank of test_matrix.py does: saves in several layouts, and restores each in all layouts.

python matrix_job.py DIRECTORY PAIR,...: those of PAIRS that are to be restored.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

import deeppart
from tests.sharded.layouts import LAYOUTS, build, clear, end_job, fill, group_of, mesh_of, wrong

#: Layout, ranks, and ranks of a node: parts that are not in the memory of one's own node come as messages.
SOURCES = [
    source
    for source in (
        ("fsdp", 4, 1),
        ("fsdp", 3, 8),
        ("hsdp", 4, 2),
        ("tp", 2, 8),
        ("tp-dp", 4, 1),
        ("replicated", 2, 1),
        ("replicated", 1, 8),
    )
    if source[0] in LAYOUTS
]
#: What comes from which layout to which: (source, target), both with their numbers of ranks.
PAIRS = [
    (f"{saved} {ranks}", f"{layout} {count}")
    for saved, ranks, _ in SOURCES
    for layout, counts in LAYOUTS.items()
    for count in counts
]


def settings(directory: Path, source: tuple[str, int, int], ranks: int) -> dict[str, Any]:
    layout, count, node_size = source
    local = directory / f"local-{layout}-{count}" / f"of-{ranks}" / "{rank}"
    return {
        "persistent_dir": str(directory / f"{layout}-{count}"),
        "local_dir": str(local),
        "node_size": node_size,
        "every": {"partner": 0},
        "timeout": 60.0,
    }


def main(directory: Path, pairs: set[str]) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = {count: group_of(count) for count in range(1, size + 1)}
    for source in SOURCES:
        layout, count, _ = source
        mesh = mesh_of(layout, count)
        if rank < count:
            state = build(layout, mesh)
            with deeppart.Checkpointer(**settings(directory, source, count), comm=groups[count]) as ck:
                for step in (1, 2):
                    fill(state, step)
                    assert not wrong(state, step), "the oracle does not agree with itself"
                    ck.checkpoint(state, step).wait("persistent")
    found = {}
    for layout, counts in LAYOUTS.items():
        for count in (each for each in counts if each <= size):
            dist.barrier()
            mesh = mesh_of(layout, count)
            if rank >= count:
                continue
            state = build(layout, mesh)
            for source in SOURCES:
                name = f"{source[0]} {source[1]} -> {layout} {count}"
                if name not in pairs:
                    continue
                clear(state)
                with deeppart.Checkpointer(**settings(directory, source, count), comm=groups[count]) as ck:
                    restored = ck.restore(state)
                found[name] = wrong(state, 2) if restored == 2 else [f"step {restored}"]
    (directory / f"told-{rank}.json").write_text(json.dumps(found))
    end_job()


if __name__ == "__main__":
    main(Path(sys.argv[1]), set(sys.argv[2].split(",")))
