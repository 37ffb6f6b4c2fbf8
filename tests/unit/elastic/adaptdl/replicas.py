"""AdaptDL's ``elastic_multiprocessing``: functions that run on replicas in processes of their own."""

from __future__ import annotations

import functools
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from multiprocessing.connection import wait
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
    """Run it on so many replicas; returns what all of them have returned. Where one fails, the others are killed."""
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()

    def replica(rank: int) -> None:
        os.environ.update(variables, ADAPTDL_REPLICA_RANK=str(rank))
        told.put(function())

    processes = [context.Process(target=replica, args=(rank,), name=f"replica {rank}") for rank in range(replicas)]
    for process in processes:
        process.start()
    try:
        # Looked at once in each turn: one that has ended since is ready, and waiting for nothing would never end.
        while (running := [each for each in processes if each.is_alive()]) and not any(p.exitcode for p in processes):
            wait([each.sentinel for each in running])
        failed = {each.name: each.exitcode for each in processes if each.exitcode}
    finally:
        for each in processes:
            each.kill()
            each.join()
    assert not failed, f"replicas ended with exit codes {failed}"
    results: list[int | None] = []
    while not told.empty():
        results.append(told.get())
    assert len(results) == replicas, f"{replicas - len(results)} replicas ended without a result"
    assert len(set(results)) == 1, f"replicas returned different numbers: {results}"
    return results[0]
