"""Capturing: what is left of a capture when ``checkpoint()`` returns (``capture="lazy"``), and who waits for it."""

from __future__ import annotations

import time

from deeppart.errors import DeeppartError
from deeppart.save.job import Job
from deeppart.save.lease import Reader
from deeppart.state.compare.optimizers import REGISTRY


class Capturer:
    """Completes the captures of one rank, one after the other, and holds optimizers back meanwhile."""

    def __init__(self) -> None:
        self._job: Job | None = None
        self._listening = True
        REGISTRY.listen(self.hold)

    def begin(self, job: Job) -> None:
        """A checkpoint whose capture may not be complete; called by the training thread."""
        self._job = job

    def complete(self, job: Job) -> DeeppartError | None:
        """Make the copies that are left; returns what is wrong with them."""
        if job.deferred is None:
            return None
        began = time.monotonic()
        failure = job.deferred.wait()
        if not job.deferred.done:
            job.lease.keep(Reader.CAPTURE)  # a copy that does not end may still land in the staging memory
        job.pending.note_stage("deferred", time.monotonic() - began)
        return failure

    def hold(self) -> None:
        """An optimizer is about to step, in the thread that calls this."""
        job = self._job
        if job is None or job.deferred is None:
            return
        waits = not job.deferred.done
        job.deferred.hold()
        if waits:
            job.pending.note_cost(held_s=job.deferred.held_s)
        self._job = None

    def close(self) -> None:
        """Hold nobody back any more."""
        if self._listening:
            self._listening = False
            REGISTRY.unlisten(self.hold)
