"""The commit round: how the ranks of a job agree that a level of a step is complete.

One gather of short reports and one broadcast of the outcome. Either every rank learns that the level is complete, or
every rank learns why it is not.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import astuple
from typing import Any, Generic, TypeVar

from deeppart.comm.base import Comm, Drive, Operation, rank_names
from deeppart.errors import DeeppartError
from deeppart.model import PartRecord

Commit = Callable[[list[PartRecord]], None]
T = TypeVar("T")

#: See :class:`ForegroundRound`.
LONGEST_GAP_S = 1.0


def commit_round(comm: Comm, report: PartRecord | str | None, commit: Commit | None) -> Operation[str | None]:
    """All ranks report to rank 0; if all succeeded it commits; all learn the outcome.

    Args:
        report: this rank's part, or what went wrong; None where there is nothing to say of what went well.
        commit: what rank 0 does with all records, in rank order; None if the level needs no commit.

    Returns:
        None for success, otherwise what went wrong, naming ranks.
    """
    document = astuple(report) if isinstance(report, PartRecord) else report
    texts = yield from comm.gather(json.dumps(document).encode())
    outcome: bytes | None = None
    if texts is not None:
        outcome = (_decide([json.loads(text) for text in texts], commit) or "").encode(errors="backslashreplace")
    told = yield from comm.broadcast(outcome)
    return told.decode() or None


def _decide(reports: list[Any], commit: Commit | None) -> str | None:
    failed = {rank: report for rank, report in enumerate(reports) if isinstance(report, str)}
    if failed:
        return f"{rank_names(failed)} failed: " + str(next(iter(failed.values())))
    if commit is not None:
        try:
            commit([PartRecord(*report) for report in reports])
        except (DeeppartError, OSError) as error:
            return f"rank 0 could not commit: {error}"
    return None


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
