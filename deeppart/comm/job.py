"""One channel per process between the ranks that a launcher has started, shared by all its users.

Sessions have channels of their own, which they release (:func:`deeppart.comm.connect`). Code that lives as long as the
process, and rarely exchanges little data, shares this one.
"""

from __future__ import annotations

import os
import sys
import threading

from deeppart.comm.channel import Comm
from deeppart.comm.connecting import connect
from deeppart.comm.waiting import finish
from deeppart.config import Launch, launch

#: Seconds until a missing rank is an error, by default.
TIMEOUT_S = 600.0

#: Identifies a channel: process id, launcher, and whether MPI has been finalized.
_Known = tuple[int, Launch | None, bool]


class _Process:
    """The channel of this process; the only instance is :data:`_process`, since its users do not know each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: In a forked child also the parent's channel, whose destructors must not run there. Guarded by the lock.
        self._made: dict[_Known, Comm] = {}
        os.register_at_fork(after_in_child=self._unlock)

    def channel(self, timeout: float) -> Comm:
        with self._lock:
            known = _known_by()
            comm = self._made.get(known)
            if comm is None or comm.broken is not None:
                if comm is not None:
                    comm.release()
                self._made = {key: inherited for key, inherited in self._made.items() if key[0] != known[0]}
                comm = self._made[known] = connect(None, timeout)
            return comm

    def _unlock(self) -> None:
        """Replace the lock in a forked child: another thread of the parent may have held it."""
        self._lock = threading.Lock()


_process = _Process()


def channel_of_job(timeout: float = TIMEOUT_S) -> Comm:
    """The process's channel, for exchanges of one thread at a time (collective if it does not exist yet).

    It is created again in a forked process, if the launcher's data have changed, or if it is broken: all ranks have
    seen the error that broke it, or see it at their next exchange.
    """
    return _process.channel(timeout)


def own_channel_of_job(timeout: float = TIMEOUT_S) -> Comm:
    """A separate channel, for exchanges concurrent with those of others (collective)."""
    comm = channel_of_job(timeout)
    return finish(comm, comm.channel(), "opening a channel", timeout)


def _known_by() -> _Known:
    mpi = sys.modules.get("mpi4py.MPI")
    return os.getpid(), launch(), mpi is not None and mpi.Is_finalized()
