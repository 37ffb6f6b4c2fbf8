"""AdaptDL's ``elastic_multiprocessing``: functions that run on replicas in processes of their own."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.ports import free_port


def elastic_multiprocessing(function: Callable[..., Any]) -> Callable[..., None]:
    """Run a function as a job: on one replica first, then on as many as it has returned, until that is 0 or None.

    Every replica is forked from this process, with AdaptDL's variables set; all runs share a checkpoint directory.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        replicas: int | None = 1
        restarts = 0
        with tempfile.TemporaryDirectory() as directory:
            while replicas:
                variables = {
                    "ADAPTDL_CHECKPOINT_PATH": directory,
                    "ADAPTDL_JOB_ID": "tmpjob",
                    "ADAPTDL_MASTER_PORT": str(free_port()),
                    "ADAPTDL_NUM_REPLICAS": str(replicas),
                    "ADAPTDL_NUM_NODES": "1",
                    "ADAPTDL_NUM_RESTARTS": str(restarts),
                }
                replicas = _run(functools.partial(function, *args, **kwargs), replicas, variables)
                restarts += 1

    return wrapper


def _run(function: Callable[[], Any], replicas: int, variables: dict[str, str]) -> int | None:
    """Run it on so many replicas; returns what all of them have returned."""
    context = multiprocessing.get_context("fork")

    def replica(rank: int, told: Connection) -> None:
        os.environ.update(variables, ADAPTDL_REPLICA_RANK=str(rank))
        told.send(function())

    processes: dict[Connection, Any] = {}
    results: list[int | None] = []
    try:
        for rank in range(replicas):
            heard, told = context.Pipe(duplex=False)
            processes[heard] = context.Process(target=replica, args=(rank, told), name=f"replica {rank}")
            processes[heard].start()
            told.close()  # so that the end of the replica is heard
        waiting = list(processes)
        while waiting:
            for ready in wait(waiting):
                assert isinstance(ready, Connection)
                waiting.remove(ready)
                results.append(_result(ready, processes[ready]))
    finally:
        for process in processes.values():
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
            process.join()
    assert len(set(results)) == 1, f"replicas returned different numbers: {results}"
    return results[0]


def _result(heard: Connection, process: Any) -> int | None:
    """What a replica has returned."""
    try:
        result = heard.recv()
    except EOFError:
        result = None
    process.join()
    assert process.exitcode == 0, f"{process.name} ended with exit code {process.exitcode}"
    assert result is None or isinstance(result, int), f"{process.name} returned {result!r}"
    return result
