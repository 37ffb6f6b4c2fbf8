"""Records of suspect steps: ranks write down at once what they find out about their earlier checkpoints."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from deeppart._threads import start_thread
from deeppart.errors import BackgroundFailureWarning
from deeppart.model import Attempt, SuspectLeaf, Suspicion
from deeppart.save.ledger import Ledger
from deeppart.state.compare.divergence import Divergence
from deeppart.storage.records import write_suspicion

#: Steps named in a warning; the record has all.
_MOST_NAMED = 8


def suspicion_of(attempt: Attempt, diverged: Sequence[Divergence]) -> Suspicion | None:
    """The record of what a checkpoint has found; None if no earlier one is suspect for it."""
    leaves, steps = [], dict[int, None]()
    for each in diverged:
        if each.interval is not None:
            leaves.append(SuspectLeaf(each.path, each.ranks, each.interval.after, each.interval.after_step))
            steps |= dict.fromkeys(each.interval.steps)
    if not leaves:
        return None
    return Suspicion(attempt.lineage, attempt.session, attempt.sequence, attempt.step, tuple(steps), tuple(leaves))


class SuspicionWriter:
    """Writes records, each at once: the checkpoint that has found them may never be complete, and whoever is told of it
    may end the job.
    """

    def __init__(self, root: Path, job: Attempt, timeout: float, ledger: Ledger) -> None:
        self._root, self._job, self._timeout, self._ledger = root, job, timeout, ledger
        self._threads: list[threading.Thread] = []  # touched by the training thread alone

    def record(self, sequence: int, step: int, diverged: Sequence[Divergence]) -> None:
        """Put on record what a checkpoint of this session has found."""
        suspicion = suspicion_of(replace(self._job, sequence=sequence, step=step), diverged)
        if suspicion is None:
            return
        write, failed = partial(write_suspicion, self._root, suspicion), partial(self._note_failure, suspicion)
        thread = start_thread(write, "deeppart-suspect", failed)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.join(self._timeout)

    def wait(self, timeout: float) -> None:
        """Wait until all records are written, or given up; at most ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _note_failure(self, suspicion: Suspicion, error: BaseException) -> None:
        steps = ", ".join(map(str, suspicion.steps[:_MOST_NAMED]))
        text = f"the record that these steps are suspect could not be written: {steps}: {error}"
        self._ledger.note(text, BackgroundFailureWarning)
