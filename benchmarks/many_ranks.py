"""Many ranks without MPI on one machine: how long they take to meet, and small exchanges between them.

    python benchmarks/many_ranks.py [--ranks 16,64,256] [--json FILE]

The ranks are forked off a process that has imported everything, and meet at a store in a file. Where they outnumber the
processors, the times are those of ranks that wait for a processor: read them for their growth. Shown are, of the
slowest rank: seconds until all have met; of five rounds each, the median time of a maximum of 32 integers, as in every
checkpoint, and of a commit round; of one allgather of 100 bytes each; and the connections of a rank. Exit code: 0
measured, 1 malfunction.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from torch.distributed import FileStore

from deeppart.comm import finish
from deeppart.comm.channel import Comm
from deeppart.comm.sockets.rendezvous import Rendezvous, meet
from deeppart.comm.sockets.transport import SocketTransport

_TIMEOUT_S = 300.0
_ROUNDS = 5
COLUMNS = {"met_s": "met", "maximum_s": "maximum", "commit_s": "commit round", "allgather_s": "allgather"}


def measure(ranks: int) -> dict[str, float]:
    """Of the slowest rank, in seconds; and how many others a rank is connected with, at most."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as directory:
        found = fork.SimpleQueue()
        began = time.monotonic()
        processes = [
            fork.Process(target=_rank, args=(rank, ranks, Path(directory) / "store", began, found))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(_TIMEOUT_S)
        if any(process.exitcode != 0 for process in processes):
            for process in processes:
                process.kill()
            raise RuntimeError(f"of {ranks} ranks, {sum(process.exitcode != 0 for process in processes)} failed")
        rows = [found.get() for _ in range(ranks)]
    return {name: max(row[name] for row in rows) for name in rows[0]}


def _rank(rank: int, size: int, store: Path, began: float, found: Any) -> None:
    comm = meet(Rendezvous(rank, size, lambda _: FileStore(str(store), -1), lambda: "127.0.0.1"), _TIMEOUT_S)
    row = {"met_s": time.monotonic() - began}
    values = np.arange(32, dtype=np.int64)
    row["maximum_s"] = _timed(comm, lambda: [comm.maximum(values)], _ROUNDS)
    verdict = b"v" * 100 if rank == 0 else None
    row["commit_s"] = _timed(comm, lambda: [comm.gather(b"r" * 200), comm.broadcast(verdict)], _ROUNDS)
    row["allgather_s"] = _timed(comm, lambda: [comm.allgather(b"x" * 100)], 1)
    transport = comm._transport
    assert isinstance(transport, SocketTransport)
    row["connections"] = len(transport._peers._peers)
    finish(comm, comm.allgather(b""), "many ranks", _TIMEOUT_S)
    comm.release()
    found.put(row)
    os._exit(0)


def _timed(comm: Comm, begin: Callable[[], list[Any]], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.monotonic()
        for operation in begin():
            finish(comm, operation, "many ranks", _TIMEOUT_S)
        times.append(time.monotonic() - start)
    return median(times)


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="16,64,256", help="comma separated (default 16,64,256)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    found = {ranks: measure(ranks) for ranks in map(int, options.ranks.split(","))}
    table = Table(title=f"seconds of the slowest rank; {os.cpu_count()} processors", title_justify="left", box=None)
    for heading in ("ranks", *COLUMNS.values(), "connections"):
        table.add_column(heading, justify="right")
    for ranks, row in found.items():
        table.add_row(str(ranks), *(f"{row[name]:.4f}" for name in COLUMNS), str(int(row["connections"])))
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
