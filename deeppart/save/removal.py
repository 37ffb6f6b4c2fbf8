"""Old steps on the persistent level go in a thread of their own, on rank 0: a file system may take seconds to remove
one, and the next step's part is written meanwhile.

A checkpoint counts as in flight until what it replaces is gone. So there are never more steps that are still to be
removed than checkpoints may be in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from deeppart.errors import BackgroundFailureWarning, KeepNotice, StorageError
from deeppart.model import Level
from deeppart.save.job import Job
from deeppart.save.ledger import Ledger
from deeppart.save.retention import Retention
from deeppart.storage.files import NO_SPACE


class Removals:
    """What is to be removed, and whether it is gone. Thread-safe."""

    def __init__(self, retention: Retention, ledger: Ledger, patience_s: float) -> None:
        self._retention, self._ledger, self._patience_s = retention, ledger, patience_s
        self._changed = threading.Condition()
        self._under_way = self._elsewhere = 0  # guarded by it

    @property
    def here(self) -> bool:
        """True on the rank that removes."""
        return self._retention.removes

    @property
    def under_way(self) -> bool:
        """True if anything is still to be removed."""
        return bool(self._under_way)

    def expect(self) -> None:
        """A step is committed: on the rank that removes, :meth:`remove` is going to be called."""
        with self._changed:
            if self.here:
                self._under_way += 1
            else:
                self._elsewhere += 1

    def remove(self, job: Job) -> None:
        """Remove what ``keep`` no longer wants now that a job is committed. Raises nothing: a refusal is reported."""
        try:
            report_refusals(job, Level.PERSISTENT, self._ledger, lambda: self._retention.remove_old(job.attempt.key))
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def removed_count(self) -> int:
        """How many steps have been removed here."""
        return self._retention.removed_count

    def made_room(self, error: StorageError, before: int) -> bool:
        """After an error: if it is that there is no space, wait for what is being removed."""
        if error.errno not in NO_SPACE:
            return False
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way, self._patience_s)
            return self._retention.removed_count > before or bool(self._elsewhere)


def report_refusals(job: Job, level: str, ledger: Ledger, remove: Callable[[], list[str] | None]) -> None:
    """Remove old steps after a commit. A refusal is reported and does not undo the commit."""
    try:
        for notice in remove() or ():
            ledger.note(notice, KeepNotice)
    except Exception as error:
        job.pending.note_cost(retire_error=str(error))
        complete = f"step {job.attempt.step} is complete at level {level!r}"
        text = f"{complete}, but steps that `keep` no longer wants there could not be removed: {error}"
        ledger.note(text, BackgroundFailureWarning)
