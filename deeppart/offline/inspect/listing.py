"""Lists the steps in a checkpoint directory and on given node-local directories: complete, or the reason why not.

Cheap: reads manifests, and lengths, headers, footers and indexes of parts, but no chunks. "Complete" means that every
part exists and is the one in the manifest, and so are the earlier parts to which it refers.
:mod:`deeppart.offline.inspect.verifying` checks the bytes.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from deeppart.access import storage_error
from deeppart.errors import FormatError, RestoreError, SignatureError, StorageError
from deeppart.mistaken_paths import no_such_directory, recognize
from deeppart.model import LEVELS, Attempt, Level, Manifest, StepKey, SuspectLeaf
from deeppart.offline.inspect.node_files import look_at_nodes
from deeppart.part import Signing, parse_part_file_name, step_name
from deeppart.plan.restart import FilesByAttempt
from deeppart.storage import (
    MOST_LOOKS,
    NODE_FOLDERS,
    NodeContents,
    Owner,
    PosixStore,
    StepState,
    Store,
    StoredStep,
    Suspicions,
    read_lineage,
    read_owner,
    read_steps,
)

#: State of a step that is incomplete on the persistent level, but complete together with the node-local directories.
RECOVERABLE = "recoverable"


@dataclass(frozen=True, slots=True)
class StepLocation:
    """A directory in which parts of a step were found. Fields: docs/commands.md, ls."""

    level: str
    directory: str
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One line of ``deeppart ls``: one attempt at one step. Fields: docs/commands.md, ls."""

    json_also: ClassVar = ("step", "is_restorable")
    columns: ClassVar = {
        "step": "name",
        "ranks": "ranks",
        "size": "nbytes",
        "raw": "raw_bytes",
        "created (UTC)": "created",
        "parts at": "levels",
        "state": "state_text",
    }

    key: StepKey
    state: str
    reasons: tuple[str, ...]
    attempt: Attempt | None
    created: str | None
    library: str | None
    nbytes: int
    raw_bytes: int | None
    referenced_bytes: int | None
    places: tuple[StepLocation, ...]
    suspect: tuple[SuspectLeaf, ...] = ()
    name: str = field(default="", metadata={"json": False})

    @property
    def step(self) -> int:
        """Number of the step."""
        return self.key.step

    @property
    def ranks(self) -> int | None:
        """Number of ranks that saved it."""
        return self.attempt.world_size if self.attempt else None

    @property
    def levels(self) -> str:
        """``local 2/4, partner 2/4, persistent``."""
        texts = []
        for level in LEVELS:
            if found := len({rank for place in self.places if place.level == level for rank in place.parts}):
                expected = self.ranks if level != Level.PERSISTENT or self.created else None
                texts.append(level if found == expected else f"{level} {found}/{expected or '?'}")
        return ", ".join(texts)

    @property
    def state_text(self) -> str:
        """The state, and why it is not complete."""
        reasons = f": {_some(self.reasons)}" if self.reasons else ""
        suspect = f"; suspect: {_some([leaf.path for leaf in self.suspect])}" if self.suspect else ""
        return f"{self.state}{reasons}{suspect}"

    @property
    def is_restorable(self) -> bool:
        """True if every part is at some level."""
        return self.state in (COMPLETE, RECOVERABLE)


def _some(texts: Sequence[str], most: int = 3) -> str:
    return "; ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


@dataclass(frozen=True, slots=True)
class Listing:
    """The steps of a directory. Fields: docs/commands.md, ls. Of several attempts at one step, the one that a restore
    would prefer comes last.
    """

    directory: Path
    lineage: str | None
    owner: Owner | None
    steps: tuple[StepSummary, ...]
    problems: tuple[str, ...]
    local_dirs: tuple[Path, ...] = field(default=(), metadata={"json": False})

    @property
    def good(self) -> bool:
        """True if there is a step that can be restored."""
        return any(step.is_restorable for step in self.steps)

    @property
    def may_be_on_nodes(self) -> bool:
        """True if there may be a newer step on nodes, because there is no step, or the newest one is not complete.

        If the newest step is complete, it is unknown whether the job has a ``local_dir`` at all.
        """
        if self.local_dirs:
            return False
        return not self.steps or self.steps[-1].state in (StepState.UNFINISHED, StepState.DAMAGED)


def list_directory(root: Path, local_dirs: Sequence[Path] = (), signing: Signing | None = None) -> Listing:
    """List the steps of a persistent directory and of its node-local directories."""
    require_directory(root)
    lineage, stocks, problems = None, list[tuple[Path, NodeContents]](), list[str]()
    try:
        lineage = read_lineage(root)
        stocks += look_at_nodes(root, local_dirs, signing)
    except (FormatError, StorageError) as error:
        problems.append(error.summary)
    problems += [line for _, found in stocks for line in found.lines()]
    store = PosixStore(root)
    entries = examine(store, signing)
    local = _OnNodes(stocks, (entry.stored for entry in entries if entry.manifest is not None))
    attempts = {entry.key: _attempt_of(entry, local) for entry in entries}
    alone = [attempt for attempt in local.attempts if attempt not in attempts.values()]
    # Parts of different attempts are never combined.
    steps = [_summary(root, each.key, each, None, local) for each in sorted(alone, key=lambda each: each.sequence)]
    steps += [_summary(root, entry.key, attempts[entry.key], entry, local) for entry in entries]
    steps.sort(key=lambda each: each.step)  # stable: of one step, attempts that are only on nodes stay first
    suspicions = Suspicions.read(store)
    problems += suspicions.problems
    names = step_names(step.key for step in steps)
    steps = [
        replace(
            each,
            name=names[each.key],
            suspect=suspicions.of(each.attempt) if each.attempt else (),
        )
        for each in steps
    ]
    return Listing(root, lineage, read_owner(root), tuple(steps), tuple(problems), tuple(local_dirs))


def require_directory(root: Path) -> None:
    """Raise if a path is not a checkpoint directory (which may be empty), and say what it is instead."""
    try:
        root.stat()
    except FileNotFoundError as error:
        raise no_such_directory(root) from error
    except OSError as error:
        raise storage_error("cannot read a checkpoint directory", error, root) from error
    mistaken = recognize(root)
    if mistaken is not None and not (root.is_dir() and not any(root.iterdir())):
        raise RestoreError(mistaken.what, where=str(root.absolute()), todo=mistaken.todo)


class _OnNodes:
    """The files of all node-local directories together; each directory counts as a node."""

    def __init__(self, stocks: Sequence[tuple[Path, NodeContents]], committed: Iterable[StoredStep]) -> None:
        self._stocks = stocks
        self._files = FilesByAttempt(
            NodeContents.inventory([found for _, found in stocks], committed if stocks else ())
        )
        self.attempts = [attempt for attempt in self._files.attempts() if self._files.known_parts(attempt)]

    def lacks_nearly_all(self, attempt: Attempt) -> bool:
        """True if so many parts are on no node that looking for each of them is useless."""
        return self._files.is_hopeless(attempt)

    def look(self, attempt: Attempt) -> tuple[set[int], list[StepLocation]]:
        """The recoverable parts; and the parts at each level in each directory that nothing contradicts (for parity,
        the owners of shares).
        """
        few = self.lacks_nearly_all(attempt)
        findings = [] if few or attempt not in self.attempts else self._files.findings(attempt)
        good = {(source.readers[0], source.path) for finding in findings for source in finding.sources}
        usable = {
            part
            for part, finding in enumerate(findings)
            if any(source.level != Level.PERSISTENT for source in finding.sources)
        }
        places: dict[tuple[str, int], set[int]] = {}
        for node, (_, found) in enumerate(self._stocks):
            for part in found.parts:
                if part.attempt == attempt and (few or (node, part.path) in good):
                    places.setdefault((part.level, node), set()).add(part.rank)
            for identity in (each.identity for each in found.parity if each.identity.attempt == attempt):
                own = identity.members[identity.place].part
                if own is not None:
                    places.setdefault((Level.PARITY, node), set()).add(own)
        order = list(NODE_FOLDERS)
        return usable, [
            StepLocation(level, str(self._stocks[node][0]), tuple(sorted(parts)))
            for (level, node), parts in sorted(places.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
        ]

    def nbytes(self, attempt: Attempt) -> int:
        """Bytes of all parts, each counted once."""
        each = {part.rank: part.nbytes for _, found in self._stocks for part in found.parts if part.attempt == attempt}
        return sum(each.values())


def _attempt_of(entry: PersistentStep, local: _OnNodes) -> Attempt | None:
    """The attempt of a step; for an unfinished one, which cannot be restored, the same attempt on nodes."""
    if entry.manifest is not None or entry.state != StepState.UNFINISHED:
        return None if entry.manifest is None else entry.manifest.attempt
    return next((each for each in local.attempts if each.key == entry.key), None)


def _summary(
    root: Path, key: StepKey, attempt: Attempt | None, persistent: PersistentStep | None, local: _OnNodes
) -> StepSummary:
    manifest = persistent.manifest if persistent else None
    places = [StepLocation(Level.PERSISTENT, str(root), persistent.parts)] if persistent and persistent.parts else []
    state = persistent.state if persistent else StepState.UNFINISHED
    reasons = persistent.reasons if persistent else ("not on the persistent level",)
    if attempt is not None:
        here, on_nodes = local.look(attempt)
        places += on_nodes
        if state in (StepState.UNFINISHED, StepState.DAMAGED):
            few = local.lacks_nearly_all(attempt) and manifest is None
            usable = here | set(persistent.parts if persistent and manifest else ())
            lacking = [] if few else sorted(set(range(attempt.world_size)) - usable)
            state = state if lacking or few else RECOVERABLE
            if on_nodes and (lacking or few):
                reasons = (*reasons, f"found nowhere: {'most parts' if few else f'part {name_ranks(lacking)}'}")
    on_nodes_bytes = local.nbytes(attempt) if attempt is not None else 0
    return StepSummary(
        key=attempt.key if attempt is not None else key,
        state=state,
        reasons=reasons,
        attempt=attempt,
        created=manifest.created if manifest else None,
        library=manifest.library if manifest else None,
        nbytes=manifest.nbytes if manifest else max(on_nodes_bytes, persistent.nbytes if persistent else 0),
        raw_bytes=sum(part.raw_bytes for part in manifest.parts) if manifest else None,
        referenced_bytes=manifest.referenced_bytes if manifest else None,
        places=tuple(places),
    )


def step_names(keys: Iterable[StepKey]) -> dict[StepKey, str]:
    """``100``; ``100 (session 3f2a..., 7)`` for each of several attempts at one step."""
    listed = list(keys)
    several = {step for step, number in Counter(key.step for key in listed).items() if number > 1}
    return {key: name_step(key) if key.step in several else str(key.step) for key in listed}


def name_step(key: StepKey) -> str:
    """Step, first digits of the session, and sequence."""
    return f"{key.step} (session {key.session[:8]}..., {key.sequence})"


def name_ranks(ranks: Iterable[int]) -> str:
    """Ranks as at most eight ranges: ``0-3, 7``."""
    ranges: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if ranges and ranges[-1][1] == rank - 1:
            ranges[-1] = (ranges[-1][0], rank)
        else:
            ranges.append((rank, rank))
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return ", ".join(texts[:8]) + (", ..." if len(texts) > 8 else "")


#: State of a step all of whose parts are on the persistent level.
COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class PersistentStep:
    """A step on the persistent level, all of whose parts were examined.

    Attributes:
        stored: its manifest, or the reason why there is none.
        state: COMPLETE, or a StepState: UNFINISHED, NEWER, or DAMAGED (the manifest, or a part that is missing or not
            the one in the manifest).
        reasons: why it is not complete.
        parts: ranks with the right part; without a sound manifest, ranks with any part file.
        nbytes: length of all part files in its directory.
    """

    stored: StoredStep
    state: str
    reasons: tuple[str, ...]
    parts: tuple[int, ...]
    nbytes: int

    @property
    def key(self) -> StepKey:
        """The key, from the name of its directory."""
        return self.stored.key

    @property
    def step(self) -> int:
        """Number of the step."""
        return self.key.step

    @property
    def manifest(self) -> Manifest | None:
        """The manifest; None if it is not sound."""
        return self.stored.manifest if self.stored.error is None else None

    @property
    def is_committed(self) -> bool:
        """True if it has a manifest, sound or not."""
        return self.state != StepState.UNFINISHED

    @property
    def refused(self) -> bool:
        """True if the only problem of the manifest is that it is not signed with one of the keys."""
        return isinstance(self.stored.error, SignatureError)


def examine(store: Store, signing: Signing | None = None) -> list[PersistentStep]:
    """Examine every step of a persistent directory in ascending order, without steps that are retired in the meantime,
    and without removed steps of which only parts remain to which later steps refer.
    """
    for _ in range(MOST_LOOKS):
        steps = read_steps(store, signing)
        looked = [_examine(each) for each in (*steps.committed, *steps.others)]
        if None not in looked:  # otherwise read again: the job has committed newer steps
            break
    return sorted((entry for entry in looked if entry is not None), key=_order)


def _order(entry: PersistentStep) -> tuple[int, bool, str, int]:
    """Sort key: step, then unfinished attempts, then others by the time of the commit."""
    return (entry.step, entry.is_committed, entry.manifest.created if entry.manifest else "", entry.key.sequence)


def _examine(step: StoredStep) -> PersistentStep | None:
    """Examine every part; None if the step is retired in the meantime."""
    ranks, nbytes = _part_files(step)
    if step.error is not None:
        whole = f"manifest: {step.reason}" if step.state == StepState.DAMAGED else step.error.summary
        return PersistentStep(step, step.state, (whole,), ranks, nbytes)
    problems = {rank: step.part_problem(rank) for rank in range(len(step.manifest.parts))}
    reasons = tuple(f"part {rank} {problem}" for rank, problem in problems.items() if problem is not None)
    if reasons and step.is_retired():
        return None
    parts = tuple(rank for rank, problem in problems.items() if problem is None)
    return PersistentStep(step, StepState.DAMAGED if reasons else COMPLETE, reasons, parts, nbytes)


def _part_files(step: StoredStep) -> tuple[tuple[int, ...], int]:
    """(ranks, bytes) of the existing part files, whatever their content."""
    place, found = step_name(step.key), dict[int, int]()
    try:
        names = step.store.list(place)
    except StorageError:
        return (), 0
    for name in names:
        if (parsed := parse_part_file_name(name)) is not None:
            with contextlib.suppress(StorageError, FormatError):
                if (stat := step.store.stat(f"{place}/{name}")) is not None:
                    found[parsed[0]] = stat.nbytes
    return tuple(sorted(found)), sum(found.values())
