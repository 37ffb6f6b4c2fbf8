"""Old steps on the persistent level go in a thread of their own, on rank 0: a file system may take seconds to remove
one, and the next step's part is written meanwhile.

A checkpoint counts as in flight until what it replaces is gone. So there are never more steps that are still to be
removed than checkpoints may be in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from deeppart.errors import BackgroundFailureWarning, KeepNotice
from deeppart.save.job import Job
from deeppart.save.ledger import Ledger
from deeppart.save.retention import Retention


class Removals:
    """What is to be removed, and whether it is gone. Thread-safe.

    Args:
        retention: knows what `keep` wants, and removes the rest.
        ledger: of the pipeline.
    """

    def __init__(self, retention: Retention, ledger: Ledger) -> None:
        self._retention, self._ledger = retention, ledger
        self._changed = threading.Condition()
        self._under_way = 0  # guarded by it

    def expect(self) -> None:
        """A step is committed, and :meth:`remove` is going to be called."""
        with self._changed:
            self._under_way += 1

    def remove(self, job: Job) -> None:
        """Remove what ``keep`` no longer wants now that a job is committed. Raises nothing: a refusal is reported."""
        try:
            report_refusals(job, "persistent", self._ledger, lambda: self._retention.remove_old(job.attempt.key))
        finally:
            self.over()

    def over(self) -> None:
        """What was expected has been done, or given up."""
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()

    def wait(self, timeout: float) -> bool:
        """Wait until nothing is left to be removed; False if there was nothing, or it takes longer."""
        with self._changed:
            return bool(self._under_way) and self._changed.wait_for(lambda: not self._under_way, timeout)


def report_refusals(job: Job, level: str, ledger: Ledger, remove: Callable[[], list[str]]) -> None:
    """Remove old steps after a commit. A refusal is reported and does not undo the commit.

    Args:
        remove: does it, and returns lines to tell the user.
    """
    try:
        for notice in remove():
            ledger.note(notice, KeepNotice)
    except Exception as error:
        job.pending.note_cost(retire_error=str(error))
        complete = f"step {job.attempt.step} is complete at level {level!r}"
        text = f"{complete}, but steps that `keep` no longer wants there could not be removed: {error}"
        ledger.note(text, BackgroundFailureWarning)
