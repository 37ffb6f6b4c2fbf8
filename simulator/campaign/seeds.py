"""Many runs, one per seed, in several processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait

from deeppart.errors import DeeppartError

from .failures import Failure
from .outcomes import RunResult
from .plan import Cadences, Planned
from .run import run

#: The arguments of every run in this process: see :func:`_begin`.
_task: tuple[Planned, Cadences, tuple[Failure, ...] | None] | None = None


def run_seeds(
    planned: Planned,
    cadences: Cadences,
    seeds: Sequence[int],
    trace: tuple[Failure, ...] | None = None,
    progress: Callable[[int], None] = lambda runs: None,
    *,
    processes: int = 1,
) -> list[RunResult]:
    """One run per seed, in order. The results do not depend on the number of processes."""
    found = list[RunResult]()
    if processes <= 1:
        for seed in seeds:
            found.append(run(planned, cadences, seed, trace))
            progress(len(found))
        return found
    # Not forked: a copy would have the locks of this process's threads, but not the threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _begin, (planned, cadences, trace)) as pool:
        try:
            # Not map(): when interrupted it cancels the remaining futures, on which the pool's thread fails.
            for result in [pool.submit(_one, seed) for seed in seeds]:
                found.append(result.result())
                progress(len(found))
        except BaseException as error:
            for child in multiprocessing.active_children():
                child.terminate()
            if not isinstance(error, BrokenProcessPool):
                raise
            todo = "if memory was short, use fewer cores: taskset --cpu-list 0 deeppart-sim ..."
            raise DeeppartError("a process that simulated died", found=str(error), todo=todo) from error
    return found


def cores() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def _begin(planned: Planned, cadences: Cadences, trace: tuple[Failure, ...] | None) -> None:
    """Initialize a process: the arguments that all runs share are sent once."""
    global _task
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _task = (planned, cadences, trace)


def _end_with_parent() -> None:
    """End this process when its parent has ended, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _one(seed: int) -> RunResult:
    assert _task is not None
    planned, cadences, trace = _task
    return run(planned, cadences, seed, trace)
