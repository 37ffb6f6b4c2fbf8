"""Decides which committed steps of the persistent level count for ``keep``, and removes the others.

Rank 0 removes them on a thread of their own: a file system may take seconds to remove one, and the next step's part is
written meanwhile. A checkpoint counts as in flight until the steps that it replaces are removed, so the number of steps
still to be removed is bounded.

Invariants
----------
* Nothing is removed before a newer step is committed, nor by a session from which another has taken over the directory.
* Nothing is removed unless every manifest could be read, and no part to which one of them refers. Manifests are removed
  first, durably; parts when no remaining manifest needs them. A part that is being written refers to parts of the
  newest complete step or their bases, which stay.
* A step may be removed only if this session has written it, or found it at its start: steps that another session
  commits later are never among them.
* The order of steps does not depend on clocks within a session: this session's steps are the newest, in their own
  order. Steps found at the start come before them, in the order of the times in their manifests.
* Only steps that can be restored count, as far as a cheap check can tell. A step that does not count and has a valid
  manifest is removed when it is older than those kept; one with a damaged manifest stays.
* A step is unfinished only if its manifest is known not to exist: if the directory cannot be read, it may be
  unavailable for a moment.
* A step that was committed several times counts once. So a finished job that is started again, and saves its last step
  each time, does not lose its earlier steps.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from functools import partial

from deeppart.errors import StorageError, lacks_space
from deeppart.model import Level, StepKey
from deeppart.part import step_name
from deeppart.save.job import Job
from deeppart.save.retention import CallNotes, report_refusals
from deeppart.storage import (
    MANIFEST_NAME,
    DirectoryOwner,
    NeededParts,
    PersistentLevel,
    StoredStep,
    committed_steps,
    list_steps,
    read_step,
)

#: The part of the timeout for which a rank without space waits for removals, while the other ranks wait for it.
_ROOM_PATIENCE = 0.25


class Keeping:
    """The committed steps of the persistent level, for the session that owns it.

    Attributes:
        is_here: true on rank 0, which removes; the others only know that it does.
        removed_count: how many steps this rank has removed, in full or in part.
    """

    def __init__(
        self,
        persistent: PersistentLevel,
        keep: int,
        earlier: Collection[StepKey],
        owner: DirectoryOwner | None,
        call_notes: CallNotes,
        timeout: float,
    ) -> None:
        self._persistent, self._store, self._keep, self._owner = persistent, persistent.store, keep, owner
        self._call_notes, self._patience_s = call_notes, timeout * _ROOM_PATIENCE
        self.is_here, self.removed_count = owner is not None, 0
        # Used by the thread that removes, alone.
        self._needed = NeededParts(self._store)
        self._earlier = set(earlier)
        self._own: list[StepKey] = []
        self._leaving: set[StepKey] = set()
        self._reported: set[StepKey] = set()
        self._notices: list[str] = []
        self._changed = threading.Condition()  # guards the attributes after it
        self._abandoned: set[StepKey] = set()
        self._under_way = self._elsewhere = 0
        self._goes_on = False

    def went_on(self) -> None:
        """This session has restored a step, so it decides which steps are newest."""
        self._goes_on = True

    def abandon(self, key: StepKey) -> None:
        """A step has failed, or may have: what there is of it goes with the next commit."""
        with self._changed:
            self._abandoned.add(key)

    def expect(self) -> None:
        """A step is committed, which all ranks have just written and checked; rank 0 calls :meth:`remove`."""
        with self._changed:
            if self.is_here:
                self._under_way += 1
            else:
                self._elsewhere += 1

    @property
    def under_way(self) -> bool:
        """True if any removal has not ended."""
        return bool(self._under_way)

    def made_room(self, error: StorageError, before: int) -> bool:
        """After an error: if there is no space, wait for removals; true if they have freed some. ``before``: the
        :attr:`removed_count` then.
        """
        if not lacks_space(error):
            return False
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way, self._patience_s)
            return self.removed_count > before or bool(self._elsewhere)

    def remove(self, job: Job) -> None:
        """Remove the steps that exceed ``keep`` after a commit. Raises nothing: a refusal is reported."""
        try:
            report_refusals(job, Level.PERSISTENT, self._call_notes, partial(self.remove_old, job.attempt.key))
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def remove_old(self, newest: StepKey) -> list[str]:
        """A step is committed: remove those that exceed ``keep``; returns warnings about steps that do not count."""
        self._own.append(newest)
        dropped = self.removable()
        if dropped:
            self._needed.look()
        refusals: list[StorageError] = []
        rest = sorted(dropped)
        for _ in range(2):  # a part may be needed by a step that is removed later
            rest = [key for key in rest if not self._removed(key, refusals)]
        if refusals:
            raise refusals[0]
        notices, self._notices = self._notices, []
        return notices

    def removable(self) -> set[StepKey]:
        """The steps that may be removed now that a newer step is committed."""
        with self._changed:
            abandoned = set(self._abandoned)
        listed = list_steps(self._store)
        present = set(committed_steps(self._store, listed))
        # A refused removal has removed the manifest, as has one that left parts for other steps.
        unseen = (self._earlier | abandoned | self._leaving) - present
        dropped = {key for key in unseen.intersection(listed) if self._is_unfinished(key)}
        if self._keep:
            committed = [key for key in self._own if key in present]
            latest = {key.step: key for key in committed}
            own = [key for key in committed if latest[key.step] == key]
            kept = own[-self._keep :]
            dropped.update(set(committed).difference(kept))
            steps = {key.step for key in kept}
            if len(own) + len(self._earlier & present) > self._keep:
                dropped |= self._removable_of_earlier(present, steps)
            if len(steps) >= self._keep:
                newest = max((key.sequence for key in own), default=-1)
                dropped.update(key for key in present.intersection(abandoned) if key.sequence < newest)
        return dropped

    def _removed(self, key: StepKey, refusals: list[StorageError]) -> bool:
        """Remove a step; false if parts are left that other steps need. A refusal is recorded, and others are still
        removed.
        """
        if self._owner is not None:
            self._owner.check()  # each time: another job may take over the directory during a long removal
        self._leaving.add(key)
        try:
            if not self._persistent.remove(key, self._needed):
                return False
        except StorageError as error:  # it stays recorded: its manifest may have been removed already
            refusals.append(error)
            return True
        finally:
            self.removed_count += 1  # a refused removal may have freed space
        self._earlier.discard(key)
        self._leaving.discard(key)
        self._own = [each for each in self._own if each != key]
        with self._changed:
            self._abandoned.discard(key)
        return True

    def _removable_of_earlier(self, present: set[StepKey], steps: set[int]) -> set[StepKey]:
        """The earlier sessions' steps to remove; ``steps``: newer steps that count, to which kept ones are added."""
        dropped = set()
        own_step = max((key.step for key in self._own), default=-1)
        for each in reversed(self._ranking(present)):
            if not self._goes_on and each.key.step > own_step:
                continue  # the next restore uses it: a job that forgot to restore must not lose it
            if len(steps) >= self._keep or each.key.step in steps:
                dropped.add(each.key)
            elif self._does_count(each):
                steps.add(each.key.step)
        return dropped

    def _ranking(self, present: set[StepKey]) -> list[StoredStep]:
        """The commits of earlier sessions, ordered by time, and by sequence within a session; read again each time."""
        found = [read_step(self._store, key, self._persistent.signing) for key in self._earlier & present]
        # Without a commit time a step is not counted and stays.
        return sorted((each for each in found if each.error is None), key=lambda each: each.order_of_commit)

    def _does_count(self, step: StoredStep) -> bool:
        """Checked again before steps are removed because of it: it may have been damaged since."""
        problem = step.first_problem()
        if problem is not None and step.key not in self._reported:
            self._reported.add(step.key)
            self._notices.append(
                f"step {step.key.step} cannot be restored from {step.where} and does not count for `keep`: {problem}"
            )
        return problem is None

    def _is_unfinished(self, key: StepKey) -> bool:
        """True if a step exists without a manifest; a missing directory may be unavailable as a whole."""
        try:
            return MANIFEST_NAME not in self._store.list(step_name(key))
        except StorageError:
            return False
