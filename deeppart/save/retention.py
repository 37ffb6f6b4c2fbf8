"""Decides which steps are removed from nodes, and when, and keeps those that background threads still need.

Invariants
----------
* A session removes only directories with its own name, and those that existed when it started: a step that another
  session writes later is never a candidate, however late this session acts.
* Nothing is removed at a level before a newer step is committed there.
* A step whose commit outcome this rank does not know stays until a newer one is committed at the level, and so does the
  last one known to be complete: other ranks may know that the step is complete, and have removed the one before.
* A local part is not removed while it is being flushed, copied or encoded, nor while copies or parity of its step are
  kept: each needs the other.
* A step known to have failed at a level protects nothing: otherwise, if copies fail from the first checkpoint on, no
  local part would ever be removed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from deeppart.errors import BackgroundFailureWarning, DeeppartWarning, KeepNotice, StorageError
from deeppart.model import REDUNDANT_LEVELS, Attempt, Level, StepKey
from deeppart.save.job import Job
from deeppart.storage import NodeLevel

#: Complete checkpoints that are remembered: ranks learn of the completion at different times.
_REMEMBERED = 3
#: Sequence number of the checkpoint of an earlier run from which this run was restored.
_RESTORED = -1


class Retention:
    """Keeps track of the steps on nodes, for the background threads of a rank."""

    def __init__(
        self,
        node_levels: Mapping[str, NodeLevel],
        keep: Mapping[str, int],
        every: Mapping[str, int],
        earlier: Mapping[str, set[StepKey]],
    ) -> None:
        self._node_levels, self._keep, self._every = node_levels, keep, every
        self._leftovers = {level: set(keys) for level, keys in earlier.items() if level != Level.PERSISTENT}
        self._steps: dict[str, list[StepKey]] = {level: [] for level in self._leftovers}
        self._in_doubt: dict[str, set[StepKey]] = {level: set() for level in self._leftovers}
        self._failed: dict[str, set[StepKey]] = {level: set() for level in self._leftovers}
        self._lock = threading.Lock()  # guards the four attributes above

    def adopt(self, key: StepKey) -> None:
        """Files of an earlier run's step were restored on nodes; they are retired when a newer step is committed."""
        with self._lock:
            for level, keys in self._leftovers.items():
                keys.add(key)
                self._failed[level].discard(key)

    def abandon(self, level: str, key: StepKey, *, in_doubt: bool = False) -> None:
        """A step failed at a level: its files go with the next commit of any level."""
        with self._lock:
            (self._in_doubt if in_doubt else self._failed)[level].add(key)

    def committed(self, level: str, key: StepKey, retire: Callable[[set[StepKey]], set[StepKey]]) -> None:
        """A step is complete at a level: retire the steps on nodes that exceed ``keep``."""
        with self._lock:
            if level != Level.PERSISTENT:
                self._steps[level].append(key)
                self._leftovers[level] |= self._in_doubt[level]
                self._in_doubt[level].clear()
            self._retire_nodes(retire)

    def _retire_nodes(self, retire: Callable[[set[StepKey]], set[StepKey]]) -> None:
        """Retire the redundant levels first: the local level keeps the steps that they keep."""
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


def report_refusals(job: Job, level: str, call_notes: CallNotes, remove: Callable[[], list[str] | None]) -> None:
    """Remove old steps after a commit. A refusal is reported, and the commit stands."""
    try:
        for notice in remove() or ():
            call_notes.note(notice, KeepNotice)
    except Exception as error:
        job.pending.note(retire_error=str(error))
        complete = f"step {job.attempt.step} is complete at level {level!r}"
        text = f"{complete}, but steps that `keep` no longer wants there could not be removed: {error}"
        call_notes.note(text, BackgroundFailureWarning)


class CallNotes:
    """Shared by a rank's background threads and the caller: complete checkpoints, held steps, warnings. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notes: deque[tuple[str, type[DeeppartWarning]]] = deque()
        self._complete: dict[int, Attempt] = {}
        self._held: list[Attempt] = []

    def note(self, text: str, category: type[DeeppartWarning]) -> None:
        """Add a warning for the caller's next call."""
        self._notes.append((text, category))

    def take_notes(self) -> list[tuple[str, type[DeeppartWarning]]]:
        """The warnings since the last call."""
        return [self._notes.popleft() for _ in range(len(self._notes))]

    def completed(self, attempt: Attempt) -> None:
        """A checkpoint of this run is complete at all of its levels on nodes."""
        self._remember(attempt.sequence, attempt)

    def restored(self, attempt: Attempt) -> None:
        """A checkpoint of an earlier run is on the nodes, including copies and parity."""
        self._remember(_RESTORED, attempt)

    def complete(self) -> dict[int, Attempt]:
        """The last few complete checkpoints by sequence, the restored one as -1; without retired ones."""
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
        """The steps that are not held: their files may be removed, and they no longer count as complete.

        So a thread that holds a step, and afterwards finds it complete on all ranks, also finds its files.
        """
        with self._lock:
            retired = set(keys) - {attempt.key for attempt in self._held}
            self._complete = {at: each for at, each in self._complete.items() if each.key not in retired}
            return retired

    def _remember(self, sequence: int, attempt: Attempt) -> None:
        with self._lock:
            self._complete[sequence] = attempt
            for old in sorted(self._complete)[:-_REMEMBERED]:
                del self._complete[old]
