"""``python -m deeppart.cli.calibrate TASKS.json``: on every rank of an MPI job, or alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from deeppart.cli.calibrate.pieces import measure_pieces
from deeppart.cli.calibrate.saves import measure_save
from deeppart.cli.calibrate.tasks import read_tasks
from deeppart.comm import connect

#: Seconds to wait for the other ranks at the start.
TIMEOUT_S = 120.0


def main(path: str) -> None:
    """Do all tasks; rank 0 prints one JSON document with their results in order."""
    tasks = read_tasks(Path(path).read_text(encoding="utf-8"))
    comm = connect(None, TIMEOUT_S)
    found = [
        measure_save(comm, task, Path(tasks.local_dir) / str(number), Path(tasks.persistent_dir) / str(number))
        for number, task in enumerate(tasks.saves)
    ]
    pieces = measure_pieces(comm, tasks.dtypes, Path(tasks.local_dir)) if tasks.dtypes else {}
    if comm.rank == 0:
        print(json.dumps({"ranks": comm.size, "saves": found, "pieces": pieces}))  # noqa: T201 - the answer


if __name__ == "__main__":
    main(sys.argv[1])
