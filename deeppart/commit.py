"""The commit round: how the ranks of a job agree that a level of a step is complete.

One gather of short reports and one broadcast of the verdict. Either every rank learns that the level is complete, or
every rank learns why it is not, and whether it may turn out to be complete all the same.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, Generic, TypeVar

from deeppart.comm.base import Comm, Drive, Operation, rank_names
from deeppart.errors import DeeppartError
from deeppart.model import PartRecord

Commit = Callable[[list[PartRecord]], None]
T = TypeVar("T")

#: See :class:`ForegroundRound`.
LONGEST_GAP_S = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a commit round came to.

    Attributes:
        problem: what went wrong, naming ranks; None for success.
        may_stand: there is a problem, and yet the commit may be there for the next job to find. Nobody takes anything
            of the step away then: a step with a manifest is a whole one.
    """

    problem: str | None
    may_stand: bool = False


class CommitMayStandError(DeeppartError):
    """A commit failed, and what was to make the step a checkpoint may be there. Its cause says why."""


def commit_round(comm: Comm, report: PartRecord | str | None, commit: Commit | None) -> Operation[Verdict]:
    """All ranks report to rank 0; if all succeeded it commits; all learn the verdict.

    Args:
        report: this rank's part, or what went wrong; None where there is nothing to say of what went well.
        commit: what rank 0 does with all records, in rank order; None if the level needs no commit. May raise
            :class:`CommitMayStandError`.
    """
    document = astuple(report) if isinstance(report, PartRecord) else report
    texts = yield from comm.gather(json.dumps(document).encode())
    verdict: bytes | None = None
    if texts is not None:
        verdict = json.dumps(astuple(_decide([json.loads(text) for text in texts], commit))).encode()
    told = yield from comm.broadcast(verdict)
    return Verdict(*json.loads(told))


def _decide(reports: list[Any], commit: Commit | None) -> Verdict:
    failed = {rank: report for rank, report in enumerate(reports) if isinstance(report, str)}
    if failed:
        return Verdict(f"{rank_names(failed)} failed: " + str(next(iter(failed.values()))))
    if commit is not None:
        try:
            commit([PartRecord(*report) for report in reports])
        except (DeeppartError, OSError) as error:
            if isinstance(error, CommitMayStandError):
                return Verdict(f"rank 0 could not commit, yet {error}: {error.__cause__}", may_stand=True)
            return Verdict(f"rank 0 could not commit: {error}")
    return Verdict(None)


class ForegroundRound(Generic[T]):
    """An exchange that only the training thread may advance, now and then, when it calls the library.

    Its timeout counts the time in which the training thread looks in: at most :data:`LONGEST_GAP_S` from one look to
    the next. Training that stays away for an hour has not waited for anyone.

    Args:
        comm: the level's channel.
        operation: a commit round, or another exchange of the background.
        what: what is waited for, for the error.
        timeout: seconds.
    """

    def __init__(self, comm: Comm, operation: Operation[T], what: str, timeout: float) -> None:
        self._drive = Drive(comm, operation, what, timeout)
        self._lock = threading.Lock()
        self._cancelled = False
        self._waited_s, self._looked_at = 0.0, time.monotonic()
        self.finished = threading.Event()
        self.error: DeeppartError | None = None

    @property
    def result(self) -> T:
        """What the operation returned, once finished without an error."""
        return self._drive.result

    @property
    def moved(self) -> bool:
        """Whether the last :meth:`advance` got further without finishing."""
        return self._drive.moved and not self.finished.is_set()

    @property
    def waited_s(self) -> float:
        """Seconds in which the training thread has looked in, and it has not got further."""
        return self._waited_s

    def advance(self) -> bool:
        """Go on as far as possible without waiting; True when finished."""
        with self._lock:
            if self._cancelled:
                return True
            now = time.monotonic()
            self._waited_s += min(now - self._looked_at, LONGEST_GAP_S)
            self._looked_at = now
            try:
                if not self._drive.advance(self._waited_s):
                    if self._drive.moved:
                        self._waited_s = 0.0
                    return False
            except DeeppartError as error:
                self.error = error
        self.finished.set()
        return True

    def cancel(self) -> None:
        """Never advance again: the level has been given up, and must not be committed after that."""
        with self._lock:
            self._cancelled = True
