"""Many ranks without MPI on one machine: how long they take to meet, small exchanges, and what a session sends.

    python benchmarks/many_ranks.py [--ranks 16,64,256] [--alone] [--json FILE]

The ranks are forked off a process that has imported everything, and meet at a store in a file. Where they outnumber the
processors, the times are those of ranks that wait for a processor: read them for their growth. Shown are, of the
slowest rank: seconds until all have met; of five rounds each, the median time of a maximum of 32 integers, as in every
checkpoint, and of a commit round; of one allgather and one exchange of 100 bytes each; and the connections of a rank.
Then, unless `--alone`: of each phase of a session with a small state, the messages that a rank sends and the kilobytes
that it sends or receives, at most. Exit code: 0 measured, 1 malfunction.
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
import torch
from rich.console import Console
from rich.table import Table
from torch.distributed import FileStore

from deeppart import Checkpointer
from deeppart.comm import Comm, Operation, finish
from deeppart.comm.messages import HEADER_BYTES, Kind, unpacked
from deeppart.comm.sockets.rendezvous import Rendezvous, meet
from deeppart.comm.sockets.transport import SocketTransport
from deeppart.comm.transport import Transport

_TIMEOUT_S = 300.0
_ROUNDS = 5
COLUMNS = {
    "met_s": "met",
    "maximum_s": "maximum",
    "commit_s": "commit round",
    "allgather_s": "allgather",
    "exchange_s": "exchange",
}
PHASES = "start", "checkpoint", "restore", "close"


class Counted:
    """Counts what a transport of this process sends and receives, from now on.

    Args:
        barrier: of all ranks; keeps what the others send in the next phase out of the count of this one.
    """

    def __init__(self, barrier: Any) -> None:
        self._barrier = barrier
        self.messages = self.sent_bytes = self.received_bytes = 0
        send, receive = Transport.send, Transport._on_message

        def counted_send(transport: Transport, to: int, key: Any, data: Any) -> Operation[Any]:
            if to != transport.rank:
                self.messages += 1
                self.sent_bytes += len(data)
            return send(transport, to, key, data)

        def counted_message(transport: Transport, source: int, message: bytes | memoryview) -> None:
            kind, _, first, _ = unpacked(message)
            if kind != Kind.WAITS:
                self.received_bytes += len(message) - HEADER_BYTES if kind == Kind.SHORT else first
            receive(transport, source, message)

        Transport.send, Transport._on_message = counted_send, counted_message  # type: ignore[method-assign, assignment]

    def take(self, phase: str) -> dict[str, float]:
        """What has come together since the last call (collective)."""
        self._barrier.wait(_TIMEOUT_S)
        most = max(self.sent_bytes, self.received_bytes)
        found = {f"{phase}_messages": float(self.messages), f"{phase}_kb": most / 1000}
        self.messages = self.sent_bytes = self.received_bytes = 0
        self._barrier.wait(_TIMEOUT_S)
        return found


def measure(ranks: int, *, alone: bool = False) -> dict[str, float]:
    """Of the slowest rank, in seconds; how many others a rank is connected with, and what it sends, at most."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as directory:
        found, is_over, barrier = fork.SimpleQueue(), fork.Event(), fork.Barrier(ranks)
        began = time.monotonic()
        processes = [
            fork.Process(
                target=_rank, args=(rank, ranks, Path(directory), began, found, is_over, None if alone else barrier)
            )
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        rows: list[dict[str, float]] = []
        while len(rows) < ranks and not any(process.exitcode for process in processes):
            if found.empty():
                time.sleep(0.01)
            else:
                rows.append(found.get())
        is_over.set()
        for process in processes:
            process.join(_TIMEOUT_S)
        if any(process.exitcode != 0 for process in processes):
            for process in processes:
                process.kill()
            raise RuntimeError(f"of {ranks} ranks, {sum(process.exitcode != 0 for process in processes)} failed")
    return {name: max(row[name] for row in rows) for name in rows[0]}


def _rank(rank: int, size: int, directory: Path, began: float, found: Any, is_over: Any, barrier: Any) -> None:
    store = directory / "store"
    comm = meet(Rendezvous(rank, size, lambda _: FileStore(str(store), -1), lambda: "127.0.0.1"), _TIMEOUT_S)
    row = {"met_s": time.monotonic() - began}
    values = np.arange(32, dtype=np.int64)
    row["maximum_s"] = _timed(comm, lambda: [comm.maximum(values)], _ROUNDS)
    verdict = b"v" * 100 if rank == 0 else None
    row["commit_s"] = _timed(comm, lambda: [comm.gather(b"r" * 200), comm.broadcast(verdict)], _ROUNDS)
    row["allgather_s"] = _timed(comm, lambda: [comm.allgather(b"x" * 100)], 1)
    row["exchange_s"] = _timed(comm, lambda: [comm.exchange([b"x" * 100] * size)], 1)
    transport = comm._transport
    assert isinstance(transport, SocketTransport)
    row["connections"] = len(transport._peers._peers)
    found.put(row if barrier is None else row | _session(comm, directory, Counted(barrier)))
    is_over.wait(_TIMEOUT_S)  # messages of this rank, which has all of its own, may still be on their way
    comm.release()
    os._exit(0)


def _session(comm: Comm, directory: Path, counted: Counted) -> dict[str, float]:
    """What this rank sends and receives in each phase of a session."""
    state = {"model": {str(number): torch.full((256,), float(number)) for number in range(32)}, "rank": comm.rank}
    checkpointer = Checkpointer(persistent_dir=directory / "steps", comm=comm, timeout=_TIMEOUT_S)
    row = counted.take("start")
    for step in (1, 2):
        checkpointer.checkpoint(state, step=step).wait()
        row |= counted.take("checkpoint")
    if checkpointer.restore(state) != 2:
        raise RuntimeError("another step was restored")
    row |= counted.take("restore")
    checkpointer.close()
    return row | counted.take("close")


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
    parser.add_argument("--alone", action="store_true", help="only the exchanges, without a session")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    found = {ranks: measure(ranks, alone=options.alone) for ranks in map(int, options.ranks.split(","))}
    table = Table(title=f"seconds of the slowest rank; {os.cpu_count()} processors", title_justify="left", box=None)
    for heading in ("ranks", *COLUMNS.values(), "connections"):
        table.add_column(heading, justify="right")
    for ranks, row in found.items():
        table.add_row(str(ranks), *(f"{row[name]:.4f}" for name in COLUMNS), str(int(row["connections"])))
    Console().print(table)
    if not options.alone:
        table = Table(title="messages, and kB, of a rank at most", title_justify="left", box=None)
        for heading in ("ranks", *PHASES):
            table.add_column(heading, justify="right")
        for ranks, row in found.items():
            cells = (f"{row[f'{phase}_messages']:.0f}, {row[f'{phase}_kb']:.1f}" for phase in PHASES)
            table.add_row(str(ranks), *cells)
        Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
