"""Many runs at a time, one per seed, in processes of their own."""

from __future__ import annotations

import copyreg
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import islice
from multiprocessing.connection import wait as wait_for
from types import MappingProxyType
from typing import Any

from deeppart.errors import DeeppartError

from .failures import Failure
from .outcomes import RunResult
from .plan import Cadences, Planned
from .run import run

#: Shorter campaigns are over before other processes have begun: seconds of one core.
WORTH_S = 4.0
#: Runs that are handed to a process ahead of time.
_AHEAD = 2
#: How often the progress of runs that are under way is looked at, in seconds.
_LOOK_S = 0.25

#: What every run of this process is about, and the progress of all runs: see :func:`_begin`.
_task: tuple[Planned, Cadences, tuple[Failure, ...] | None, Any] | None = None


def run_seeds(
    planned: Planned,
    cadences: Cadences,
    seeds: Sequence[int],
    trace: tuple[Failure, ...] | None = None,
    progress: Callable[[float], None] = lambda runs: None,
    *,
    processes: int = 1,
) -> list[RunResult]:
    """One run per seed, in their order: the same results whatever the number of processes."""
    processes = min(processes, len(seeds))
    try:
        if processes <= 1:
            found = list[RunResult]()
            for seed in seeds:
                found.append(run(planned, cadences, seed, trace, partial(_note, progress, len(found))))
            return found
        return _in_processes(planned, cadences, seeds, trace, progress, processes)
    except (BrokenProcessPool, MemoryError) as error:
        died = isinstance(error, BrokenProcessPool)
        raise DeeppartError(
            "a process that simulated died" if died else "there was not enough memory to simulate",
            expected=f"{processes} process{'es' * (processes > 1)} to the end",
            found=str(error) or type(error).__name__,
            where="deeppart-sim campaign",
            todo="if memory was short, take fewer at a time: --jobs",
        ) from error


def _in_processes(
    planned: Planned,
    cadences: Cadences,
    seeds: Sequence[int],
    trace: tuple[Failure, ...] | None,
    progress: Callable[[float], None],
    processes: int,
) -> list[RunResult]:
    # Processes that begin anew: a copy of this one would have its threads' locks, and not its threads.
    context = multiprocessing.get_context("spawn")
    shares = context.Array("d", len(seeds) + 1, lock=False)  # the last one is a flag: it is over
    pool = ProcessPoolExecutor(processes, context, _begin, (planned, cadences, trace, shares))
    try:
        return _collect(pool, seeds, processes, lambda: progress(sum(shares[:-1])))
    finally:
        shares[-1] = 1.0
        pool.shutdown(cancel_futures=True)


def _note(progress: Callable[[float], None], done: int, share: float) -> None:
    progress(done + share)


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def _collect(
    pool: ProcessPoolExecutor, seeds: Sequence[int], processes: int, look: Callable[[], None]
) -> list[RunResult]:
    """The results, in the order of the seeds; few are handed out ahead, so that an interrupt ends it soon."""
    found: dict[int, RunResult] = {}
    under_way: dict[Future[RunResult], int] = {}
    places = iter(range(len(seeds)))
    while len(found) < len(seeds):
        for place in islice(places, processes * _AHEAD - len(under_way)):
            with _no_interrupt():  # a process may be begun for it, which would take it, too
                under_way[pool.submit(_one, place, seeds[place])] = place
        done, _ = wait(under_way, _LOOK_S, FIRST_COMPLETED)
        for future in done:
            found[under_way.pop(future)] = future.result()
        look()
    return [found[place] for place in range(len(seeds))]


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """SIGINT waits meanwhile, and processes that begin meanwhile never get one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(planned: Planned, cadences: Cadences, trace: tuple[Failure, ...] | None, shares: Any) -> None:
    """What is the same for all runs is sent to a process once."""
    global _task
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that began this one ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _task = (planned, cadences, trace, shares)


def _end_with_parent() -> None:
    """End this process when the one that began it has ended, by whatever signal: nobody wants its results any more."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for([parent.sentinel])
    os._exit(1)


def _one(place: int, seed: int) -> RunResult:
    assert _task is not None
    planned, cadences, trace, shares = _task

    def note(share: float) -> None:
        shares[place] = share
        if shares[-1]:
            raise InterruptedError

    return run(planned, cadences, seed, trace, note)


def _read_only(items: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(items)


# Machines have read-only mappings, whose type has no name to be pickled by.
copyreg.pickle(MappingProxyType, lambda proxy: (_read_only, (dict(proxy),)))
