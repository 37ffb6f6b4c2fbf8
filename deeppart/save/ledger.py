"""The shared records of a rank's background threads and the caller: complete checkpoints, steps in use, notes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from deeppart.errors import DeeppartWarning
from deeppart.model import Attempt, StepKey

#: Checkpoints that are remembered as complete: ranks learn of that one after the other.
_REMEMBERED = 3
#: Sequence under which a checkpoint of an earlier run is known, which this one was restored from.
_RESTORED = -1


class Ledger:
    """Thread-safe; one per rank."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notes: deque[tuple[str, type[DeeppartWarning]]] = deque()
        self._complete: dict[int, Attempt] = {}
        self._held: list[Attempt] = []

    def note(self, text: str, category: type[DeeppartWarning]) -> None:
        """Something to tell the caller at the next call."""
        self._notes.append((text, category))

    def take_notes(self) -> list[tuple[str, type[DeeppartWarning]]]:
        """The notes since the last call."""
        return [self._notes.popleft() for _ in range(len(self._notes))]

    def completed(self, attempt: Attempt) -> None:
        """A checkpoint of this run is complete at all levels on nodes that it went to."""
        self._remember(attempt.sequence, attempt)

    def restored(self, attempt: Attempt) -> None:
        """A checkpoint of an earlier run is on the nodes, copies and parity included."""
        self._remember(_RESTORED, attempt)

    def complete(self) -> dict[int, Attempt]:
        """The last few complete checkpoints by sequence; the restored one as -1. Without those that were retired."""
        with self._lock:
            return dict(self._complete)

    def hold(self, attempt: Attempt) -> None:
        """Keep a checkpoint's files on nodes from being retired until :meth:`release`."""
        with self._lock:
            self._held.append(attempt)

    def release(self, attempt: Attempt) -> None:
        """See :meth:`hold`."""
        with self._lock:
            self._held.remove(attempt)

    def retire(self, keys: Iterable[StepKey]) -> set[StepKey]:
        """Those of the steps that nobody holds: their files may go, and they do not count as complete from here on.

        So whoever holds a step, and finds it complete on all ranks afterwards, finds its files, too.
        """
        with self._lock:
            retired = {key for key in keys if not any(key.may_hold(attempt) for attempt in self._held)}
            gone = {at for at, each in self._complete.items() if any(key.may_hold(each) for key in retired)}
            self._complete = {at: each for at, each in self._complete.items() if at not in gone}
            return retired

    def _remember(self, sequence: int, attempt: Attempt) -> None:
        with self._lock:
            self._complete[sequence] = attempt
            for old in sorted(self._complete)[:-_REMEMBERED]:
                del self._complete[old]
