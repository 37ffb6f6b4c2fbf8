"""``dcp.save`` of several ranks in one process: DCP's own steps, one rank after the other, without process groups."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemWriter, SavePlanner


def save_as_ranks(
    states: Sequence[dict[str, Any]],
    path: Path,
    planner: Callable[[int], SavePlanner],
) -> list[int]:
    """Save what each rank has; returns the bytes of each rank's file.

    Args:
        planner: of a rank.
    """
    planners = [planner(rank) for rank in range(len(states))]
    writers = [FileSystemWriter(path, sync_files=False) for _ in states]
    plans = []
    for rank, (state, mine, writer) in enumerate(zip(states, planners, writers, strict=True)):
        mine.set_up_planner(state, writer.storage_meta(), rank == 0)
        writer.set_up_storage_writer(rank == 0)
        plans.append(writer.prepare_local_plan(mine.create_local_plan()))
    received = [pickle.loads(pickle.dumps(plan)) for plan in plans]
    finished, metadata = planners[0].create_global_plan(received)
    finished = writers[0].prepare_global_plan(finished)
    returned = [pickle.loads(pickle.dumps(plan)) for plan in finished]
    results = []
    for mine, writer, plan in zip(planners, writers, returned, strict=True):
        writing = writer.write_data(mine.finish_plan(plan), mine)
        writing.wait()
        results.append(writing.value())
    writers[0].finish(copy.copy(metadata), results)
    return [sum(file.stat().st_size for file in path.glob(f"__{rank}_*.distcp")) for rank in range(len(states))]
