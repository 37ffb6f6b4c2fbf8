"""How long ``checkpoint()`` blocks for states that no torch optimizer trains, beside a bare copy of a rank's share.

    mpirun -n 2 python benchmarks/untrained.py [--megabytes M] [--rounds N] [--disk DIR] [--json FILE]

Replicated plain dicts of tensors or numpy arrays, written to alike on all ranks before each checkpoint, as averages of
weights are; with ``replicated`` "auto", which reads all of it on every rank, and "rotate", which reads a 63rd. And
tensors that nothing writes to. A bare copy is ``Tensor.copy_`` of 1/ranks of the state into warm memory, at the same
time on all ranks. Times are those of the slowest rank; median (fastest, slowest) of the rounds, which take turns.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from mpi4py import MPI

import deeppart
from benchmarks.machine import describe_machine

_TENSORS = 64
_TIMEOUT_S = 600.0
BARE = "a bare copy of the share"


def _timed(comm: MPI.Comm, act: Callable[[], None]) -> float:
    """The time of the slowest rank."""
    comm.Barrier()
    started = time.perf_counter()
    act()
    return float(comm.allreduce(time.perf_counter() - started, op=MPI.MAX))


def _write(state: dict[str, Any]) -> None:
    for each in state.values():
        each += 1


def study(comm: MPI.Comm, state_bytes: int, rounds: int, disk: Path) -> dict[str, list[float]]:
    """Seconds of each round by case, after two that do not count."""
    tensors = {f"w{n}": torch.full((state_bytes // 4 // _TENSORS,), float(n)) for n in range(_TENSORS)}
    arrays = {name: each.numpy().copy() for name, each in tensors.items()}
    still = {name: each.clone() for name, each in tensors.items()}
    share = list(tensors.values())[: _TENSORS // comm.size]
    copies = [torch.zeros_like(each) for each in share]
    cases: dict[str, tuple[dict[str, Any], str, Callable[[dict[str, Any]], None]]] = {
        "tensors, auto": (tensors, "auto", _write),
        "tensors, rotate": (tensors, "rotate", _write),
        "numpy arrays, auto": (arrays, "auto", _write),
        "numpy arrays, rotate": (arrays, "rotate", _write),
        "not written to, auto": (still, "auto", lambda state: None),
    }
    found: dict[str, list[float]] = {name: [] for name in (BARE, *cases)}
    checkpointers = {
        name: deeppart.Checkpointer(
            deeppart.Config(persistent_dir=str(disk / name.replace(", ", "-")), compression="none",
                            replicated=mode, incremental=False, keep={"persistent": 1}, timeout=_TIMEOUT_S),
            comm,
        )
        for name, (_, mode, _) in cases.items()
    }  # fmt: skip

    def copy() -> None:
        for target, source in zip(copies, share, strict=True):
            target.copy_(source)

    for step in range(1, rounds + 3):
        seconds = {BARE: _timed(comm, copy)}
        for name, (state, _, write) in cases.items():
            write(state)
            pending: list[Any] = []
            seconds[name] = _timed(comm, lambda: pending.append(checkpointers[name].checkpoint(state, step)))  # noqa: B023
            pending[0].wait(timeout=_TIMEOUT_S)
        for name, each in seconds.items() if step > 2 else ():
            found[name].append(each)
    for checkpointer in checkpointers.values():
        checkpointer.close()
    return found


def main() -> None:
    """Measure, and print from rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", deeppart.DeeppartWarning)
    torch.set_num_threads(1)
    comm = MPI.COMM_WORLD
    made = tempfile.mkdtemp(prefix="deeppart-untrained-", dir=options.disk) if comm.rank == 0 else ""
    disk = Path(comm.bcast(made))
    try:
        found = study(comm, options.megabytes * 1_000_000, options.rounds, disk)
    finally:
        comm.Barrier()
        if comm.rank == 0:
            shutil.rmtree(disk)
    if comm.rank:
        return
    bare = median(found[BARE])
    for name, each in found.items():
        print(
            f"{name:26} {median(each):.3f} s ({min(each):.3f}-{max(each):.3f}), {median(each) / bare:.2f} times a copy"
        )
    if options.json is not None:
        document = {
            "machine": describe_machine({"disk": str(options.disk)}),
            "ranks": comm.size,
            "state_bytes": options.megabytes * 1_000_000,
            "seconds": found,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
