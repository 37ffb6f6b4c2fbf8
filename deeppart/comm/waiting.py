"""Waiting for an operation's end.

What else the training thread has to advance goes on meanwhile (:mod:`deeppart.comm.queued`).
"""

from __future__ import annotations

import time
from typing import TypeVar

from deeppart.comm.base import Comm, Operation, RunningOperation, rank_names
from deeppart.comm.queued import advance_all
from deeppart.errors import WaitingNotice, warn_now

T = TypeVar("T")
#: A wait of the training thread first polls without sleeping: a steady-state exchange takes microseconds, and the MPI
#: library moves bulk data only while it is polled. Other processes get the core in between.
POLL_S = 20e-3
#: Then, and in background threads from the start, it sleeps ever longer between polls.
SLEEP_FIRST_S = 20e-6
SLEEP_MOST_S = 2e-3
#: After so long the training thread says whom it waits for, once: hours before the timeout, where that is long.
NOTICE_S = 30.0


def finish(comm: Comm, operation: Operation[T], what: str, timeout: float, *, background: bool = False) -> T:
    """Drive an operation to its end and return its result."""
    began = time.monotonic()
    drive = RunningOperation(comm, operation, what, timeout)
    polling, sleep_s = not background, SLEEP_FIRST_S
    waited, is_told = 0.0, background
    while not drive.advance(waited):
        moved = drive.moved
        if not background:
            moved = advance_all() or moved
        now = time.monotonic()
        if drive.moved:
            began, sleep_s = now, SLEEP_FIRST_S
        waited = now - began
        if waited > NOTICE_S and not is_told:
            is_told = True
            _tell(comm, what, waited, timeout)
        if polling:
            polling = waited < POLL_S
            time.sleep(0)
        elif not moved:
            time.sleep(sleep_s)
            sleep_s = min(SLEEP_MOST_S, sleep_s * 1.5)
    return drive.result


def _tell(comm: Comm, what: str, waited_s: float, timeout: float) -> None:
    """Say who is waited for; of all the ranks that wait, one does."""
    heard = comm.heard()
    missing = set(range(comm.size)) - heard
    if missing and comm.rank == min(heard):
        warn_now(
            f"{what}: waiting for {rank_names(sorted(missing))} for {waited_s:.0f} s, up to {timeout:g} s. Every rank "
            "has to make this call: is it under `if rank == 0`, or does a rank hang elsewhere?",
            WaitingNotice,
        )
