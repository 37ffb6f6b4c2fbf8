"""Retention: what is removed from the levels, and when.

Invariants
----------
* A session removes only directories that carry its own name, and those that were there when it started: nothing that
  another session writes later is ever a candidate, however late this one acts.
* Nothing is removed at a level before a newer step is committed there; on the persistent level, nothing by a session
  that another has taken the directory from.
* A step whose verdict this rank has not heard stays until a newer one is committed at the level, beside the last one
  that is known to be: other ranks may have heard that it is complete, and have removed what it replaces.
* A local part is not removed while it is being flushed, copied or encoded, nor as long as copies or parity of its step
  are kept: each is only worth something together with the other.
* A step that has failed at a level for all that is known protects nothing: else, where copies fail from the first
  checkpoint on, no local part would ever go.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from deeppart import access
from deeppart.errors import StorageError
from deeppart.model import REDUNDANT_LEVELS, Level, StepKey
from deeppart.storage.keeping import Keeping
from deeppart.storage.node import NodeLevel
from deeppart.storage.owner import DirectoryOwner
from deeppart.storage.persistent import PersistentLevel


class Retention:
    """Keeps count of the steps of all levels, for the background threads of a rank."""

    def __init__(
        self,
        node_levels: Mapping[str, NodeLevel],
        persistent: PersistentLevel | None,
        keep: Mapping[str, int],
        every: Mapping[str, int],
        earlier: Mapping[str, set[StepKey]],
        owner: DirectoryOwner | None = None,
    ) -> None:
        self._node_levels, self._persistent, self._owner = node_levels, persistent, owner
        self._keep, self._every = keep, every
        self._steps: dict[str, list[StepKey]] = {level: [] for level in earlier}
        self._leftovers = {level: set(keys) for level, keys in earlier.items() if level != Level.PERSISTENT}
        self._in_doubt: dict[str, set[StepKey]] = {level: set() for level in self._leftovers}
        self._failed: dict[str, set[StepKey]] = {level: set() for level in self._leftovers}
        self._abandoned: set[StepKey] = set()
        self._lock = threading.Lock()  # guards the five above
        # A file system may take seconds to remove a step: what happens on nodes does not wait for that.
        self._removing = threading.Lock()  # guards the next two; taken first
        self._removed_count = 0
        self._keeping = None
        if persistent is not None:
            what = (keep[Level.PERSISTENT], earlier[Level.PERSISTENT], persistent.signing)
            self._keeping = Keeping(persistent.root, *what)

    def went_on(self) -> None:
        """A step was restored, from which this session goes on."""
        with self._removing:
            if self._keeping is not None:
                self._keeping.went_on()

    def adopt(self, key: StepKey) -> None:
        """Files of a step of an earlier run have been put on nodes again; they go when a newer step is committed."""
        with self._lock:
            for level, keys in self._leftovers.items():
                keys.add(key)
                self._failed[level].discard(key)

    def abandon(self, level: str, key: StepKey, files: Iterable[Path], *, in_doubt: bool = False) -> None:
        """A step failed at a level: remove this rank's files; the rest goes with the next commit of any level."""
        for file in files:
            with contextlib.suppress(OSError):
                access.remove(file)
        with self._lock:
            if level == Level.PERSISTENT:  # where the manifest tells
                self._abandoned.add(key)
            else:
                (self._in_doubt if in_doubt else self._failed)[level].add(key)

    def committed(self, level: str, key: StepKey, retire: Callable[[set[StepKey]], set[StepKey]]) -> None:
        """A step is complete at a level: retire what ``keep`` no longer wants on nodes.

        On the persistent level :meth:`remove_old` has to follow, on the rank that has :attr:`removes`.
        """
        with self._lock:
            if level != Level.PERSISTENT:
                self._steps[level].append(key)
                self._leftovers[level] |= self._in_doubt[level]
                self._in_doubt[level].clear()
            self._retire_nodes(retire)

    @property
    def removes(self) -> bool:
        """True on the rank that removes steps from the persistent level."""
        return self._persistent is not None

    @property
    def removed_count(self) -> int:
        """How many steps this session has removed from the persistent level, wholly or in part."""
        return self._removed_count

    def remove_old(self, newest: StepKey) -> list[str]:
        """A step is committed: remove what ``keep`` no longer wants from the persistent level."""
        persistent, keeping = self._persistent, self._keeping
        if persistent is None or keeping is None:
            return []
        with self._removing:
            keeping.committed(newest)
            with self._lock:
                abandoned = set(self._abandoned)
            dropped = keeping.removable(abandoned)
            refusal: StorageError | None = None
            for key in sorted(dropped):
                if self._owner is not None:
                    self._owner.check()  # each time: a removal may take as long as a job to take the directory over
                try:
                    persistent.remove({key})
                except StorageError as error:  # it stays on record: it may have lost its manifest by then
                    refusal = refusal or error
                    continue
                finally:
                    self._removed_count += 1  # a refused one may have lost files that took space
                keeping.forget({key})
                with self._lock:
                    self._abandoned.discard(key)
            if refusal is not None:
                raise refusal
            return keeping.take_notices()

    def _retire_nodes(self, retire: Callable[[set[StepKey]], set[StepKey]]) -> None:
        """The redundant levels first: what they keep, the local level keeps too."""
        refusal: StorageError | None = None
        protected: set[StepKey] = set()
        for name in (*REDUNDANT_LEVELS, Level.LOCAL):
            level = self._node_levels.get(name)
            if level is None:
                continue
            steps, leftovers, keep = self._steps[name], self._leftovers[name], self._keep[name]
            protected |= self._in_doubt[name]
            replaced = bool(steps if self._every[name] else self._steps[Level.LOCAL])
            kept = set(steps[-keep:]) if keep and replaced else leftovers | set(steps)
            unwanted = (leftovers | set(steps) | self._failed[name]) - kept
            dropped = retire(unwanted - protected if name == Level.LOCAL else unwanted)
            protected |= kept
            try:
                level.retire(dropped)
            except StorageError as error:
                refusal = refusal or error
                continue
            leftovers -= dropped
            self._failed[name] -= dropped
            self._steps[name] = [key for key in steps if key not in dropped]
        if refusal is not None:
            raise refusal
