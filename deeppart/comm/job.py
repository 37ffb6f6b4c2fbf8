"""The channel between the ranks that a launcher has started: one for a process, however many ask for it.

Sessions have channels of their own, which they release (:func:`deeppart.comm.connect`). What lives as long as the
process, and exchanges a little now and then, shares this one.
"""

from __future__ import annotations

import os
import sys
import threading

from deeppart.comm.base import Comm
from deeppart.comm.connecting import connect
from deeppart.comm.waiting import finish
from deeppart.config import Launch, launch

#: Seconds until a rank that does not come is an error, by default.
TIMEOUT_S = 600.0

#: Of which process a channel is, by which launcher, and whether MPI has ended since.
_Known = tuple[int, Launch | None, bool]


class _Process:
    """The channel of this process; there is one, :data:`_process`, since what shares it knows nothing of each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Guarded by the lock.
        self._made: tuple[_Known, Comm] | None = None
        #: In a forked child, the parent's: what would be done at its end is the parent's, too. Guarded by the lock.
        self._inherited: list[Comm] = []
        os.register_at_fork(after_in_child=self._unlock)

    def channel(self, timeout: float) -> Comm:
        with self._lock:
            known = _known_by()
            if self._made is not None and self._made[0] == known and self._made[1].broken is None:
                return self._made[1]
            if self._made is not None and self._made[0][0] != known[0]:
                self._inherited.append(self._made[1])
            elif self._made is not None and self._made[1].broken is not None:
                self._made[1].release()
            self._made = None
            comm = connect(None, timeout)
            self._made = known, comm
            return comm

    def _unlock(self) -> None:
        """In a child that was forked: another thread of the parent may have had the lock."""
        self._lock = threading.Lock()


_process = _Process()


def channel_of_job(timeout: float = TIMEOUT_S) -> Comm:
    """The process's channel, for what one thread exchanges at a time (collective where it does not exist yet).

    It is made anew in a process that was forked, where the launcher's data have changed, and where it is broken: all
    ranks have seen the error that broke it, or see it at their next exchange.
    """
    return _process.channel(timeout)


def own_channel_of_job(timeout: float = TIMEOUT_S) -> Comm:
    """A channel beside it, for what is under way while others exchange something (collective)."""
    comm = channel_of_job(timeout)
    return finish(comm, comm.channel(), "opening a channel", timeout)


def _known_by() -> _Known:
    mpi = sys.modules.get("mpi4py.MPI")
    return os.getpid(), launch(), mpi is not None and mpi.Is_finalized()
