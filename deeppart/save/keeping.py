"""Decides which committed steps of the persistent level count for ``keep``, and which may be removed.

Invariants
----------
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

from collections.abc import Collection

from deeppart.errors import StorageError
from deeppart.model import StepKey
from deeppart.part import Signing
from deeppart.storage import (
    MANIFEST_NAME,
    Store,
    StoredStep,
    committed_steps,
    list_steps,
    read_step,
    step_name,
)


class Keeping:
    """Counts the committed steps of a store, for the session that owns it."""

    def __init__(self, store: Store, keep: int, earlier: Collection[StepKey], signing: Signing | None = None) -> None:
        self._store, self._keep, self._signing = store, keep, signing
        self._earlier = set(earlier)
        self._own: list[StepKey] = []
        self._leaving: set[StepKey] = set()
        self._reported: set[StepKey] = set()
        self._notices: list[str] = []
        self._goes_on = False

    def went_on(self) -> None:
        """This session has restored a step, so it decides which steps are newest."""
        self._goes_on = True

    def committed(self, key: StepKey) -> None:
        """This session has committed a step, which all its ranks have just written and checked."""
        self._own.append(key)

    def removable(self, abandoned: Collection[StepKey]) -> set[StepKey]:
        """The steps that may be removed now that a newer step is committed."""
        listed = list_steps(self._store)
        present = set(committed_steps(self._store, listed))
        # A refused removal has removed the manifest, as has one that left parts for other steps.
        unseen = (self._earlier | set(abandoned) | self._leaving) - present
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

    def take_notices(self) -> list[str]:
        """Warnings about steps that do not count; each is returned once."""
        notices, self._notices = self._notices, []
        return notices

    def leaves(self, key: StepKey) -> None:
        """A step's manifest is about to be removed."""
        self._leaving.add(key)

    def forget(self, key: StepKey) -> None:
        """A step has been removed."""
        self._earlier.discard(key)
        self._leaving.discard(key)
        self._own = [each for each in self._own if each != key]

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
        found = [read_step(self._store, key, self._signing) for key in self._earlier & present]
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
