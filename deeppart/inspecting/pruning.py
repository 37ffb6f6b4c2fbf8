"""Removing steps: what a selection means, and the removal itself. The last complete checkpoint is never among it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deeppart.errors import CheckpointError, StorageError
from deeppart.inspecting.listing import COMPLETE, PersistentStep, examine, require_directory
from deeppart.inspecting.node_files import lineage_on_nodes
from deeppart.levels.node import NODE_FOLDERS, node_root
from deeppart.levels.steps import list_steps, remove_step, step_directory


@dataclass(frozen=True, slots=True)
class Selection:
    """Which steps to remove.

    Attributes:
        keep: committed steps other than the ``keep`` complete ones committed last, and none committed later than those.
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
        """Whether it can select committed steps at all."""
        return self.keep is not None or self.after is not None or self.before is not None

    def has_number(self, step: int) -> bool:
        """Whether a step number is between ``after`` and ``before``."""
        return (self.after is None or step > self.after) and (self.before is None or step < self.before)


@dataclass(frozen=True, slots=True)
class Removal:
    """One step to remove.

    Attributes:
        step: its number.
        state: as of ``deeppart ls``; None where it is on node-local storage only.
        nbytes: length of its part files on the persistent level.
        directories: what is removed: its directory on the persistent level, and on node-local storage.
    """

    step: int
    state: str | None
    nbytes: int
    directories: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What a selection comes to.

    Attributes:
        remove: by ascending step.
        kept: steps that stay on the persistent level.
    """

    remove: tuple[Removal, ...]
    kept: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that are freed on the persistent level."""
        return sum(removal.nbytes for removal in self.remove)


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What was done.

    Attributes:
        removed: steps that are gone.
        failed: step -> why some of it is still there.
        left: directories that stay because they hold files which are not this library's.
    """

    removed: tuple[int, ...]
    failed: dict[int, str]
    left: tuple[Path, ...]


def plan_prune(root: Path, selection: Selection, local_dirs: Sequence[Path] = ()) -> PrunePlan:
    """Find what a selection means for a directory; changes nothing.

    Args:
        local_dirs: node-local directories, from which the same steps are removed.

    Raises:
        RestoreError: there is no such directory.
        CheckpointError: no complete checkpoint would be left.
        StorageError, FormatError: a directory, or the lineage record that ``local_dirs`` need, cannot be read.
    """
    require_directory(root)
    steps = examine(root)
    chosen = {entry.step: entry for entry in _choose(steps, selection)}
    left = [entry for entry in steps if entry.state == COMPLETE and entry.step not in chosen]
    lost = [entry.step for entry in chosen.values() if entry.state == COMPLETE]
    if lost and not left and not selection.allow_empty:
        raise CheckpointError(
            "that would remove the last complete checkpoint; nothing was removed",
            expected="at least one complete checkpoint to stay",
            found=f"complete: {', '.join(map(str, lost))}, all of them selected",
            where=str(root),
            todo="select less, or use --allow-empty",
        )
    local = _local_steps(root, local_dirs)
    ranged = selection.after is not None or selection.before is not None
    numbers = set(chosen) | {step for step in local if selection.keep is None and ranged and selection.has_number(step)}
    removals = []
    for step in sorted(numbers):
        entry = chosen.get(step)
        places = [step_directory(root, step)] if entry else []
        places += local.get(step, []) if entry is None or entry.is_committed else []
        removals.append(Removal(step, entry.state if entry else None, entry.nbytes if entry else 0, tuple(places)))
    return PrunePlan(tuple(removals), tuple(entry.step for entry in steps if entry.step not in chosen))


def prune(plan: PrunePlan) -> PruneResult:
    """Remove what was planned, newest first; one refusal does not keep the rest from being removed.

    Hold the directory (:func:`deeppart.inspecting.ownership.hold_directory`) from planning to the end of this.
    """
    removed: list[int] = []
    failed: dict[int, str] = {}
    left: list[Path] = []
    # A restore takes the newest: going back that is cut short has gone back some of the way.
    for removal in reversed(plan.remove):
        for directory in removal.directories:
            try:
                remove_step(directory)
            except StorageError as error:
                failed[removal.step] = f"{error.summary}: {error.found}: {error.where}"
                continue
            if directory.exists():
                left.append(directory)
        if removal.step not in failed:
            removed.append(removal.step)
    return PruneResult(tuple(sorted(removed)), dict(sorted(failed.items())), tuple(sorted(left)))


def _choose(steps: Sequence[PersistentStep], selection: Selection) -> list[PersistentStep]:
    chosen = [entry for entry in steps if selection.incomplete and not entry.is_committed]
    if not selection.wants_committed:
        return chosen
    committed = [entry for entry in steps if entry.is_committed and selection.has_number(entry.step)]
    if selection.keep is not None:
        complete = [entry for entry in steps if entry.state == COMPLETE]
        ranking = sorted((_committed_at(entry) for entry in complete), reverse=True)
        # Ones without a readable manifest have no time: whether they are older cannot be told, so they stay.
        oldest_kept = ranking[min(selection.keep, len(ranking)) - 1] if ranking else None
        committed = [
            entry
            for entry in committed
            if entry.manifest is not None and oldest_kept is not None and _committed_at(entry) < oldest_kept
        ]
    return chosen + committed


def _committed_at(entry: PersistentStep) -> tuple[str, int]:
    """The order in which ``Config.keep`` counts."""
    return (entry.manifest.created if entry.manifest else "", entry.step)


def _local_steps(root: Path, local_dirs: Sequence[Path]) -> dict[int, list[Path]]:
    """step -> its directories on node-local storage."""
    found: dict[int, list[Path]] = {}
    if not local_dirs:
        return found
    lineage = lineage_on_nodes(root)
    for directory in local_dirs:
        for level in NODE_FOLDERS:
            for step, place in list_steps(node_root(directory, lineage, level)).items():
                found.setdefault(step, []).append(place)
    return found
