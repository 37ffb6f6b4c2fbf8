"""Processes that load data for a rank, and what they do when their job is told to end."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Mapping
from typing import Any


def steps_ahead(options: Mapping[str, Any]) -> int:
    """Steps that may be under way in the workers of a DataLoader with these options, on every rank."""
    workers, each = options.get("num_workers", 0), options.get("prefetch_factor")
    return int(workers * (2 if each is None else each) + 1) if workers else 0


def with_calm_workers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a DataLoader whose workers live through a SIGUSR1 to all processes of a job.

    Slurm (``--signal=USR1@120``) and ``kill -USR1 -PID`` send it to whole process groups. By default it would end the
    workers, and with them the rank, before that has made its checkpoint. A handler of the caller's own stays. SIGTERM
    ends workers still: torch sends it to those that do not end otherwise.
    """
    if not options.get("num_workers"):
        return dict(options)
    return {**options, "worker_init_fn": functools.partial(_begin, options.get("worker_init_fn"))}


def _begin(function: Callable[[int], None] | None, worker: int) -> None:
    if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if function is not None:
        function(worker)
