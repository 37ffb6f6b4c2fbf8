"""Removes steps: evaluates a selection, and carries it out. The last complete checkpoint is never removed.

Anyone who can write to the directory can create a step that is newer than all others. So if any step is signed, only
signed steps count as complete: with a key those signed with it, without a key those that claim to be signed. Others are
treated like steps whose manifest cannot be read: ``keep`` leaves them, but they can be removed by number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from deeppart import access
from deeppart.errors import CheckpointError, StorageError
from deeppart.model import StepKey
from deeppart.offline.inspect.listing import (
    COMPLETE,
    PersistentStep,
    examine,
    name_ranks,
    require_directory,
    step_names,
)
from deeppart.offline.inspect.node_files import lineage_of
from deeppart.part import Signing, step_name
from deeppart.storage import (
    NODE_FOLDERS,
    NeededParts,
    Owner,
    PersistentLevel,
    PosixStore,
    list_steps,
    read_owner,
    remove_step,
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The selection of steps to remove.

    Attributes:
        keep: committed steps other than the ``keep`` complete ones committed last, and no step committed after these.
        after, before: only committed steps with greater, or smaller, numbers.
        incomplete: also every step that was never committed.
        allow_empty: even if no complete checkpoint is left.
    """

    keep: int | None = None
    after: int | None = None
    before: int | None = None
    incomplete: bool = False
    allow_empty: bool = False

    @property
    def wants_committed(self) -> bool:
        """True if it can select committed steps."""
        return self.keep is not None or self.after is not None or self.before is not None

    def has_number(self, step: int) -> bool:
        """True if a step number is between ``after`` and ``before``."""
        return (self.after is None or step > self.after) and (self.before is None or step < self.before)


@dataclass(frozen=True, slots=True)
class Removal:
    """One step to remove. Fields: docs/commands.md, prune."""

    columns: ClassVar = {"step": "name", "size": "nbytes", "state": "state_text", "directories": "directories"}

    key: StepKey
    state: str | None
    nbytes: int
    directories: tuple[Path, ...]
    name: str = field(default="", metadata={"json": False})

    @property
    def state_text(self) -> str:
        """The state as text."""
        return self.state or "local only"


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """The plan for a selection, and its result. Fields: docs/commands.md, prune."""

    directory: Path
    owner: Owner | None = field(compare=False)
    remove: tuple[Removal, ...]
    kept: tuple[StepKey, ...]
    signed: tuple[int, ...] = ()
    signatures_checked: bool = False
    problems: tuple[str, ...] = ()
    dry_run: bool = False
    removed: tuple[StepKey, ...] = ()
    failed: dict[StepKey, str] = field(default_factory=dict)
    left: tuple[Path, ...] = ()

    @property
    def good(self) -> bool:
        """True if everything could be removed."""
        return not self.failed

    @property
    def names(self) -> dict[StepKey, str]:
        """Key -> name of all steps concerned."""
        return step_names([*(removal.key for removal in self.remove), *self.kept])

    @property
    def nbytes(self) -> int:
        """Bytes that are freed on the persistent level."""
        return sum(removal.nbytes for removal in self.remove)


def plan_prune(
    root: Path, selection: Selection, local_dirs: Sequence[Path] = (), signing: Signing | None = None
) -> PrunePlan:
    """Evaluate a selection for a directory; changes nothing."""
    require_directory(root)
    steps = examine(PosixStore(root), signing)
    uncounted = _uncounted(root, steps)
    counted = {entry.key for entry in steps if entry.state == COMPLETE} - uncounted.keys()
    chosen = {entry.key: entry for entry in _choose(root, steps, selection, counted, uncounted)}
    stay = [entry for entry in steps if entry.key not in chosen]
    # With a wrong key, no step counts as complete: steps that are refused for that reason must not be removed silently.
    lost = [entry.step for entry in chosen.values() if entry.state == COMPLETE or entry.refused]
    if lost and not any(entry.key in counted for entry in stay) and not selection.allow_empty:
        raise _refusal(root, lost, uncounted)
    places = {key: [root / step_name(key)] for key in chosen}
    for key, found in _local_steps(root, local_dirs).items():
        if _goes_too(key, selection, chosen.values(), stay):
            places.setdefault(key, []).extend(found)
    removals, kept = [], tuple(entry.key for entry in stay)
    names = step_names([*places, *kept])
    for key in sorted(places):
        entry = chosen.get(key)
        state, nbytes = (entry.state, entry.nbytes - _needed_bytes(entry, stay)) if entry else (None, 0)
        removals.append(Removal(key, state, nbytes, tuple(places[key]), names[key]))
    signed = tuple(entry.step for entry in steps if entry.manifest is not None and entry.manifest.signed)
    checked, problems = signing is not None, tuple(_lines(uncounted))
    return PrunePlan(root, read_owner(root), tuple(removals), kept, signed, checked, problems)


def _needed_bytes(entry: PersistentStep, stay: Iterable[PersistentStep]) -> int:
    """Bytes of a step's parts that stay because remaining steps refer to them."""
    if entry.manifest is None:
        return 0
    needed = {each for other in stay if other.manifest is not None for each in other.manifest.needed_parts}
    return sum(part.nbytes for part in entry.manifest.parts if (entry.key, part.rank) in needed)


def _refusal(root: Path, lost: Sequence[int], uncounted: Mapping[StepKey, str]) -> CheckpointError:
    what = "complete checkpoint that is signed" if uncounted else "complete checkpoint"
    return CheckpointError(
        f"that would leave no {what}; nothing was removed"
        if uncounted
        else f"that would remove the last {what}; nothing was removed",
        expected=f"at least one {what} to stay",
        found="; ".join([f"selected: {', '.join(map(str, lost))}", *_lines(uncounted)]),
        where=str(root),
        todo="select less, or use --allow-empty",
    )


def _uncounted(root: Path, steps: Sequence[PersistentStep]) -> dict[StepKey, str]:
    """Steps that may be forged, or that this user's job would not use -> why they do not count as complete."""
    found = {entry.key: entry.reasons[0] for entry in steps if entry.refused}
    manifests = [(entry.key, entry.manifest) for entry in steps if entry.manifest is not None]
    if any(manifest.signed for _, manifest in manifests):
        found |= {key: "not signed, as others are" for key, manifest in manifests if not manifest.signed}
    return found


def _lines(uncounted: Mapping[StepKey, str]) -> list[str]:
    """One line for each reason."""
    steps: dict[str, list[int]] = {}
    for key, reason in uncounted.items():
        steps.setdefault(reason, []).append(key.step)
    return [
        f"step {name_ranks(found)} does not count as complete: {reason}"
        if len(set(found)) == 1
        else f"steps {name_ranks(found)} do not count as complete: {reason}"
        for reason, found in steps.items()
    ]


def _goes_too(
    key: StepKey, selection: Selection, chosen: Iterable[PersistentStep], stay: Iterable[PersistentStep]
) -> bool:
    """True if a step on node-local storage is removed: together with committed steps of its number, unless the same
    attempt stays.
    """
    if any(entry.is_committed and entry.key == key for entry in stay):
        return False
    of_step = [entry for entry in chosen if entry.step == key.step]
    if of_step:
        return any(entry.is_committed for entry in of_step)
    ranged = selection.after is not None or selection.before is not None
    return selection.keep is None and ranged and selection.has_number(key.step)


def prune(plan: PrunePlan) -> PrunePlan:
    """Carry out a plan, newest steps first, and continue after errors.

    Hold the directory (:func:`deeppart.storage.hold_directory`) from the planning until this returns.
    """
    removed: list[StepKey] = []
    failed: dict[StepKey, str] = {}
    left: list[Path] = []
    persistent = PersistentLevel(PosixStore(plan.directory))
    needed = NeededParts(persistent.store)
    if plan.remove:
        needed.look()
    referred_to = needed.steps

    def is_gone(directory: Path, key: StepKey) -> bool:
        try:
            if directory.parent == plan.directory:
                return persistent.remove(key, needed)
            return remove_step(PosixStore(directory.parent), key)
        except StorageError as error:
            failed[key] = f"{error.summary}: {error.found}: {error.where}"
            return False

    # Newest first: if interrupted, a restore continues from an older step, as wanted; and no step refers to a newer
    # one.
    for removal in reversed(plan.remove):
        for directory in removal.directories:
            if is_gone(directory, removal.key) and access.exists(directory):
                left.append(directory)
        if removal.key not in failed:
            removed.append(removal.key)
    # Parts that were kept for steps that no longer exist.
    for key in (referred_to | {removal.key for removal in plan.remove}) - needed.committed:
        is_gone(plan.directory / step_name(key), key)
    return replace(plan, removed=tuple(sorted(removed)), failed=dict(sorted(failed.items())), left=tuple(sorted(left)))


def _choose(
    root: Path,
    steps: Sequence[PersistentStep],
    selection: Selection,
    counted: Collection[StepKey],
    uncounted: Collection[StepKey],
) -> list[PersistentStep]:
    chosen = [entry for entry in steps if selection.incomplete and not entry.is_committed]
    if not selection.wants_committed:
        return chosen
    committed = [entry for entry in steps if entry.is_committed and selection.has_number(entry.step)]
    if selection.keep is not None:
        # Steps without a readable manifest have no time of commit, so they stay. So do steps whose manifest may be
        # forged.
        trusted = [entry for entry in steps if entry.key not in uncounted]
        older = _older_than_kept(trusted, counted, selection.keep)
        committed = [entry for entry in committed if entry.key in older]
    return chosen + committed


def _older_than_kept(steps: Sequence[PersistentStep], counted: Collection[StepKey], keep: int) -> set[StepKey]:
    """The steps that were committed before the ``keep`` complete ones committed last, in the order of
    ``Config.keep``.
    """
    found = [entry.stored for entry in steps if entry.manifest is not None]
    older: set[StepKey] = set()
    numbers: set[int] = set()
    above: set[StepKey] = set()
    for each in sorted(found, key=lambda each: each.order_of_commit, reverse=True):
        key = each.key
        if len(numbers) == keep or (key in counted and key.step in numbers):
            older.add(key)
        elif key in counted:
            numbers.add(key.step)
            above.clear()
        else:
            above.add(key)
    return older | above if numbers else set()


def _local_steps(root: Path, local_dirs: Sequence[Path]) -> dict[StepKey, list[Path]]:
    """Step -> its directories on node-local storage."""
    found: dict[StepKey, list[Path]] = {}
    if not local_dirs:
        return found
    lineage = lineage_of(root)
    for directory in local_dirs:
        for level in NODE_FOLDERS:
            root_there = directory / lineage / NODE_FOLDERS[level]
            for key in list_steps(PosixStore(root_there)):
                found.setdefault(key, []).append(root_there / step_name(key))
    return found
