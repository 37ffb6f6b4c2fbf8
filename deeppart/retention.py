"""Retention: what is removed from the levels, and when.

Invariants
----------
* Nothing is removed at a level before a newer step is committed there.
* A local part is not removed while it is being drained, copied or encoded, nor as long as copies or parity of its step
  are kept: each is only worth something together with the other.
* What another rank may be writing is never taken for a leftover: only steps this rank has itself submitted, or that
  were there at start-up and have not been named since, are candidates.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from deeppart.errors import StorageError
from deeppart.levels.node import NodeLevel
from deeppart.levels.persistent import PersistentLevel
from deeppart.model import REDUNDANT_LEVELS


class Retention:
    """Keeps count of the steps of all levels, for the background threads of a rank.

    Args:
        node_levels: the levels on this node, if this rank is the one to tidy its directory up, otherwise {}.
        persistent: the persistent level on rank 0, otherwise None.
        keep: level name -> how many committed steps stay; 0 keeps all.
        every: level name -> 0 where the level is off: what earlier runs left there then goes with the local level.
        leftovers: level name -> steps that earlier sessions left there; they go when a newer step is committed.
    """

    def __init__(
        self,
        node_levels: Mapping[str, NodeLevel],
        persistent: PersistentLevel | None,
        keep: Mapping[str, int],
        every: Mapping[str, int],
        leftovers: Mapping[str, set[int]],
    ) -> None:
        self._node_levels, self._persistent = node_levels, persistent
        self._keep, self._every = keep, every
        self._steps: dict[str, list[int]] = {level: [] for level in leftovers}
        self._leftovers = {level: set(steps) for level, steps in leftovers.items()}
        self._lock = threading.Lock()
        # A file system may take seconds to remove a step: what happens on nodes does not wait for that. Taken first.
        self._removing = threading.Lock()

    def protect(self, step: int) -> None:
        """Keep what other ranks write for ``step`` from being removed as a leftover.

        Called before the ranks agree on the step, so before any of them can write it.
        """
        if any(step in steps for steps in self._leftovers.values()):
            with self._removing, self._lock:
                for steps in self._leftovers.values():
                    steps.discard(step)

    def adopt(self, step: int) -> None:
        """Files of a step of an earlier run have been put on nodes again; they go when a newer step is committed."""
        with self._lock:
            for name, steps in self._leftovers.items():
                if name != "persistent":
                    steps.add(step)

    def abandon(self, level: str, step: int, files: Iterable[Path]) -> None:
        """A step failed at a level: this rank's files go now, the rest of the step with the next commit at the latest.

        Args:
            files: what this rank wrote of that step there, which may or may not exist.
        """
        for file in files:
            with contextlib.suppress(OSError):
                file.unlink()
        with self._lock:
            self._leftovers[level].add(step)

    def committed(self, level: str, step: int, retire: Callable[[set[int]], set[int]]) -> None:
        """A step is complete at a level: remove what ``keep`` no longer wants.

        Args:
            retire: given steps whose files on nodes are not wanted, those that are not needed either. Asked when it is
                this call's turn: both levels come here, and the last one must not act on what was before the other.

        Raises:
            StorageError: a removal was refused. The commit stands.
        """
        try:
            with self._lock:  # first: the next checkpoint writes over what is retired on a node
                if level != "persistent":
                    self._steps[level].append(step)
                self._retire_nodes(retire)
        finally:
            if level == "persistent" and self._persistent is not None:
                self._remove_persistent(self._persistent, step)

    def _remove_persistent(self, persistent: PersistentLevel, newest: int) -> None:
        with self._removing:
            with self._lock:
                found = set(self._leftovers["persistent"])
            dropped = persistent.removable(self._keep["persistent"], found, newest)
            with self._lock:  # stays on record if it is refused: it may have lost its manifest by then
                self._leftovers["persistent"] |= dropped
            persistent.remove(dropped)
            with self._lock:
                self._leftovers["persistent"] -= found | dropped

    def _retire_nodes(self, retire: Callable[[set[int]], set[int]]) -> None:
        """The redundant levels first: what they keep, the local level keeps too."""
        refusal: StorageError | None = None
        protected: set[int] = set()
        for name in (*REDUNDANT_LEVELS, "local"):
            level = self._node_levels.get(name)
            if level is None:
                continue
            steps, leftovers, keep = self._steps[name], self._leftovers[name], self._keep[name]
            replaced = bool(steps if self._every[name] else self._steps["local"])
            if not keep or not replaced:
                protected |= leftovers | set(steps)
                continue
            kept = set(steps[-keep:])
            unwanted = (leftovers | set(steps)) - kept
            dropped = retire(unwanted - protected if name == "local" else unwanted)
            protected |= kept
            try:
                level.retire(dropped)
            except StorageError as error:
                refusal = refusal or error
                continue
            leftovers -= dropped
            self._steps[name] = [step for step in steps if step not in dropped]
        if refusal is not None:
            raise refusal
