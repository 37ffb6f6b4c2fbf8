"""Drives operations to their end: with a timeout, and without taking a processor from training."""

from __future__ import annotations

import time
from typing import Generic, TypeVar

from deeppart.comm.base import Operation, rank_names
from deeppart.comm.channel import Comm
from deeppart.errors import CommError, DeeppartError, PeerTimeoutError, RemoteRankError, WaitingNotice, warn_now

T = TypeVar("T")
#: A wait of the training thread first polls without sleeping: a steady-state exchange takes microseconds, and the MPI
#: library moves bulk data only while it is polled. It yields the core to other processes in between.
POLL_S = 20e-3
#: After that, and in background threads from the start, it sleeps for increasing times between polls.
SLEEP_FIRST_S = 20e-6
SLEEP_MOST_S = 2e-3
#: After this time the training thread prints once which ranks it waits for; the timeout may be hours.
NOTICE_S = 30.0
#: After this share of the timeout a waiting rank tells the others that it waits, so that an error can name the rest.
PATIENCE_SHARE = 0.25
PATIENCE_MOST_S = 2.0


class RunningOperation(Generic[T]):
    """A running operation, which is advanced step by step.

    Attributes:
        what, timeout: a description for errors; and seconds without progress until an error.
        result: the result of the operation, once :meth:`advance` has returned True.
        moved: true if the last :meth:`advance` made progress.
    """

    result: T
    moved: bool

    def __init__(self, comm: Comm, operation: Operation[T], what: str, timeout: float) -> None:
        self._comm, self._operation, self.what, self.timeout = comm, operation, what, timeout
        self._patience = min(PATIENCE_MOST_S, PATIENCE_SHARE * timeout)
        self._has_sent_heartbeat = False
        self.moved = False

    def advance(self, waited_s: float) -> bool:
        """Advance as far as possible without waiting; True when finished."""
        if self._comm.broken is not None:
            raise CommError(
                f"{self.what}: the ranks of this session can no longer communicate with each other",
                found=self._comm.broken.summary,
                todo="close the checkpointer on all ranks and make another one; committed checkpoints are not affected",
            )
        try:
            self.moved = next(self._operation)
        except StopIteration as stop:
            self.result = stop.value
            return True
        if self.moved:
            self._has_sent_heartbeat = False
            return False
        if waited_s > self._patience:
            if not self._has_sent_heartbeat:
                self._has_sent_heartbeat = True
                self._comm.heartbeat()
            if ranks := self._comm.abandoned_by():
                raise _abandoned(self._comm, self.what, ranks)
        if waited_s > self.timeout or (waited_s > self._patience and self._comm.given_up_by()):
            raise _timed_out(self._comm, self.what, waited_s)
        return False


def finish(comm: Comm, operation: Operation[T], what: str, timeout: float, *, background: bool = False) -> T:
    """Drive an operation to its end and return its result.

    An interrupted operation breaks the channel: later messages of the other ranks would be mistaken for others. An
    error on which the ranks have agreed does not.
    """
    try:
        return _drive(comm, RunningOperation(comm, operation, what, timeout), background=background)
    except BaseException as error:
        is_agreed = isinstance(error, DeeppartError) and (
            isinstance(error, RemoteRankError) or not isinstance(error, CommError)
        )
        if comm.size > 1 and not is_agreed:
            comm.abandon(CommError(f"{what}: interrupted on this rank", found=repr(error)))
        raise


def _drive(comm: Comm, running: RunningOperation[T], *, background: bool) -> T:
    began = time.monotonic()
    polling, sleep_s = not background, SLEEP_FIRST_S
    waited, has_said = 0.0, background
    while not running.advance(waited):
        now = time.monotonic()
        if running.moved:
            began, sleep_s = now, SLEEP_FIRST_S
        waited = now - began
        if waited > NOTICE_S and not has_said:
            has_said = True
            _say_for_whom(comm, running, waited)
        if polling:
            polling = waited < POLL_S
            time.sleep(0)
        elif not running.moved:
            time.sleep(sleep_s)
            sleep_s = min(SLEEP_MOST_S, sleep_s * 1.5)
    return running.result


def _say_for_whom(comm: Comm, running: RunningOperation[T], waited_s: float) -> None:
    """Print the ranks that are waited for; only one of the waiting ranks does."""
    present = comm.present()
    missing = set(range(comm.size)) - present
    if missing and comm.rank == min(present):
        warn_now(
            f"{running.what}: waiting for {rank_names(sorted(missing))} for {waited_s:.0f} s, up to "
            f"{running.timeout:g} s. Every rank has to make this call: is it under `if rank == 0`, or does a rank "
            "hang elsewhere?",
            WaitingNotice,
        )


def _abandoned(comm: Comm, what: str, ranks: set[int]) -> CommError:
    comm.heartbeat()  # passes on what this rank has heard: it does not wait any longer, and others may not have heard
    comm.broken = CommError(
        f"{what}: {rank_names(ranks)} cannot take part any more",
        found="an error there, after which the ranks' exchanges would not match",
        where=f"rank {comm.rank}",
        todo=f"look at what {rank_names(ranks)} reports; close the checkpointer on all ranks and make another one; "
        "committed checkpoints are not affected",
    )
    return comm.broken


def _timed_out(comm: Comm, what: str, waited_s: float) -> PeerTimeoutError:
    """The error of a rank that has waited too long, or has learnt that another one has."""
    missing, gave_up = sorted(set(range(comm.size)) - comm.present()), comm.given_up_by()
    if gave_up and not missing:
        summary = f"{what}: {rank_names(gave_up)} gave up waiting, for this rank or for another one that was late"
    else:
        names = rank_names(missing) if missing else "a rank that arrived and did not finish"
        summary = f"{what}: waited {waited_s:.1f} s for {names}"
    error = PeerTimeoutError(
        summary,
        expected=f"all {comm.size} ranks to take part within the configured timeout",
        found=f"{len(missing)} ranks were not heard of" if missing else "all arrived",
        where=f"rank {comm.rank}",
        todo="look for a rank that died, is stuck or did not make this call; raise `timeout` if it was only slow",
    )
    comm.abandon(error)
    return error
