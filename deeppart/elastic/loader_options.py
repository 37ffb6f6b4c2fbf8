"""Options of a DataLoader: those that are the elastic loader's own, and what workers do when a job is told to end."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Mapping
from typing import Any

from deeppart.errors import ConfigError

#: They say which samples there are, or in which order, which is for the elastic loader to say.
_OWN = ("sampler", "batch_sampler", "shuffle", "batch_size", "drop_last")


def refuse_own(options: Mapping[str, Any]) -> None:
    """Refuse what the elastic loader decides itself."""
    for name in _OWN:
        if name in options:
            raise ConfigError(
                "a loader cannot be given this option",
                found=name,
                todo="leave it out: this loader decides which samples it has, and in which order",
            )
    if options.get("in_order") is False:
        raise ConfigError(
            "a loader cannot hand out batches in another order than it takes them",
            found="in_order=False",
            todo="leave it out: what has been seen would not be known",
        )


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
