"""Decides which steps are removed from the levels, and when, and keeps those that background threads still need.

Rank 0 removes old steps of the persistent level on a thread of their own: a file system may take seconds to remove one,
and the next step's part is written meanwhile. A checkpoint counts as in flight until the steps that it replaces are
removed, so the number of steps still to be removed is bounded.

Invariants
----------
* A session removes only directories with its own name, and those that existed when it started: a step that another
  session writes later is never a candidate, however late this session acts.
* Nothing is removed at a level before a newer step is committed there, and nothing is removed from the persistent level
  by a session from which another has taken over the directory.
* Nothing is removed from the persistent level unless every manifest there could be read, and no part to which one of
  them refers. Manifests are removed first, durably; parts when no remaining manifest needs them. A part that is being
  written refers to parts of the newest complete step or their bases, which stay.
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

from deeppart.errors import BackgroundFailureWarning, DeeppartWarning, KeepNotice, StorageError, lacks_space
from deeppart.model import REDUNDANT_LEVELS, Attempt, Level, StepKey
from deeppart.save.job import Job
from deeppart.save.keeping import Keeping
from deeppart.storage import DirectoryOwner, NeededParts, NodeLevel, PersistentLevel

#: Complete checkpoints that are remembered: ranks learn of the completion at different times.
_REMEMBERED = 3
#: Sequence number of the checkpoint of an earlier run from which this run was restored.
_RESTORED = -1


class Retention:
    """Keeps track of the steps of all levels, for the background threads of a rank."""

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
        self._lock = threading.Lock()  # guards the five attributes above
        # A file system may take seconds to remove a step: retiring files on nodes does not wait for that.
        self._removing = threading.Lock()  # guards _removed_count, _keeping and _needed; taken before _lock
        self._removed_count = 0
        self._keeping, self._needed = None, None
        if persistent is not None:
            what = (keep[Level.PERSISTENT], earlier[Level.PERSISTENT], persistent.signing)
            self._keeping, self._needed = Keeping(persistent.store, *what), NeededParts(persistent.store)

    def went_on(self) -> None:
        """A step was restored, from which this session continues."""
        with self._removing:
            if self._keeping is not None:
                self._keeping.went_on()

    def adopt(self, key: StepKey) -> None:
        """Files of an earlier run's step were restored on nodes; they are retired when a newer step is committed."""
        with self._lock:
            for level, keys in self._leftovers.items():
                keys.add(key)
                self._failed[level].discard(key)

    def abandon(self, level: str, key: StepKey, *, in_doubt: bool = False) -> None:
        """A step failed at a level: its files go with the next commit of any level; persistent ones with one there."""
        with self._lock:
            if level == Level.PERSISTENT:  # where the manifest decides
                self._abandoned.add(key)
            else:
                (self._in_doubt if in_doubt else self._failed)[level].add(key)

    def committed(self, level: str, key: StepKey, retire: Callable[[set[StepKey]], set[StepKey]]) -> None:
        """A step is complete at a level: retire the steps on nodes that exceed ``keep``.

        On the persistent level :meth:`remove_old` must follow, on the rank for which :attr:`removes` is true.
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
        """How many steps this session has removed from the persistent level, in full or in part."""
        return self._removed_count

    def remove_old(self, newest: StepKey) -> list[str]:
        """A step is committed: remove the steps that exceed ``keep`` from the persistent level."""
        persistent, keeping, needed = self._persistent, self._keeping, self._needed
        if persistent is None or keeping is None or needed is None:
            return []
        with self._removing:
            keeping.committed(newest)
            with self._lock:
                abandoned = set(self._abandoned)
            dropped = keeping.removable(abandoned)
            if dropped:
                needed.look()
            refusals: list[StorageError] = []
            rest = sorted(dropped)
            for _ in range(2):  # a part may be needed by a step that is removed later
                rest = [key for key in rest if not self._removed(persistent, keeping, needed, key, refusals)]
            if refusals:
                raise refusals[0]
            return keeping.take_notices()

    def _removed(
        self,
        persistent: PersistentLevel,
        keeping: Keeping,
        needed: NeededParts,
        key: StepKey,
        refusals: list[StorageError],
    ) -> bool:
        """Remove a step; false if parts are left that other steps need. A refusal is recorded, and others are still
        removed.
        """
        if self._owner is not None:
            self._owner.check()  # each time: another job may take over the directory during a long removal
        keeping.leaves(key)
        try:
            if not persistent.remove(key, needed):
                return False
        except StorageError as error:  # it stays recorded: its manifest may have been removed already
            refusals.append(error)
            return True
        finally:
            self._removed_count += 1  # a refused removal may have freed space
        keeping.forget(key)
        with self._lock:
            self._abandoned.discard(key)
        return True

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


class Removals:
    """The removals in progress, and whether they have ended. Thread-safe."""

    def __init__(self, retention: Retention, call_notes: CallNotes, patience_s: float) -> None:
        self._retention, self._call_notes, self._patience_s = retention, call_notes, patience_s
        self._changed = threading.Condition()
        self._under_way = self._elsewhere = 0  # guarded by the condition

    @property
    def here(self) -> bool:
        """True on the rank that removes steps."""
        return self._retention.removes

    @property
    def under_way(self) -> bool:
        """True if any removal has not ended."""
        return bool(self._under_way)

    def expect(self) -> None:
        """A step is committed: on the rank that removes, :meth:`remove` will be called."""
        with self._changed:
            if self.here:
                self._under_way += 1
            else:
                self._elsewhere += 1

    def remove(self, job: Job) -> None:
        """Remove the steps that exceed ``keep`` after a commit. Raises nothing: a refusal is reported."""
        try:
            report_refusals(
                job, Level.PERSISTENT, self._call_notes, lambda: self._retention.remove_old(job.attempt.key)
            )
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def removed_count(self) -> int:
        """How many steps this rank has removed."""
        return self._retention.removed_count

    def made_room(self, error: StorageError, before: int) -> bool:
        """After an error: if there is no space, wait for removals; true if they have freed some."""
        if not lacks_space(error):
            return False
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way, self._patience_s)
            return self._retention.removed_count > before or bool(self._elsewhere)


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
