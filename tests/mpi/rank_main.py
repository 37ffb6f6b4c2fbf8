"""What every rank of a launched job runs: ``python -m mpi4py -m tests.mpi.rank_main DIRECTORY`` (see launch.py).

Sends the rank's output to a file of its own, leaves its pid, then calls the function or runs the script. Nothing here
starts MPI, so that tests can watch the library do it. An exception aborts the whole job (``python -m mpi4py``).
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import runpy
import sys
from pathlib import Path
from typing import Any

from tests.mpi import over_sockets
from tests.mpi.launch import KEEPER, STACKS_SIGNAL, Process


def main(directory: Path) -> None:
    """Do the job's task as this rank."""
    rank = own_rank()
    log = os.open(directory / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    faulthandler.enable()
    faulthandler.register(STACKS_SIGNAL, all_threads=True)
    keeper = Process.running(int(os.environ.pop(KEEPER, os.getppid())))
    for name, process in {"keeper": keeper, "pid": Process.running(os.getpid())}.items():
        _write_whole(directory / f"rank-{rank}.{name}", str(process).encode())
    over_sockets.install(directory / "store")
    task = pickle.loads((directory / "task.pickle").read_bytes())
    value = _run_script(task) if "script" in task else _call(task)
    _write_whole(directory / f"rank-{rank}.result", pickle.dumps(value))


def own_rank() -> int:
    """This process's rank by what the launcher says, without starting MPI."""
    for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"):
        if name in os.environ:
            return int(os.environ[name])
    raise RuntimeError("the launcher set none of PMI_RANK, OMPI_COMM_WORLD_RANK, PMIX_RANK")


def _call(task: dict[str, Any]) -> Any:
    module, _, name = task["function"].partition(":")
    function = getattr(importlib.import_module(module), name)
    return function(*task["args"])


def _run_script(task: dict[str, Any]) -> Any:
    sys.argv[:] = [task["script"], *task["args"]]
    sys.path.insert(0, os.path.dirname(task["script"]))
    try:
        runpy.run_path(task["script"], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def _write_whole(file: Path, content: bytes) -> None:
    """Write a file that readers see complete or not at all."""
    part = file.with_suffix(".new")
    part.write_bytes(content)
    part.rename(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
