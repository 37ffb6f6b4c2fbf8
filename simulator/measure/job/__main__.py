"""``python -m deeppart_simulator.measure.job TASKS.json``: on every rank of an MPI job, or alone."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from deeppart.comm import Comm, connect

from ..tasks import SaveTask, Tasks, read_tasks
from .pieces import measure_pieces
from .saves import measure_save, meet

#: Seconds to wait for the other ranks at the start.
TIMEOUT_S = 120.0


def main(path: str) -> None:
    """Do all tasks; rank 0 prints one JSON document with their results in order."""
    tasks = read_tasks(Path(path).read_text(encoding="utf-8"))
    comm = connect(None, TIMEOUT_S)
    found = [_measured(comm, tasks, number, task) for number, task in enumerate(tasks.saves)]
    pieces = measure_pieces(comm, tasks.dtypes, Path(tasks.local_dir)) if tasks.dtypes else {}
    if comm.rank == 0:
        print(json.dumps({"saves": found, "pieces": pieces}))  # noqa: T201 - the answer


def _measured(comm: Comm, tasks: Tasks, number: int, task: SaveTask) -> dict[str, list[float]]:
    """One task, whose directories are gone afterwards: storage that is memory would not hold those of all tasks."""
    directories = [Path(root) / str(number) for root in (tasks.local_dir, tasks.persistent_dir)]
    found = measure_save(comm, task, *directories)
    meet(comm)
    if comm.rank == 0:
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)
    meet(comm)
    return found


if __name__ == "__main__":
    main(sys.argv[1])
