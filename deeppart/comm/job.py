"""The channel between the ranks that a launcher has started: one for a process, however many ask for it.

Sessions have channels of their own, which they give back (:func:`deeppart.comm.connect`). What lives as long as the
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
_lock = threading.Lock()
#: Guarded by the lock.
_made: tuple[_Known, Comm] | None = None
#: In a forked child, the parent's: what would be done at its end is the parent's, too. Guarded by the lock.
_inherited: list[Comm] = []


def channel_of_job(timeout: float = TIMEOUT_S) -> Comm:
    """The process's channel, for what one thread exchanges at a time (collective where it does not exist yet).

    It is made anew in a process that was forked, and where the launcher's data have changed. One that is broken stays
    so: a rank alone cannot make another one.
    """
    global _made
    with _lock:
        known = _known_by()
        if _made is not None and _made[0] == known:
            return _made[1]
        if _made is not None and _made[0][0] != known[0]:
            _inherited.append(_made[1])
        comm = connect(None, timeout)
        _made = known, comm
        return comm


def own_channel_of_job(timeout: float = TIMEOUT_S) -> Comm:
    """A channel beside it, for what is under way while others exchange something (collective)."""
    comm = channel_of_job(timeout)
    return finish(comm, comm.channel(), "opening a channel", timeout)


def _known_by() -> _Known:
    mpi = sys.modules.get("mpi4py.MPI")
    return os.getpid(), launch(), mpi is not None and mpi.Is_finalized()


def _unlock() -> None:
    """In a child that was forked: another thread of the parent may have had the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)
