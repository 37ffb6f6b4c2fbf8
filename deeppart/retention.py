"""Retention: what is removed from the levels, and when.

Invariants
----------
* Nothing is removed at a level before a newer step is committed there.
* A local part is not removed while it is being drained.
* What another rank may be writing is never taken for a leftover: only steps this rank has itself submitted, or that
  were there at start-up and have not been named since, are candidates.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from deeppart.levels.local import LocalLevel
from deeppart.levels.persistent import PersistentLevel


class Retention:
    """Keeps count of the steps of both levels, for the two background threads of a rank.

    Args:
        local: this rank's local level if it is the one to tidy the directory up, otherwise None.
        persistent: the persistent level on rank 0, otherwise None.
        keep: level name -> how many committed steps stay; 0 keeps all.
        leftovers: level name -> steps that earlier sessions left there; they go when a newer step is committed.
    """

    def __init__(
        self,
        local: LocalLevel | None,
        persistent: PersistentLevel | None,
        keep: dict[str, int],
        leftovers: dict[str, set[int]],
    ) -> None:
        self._local, self._persistent = local, persistent
        self._keep = keep
        self._local_steps: list[int] = []
        self._leftovers = {level: set(steps) for level, steps in leftovers.items()}
        self._lock = threading.Lock()

    def protect(self, step: int) -> None:
        """Keep what other ranks write for ``step`` from being removed as a leftover.

        Called before the ranks agree on the step, so before any of them can write it.
        """
        if any(step in steps for steps in self._leftovers.values()):
            with self._lock:
                for steps in self._leftovers.values():
                    steps.discard(step)

    def abandon(self, level: str, step: int, part: Path | None) -> None:
        """A step failed at a level: this rank's part goes now, the rest of the step with the next commit at the latest.

        Args:
            part: this rank's part file of that step, which may or may not exist; None to let it be.
        """
        if part is not None:
            with contextlib.suppress(OSError):
                part.unlink()
        with self._lock:
            self._leftovers[level].add(step)

    def committed(self, level: str, step: int, in_flight: Callable[[], Iterable[int]]) -> None:
        """A step is complete at a level: remove what ``keep`` no longer wants.

        Args:
            in_flight: gives the steps whose local parts are still needed, this one not counted. Asked when it is this
                call's turn: both levels come here, and the last one must not act on what was before the other.

        Raises:
            StorageError: a removal was refused. The commit stands.
        """
        with self._lock:
            if level == "local":
                self._local_steps.append(step)
            elif self._persistent is not None:
                leftovers = self._leftovers["persistent"]
                dropped = self._persistent.removable(self._keep["persistent"], leftovers, step)
                leftovers |= dropped  # stays on record if it is refused: it may have lost its manifest by then
                self._persistent.remove(dropped)
                leftovers.clear()
            self._retire_local(set(in_flight()))

    def _retire_local(self, needed: set[int]) -> None:
        keep = self._keep["local"]
        if self._local is None or not keep or not self._local_steps:
            return
        needed |= set(self._local_steps[-keep:])
        dropped = (self._leftovers["local"] | set(self._local_steps)) - needed
        self._local.retire(dropped)
        self._leftovers["local"] -= dropped
        self._local_steps = [step for step in self._local_steps if step in needed]
