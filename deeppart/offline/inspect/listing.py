"""The steps in a checkpoint directory and, if asked, on node-local storage, complete or with the reason why not.

Cheap: manifests, and the lengths, headers, footers and indexes of parts are read; no chunk is. "Complete" means that
every part is there and is the one that the manifest names, and so are the older files that it refers to. That the bytes
are sound is for :mod:`deeppart.offline.inspect.verifying` to find.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deeppart import access
from deeppart.access import storage_error
from deeppart.errors import FormatError, NewerFormatError, RestoreError, SignatureError, StorageError
from deeppart.model import Attempt, Level, Manifest, StepKey, SuspectLeaf
from deeppart.offline.inspect.node_files import stock_of
from deeppart.offline.inspect.ownership import Owner, read_owner
from deeppart.part import FileSource, SectionPath, Signing, parse_node_file_name, parse_part_file_name, read_table
from deeppart.plan.restart import FilesByAttempt, Inventory, Source
from deeppart.storage.lineage import is_copy, read_lineage
from deeppart.storage.manifests import UNFINISHED, file_length, part_problem, read_manifest
from deeppart.storage.mistaken_paths import no_such_directory, recognize
from deeppart.storage.node import NODE_FOLDERS, NodeContents
from deeppart.storage.records import read_suspicions, reduced_runs
from deeppart.storage.steps import MANIFEST_NAME, MOST_LOOKS, is_gone, list_steps, step_directory, step_is_retired

#: Not complete there, but whole together with the node-local directories that were given.
RECOVERABLE = "recoverable"


@dataclass(frozen=True, slots=True)
class StepLocation:
    """A directory in which parts of a step were found.

    Attributes:
        level: "persistent", "local", "partner" or "parity".
        directory: the directory that was given.
        parts: ranks whose parts, or whose shares of parity, lie there, ascending.
    """

    level: str
    directory: str
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One line of ``deeppart ls``: one attempt at one step.

    Attributes:
        key: which attempt; without its session where nothing tells it.
        state: COMPLETE, RECOVERABLE, UNFINISHED_STATE, DAMAGED or NEWER.
        reasons: the reasons why it is not complete on the persistent level.
        attempt: None where neither a sound manifest nor a node-local part tells.
        created: UTC time of the commit, ISO 8601; None if it was not committed.
        library: name and version of the writer, or None.
        nbytes: length of its part files.
        raw_bytes: length before encoding; None without a sound manifest.
        referenced_bytes: bytes of it that lie in older files beside its own; None without a sound manifest.
        places: the places of its parts.
        reduced: lines about protection that was asked for and could not be given when it was saved.
        suspect: leaves that ranks may not have held alike when it was saved.
    """

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
    reduced: tuple[str, ...] = ()
    suspect: tuple[SuspectLeaf, ...] = ()

    @property
    def step(self) -> int:
        """Its number."""
        return self.key.step

    @property
    def is_restorable(self) -> bool:
        """True if every part is at some level."""
        return self.state in (COMPLETE, RECOVERABLE)

    def found(self, level: str) -> set[int]:
        """Ranks whose parts are at a level."""
        return {rank for place in self.places if place.level == level for rank in place.parts}


@dataclass(frozen=True, slots=True)
class Listing:
    """The steps of a directory.

    Attributes:
        lineage: of the directory, or None where it has no record.
        owner: the job that took the directory last.
        steps: by ascending step; of several attempts at one step, the one that a restore would prefer comes last.
        problems: lines about what could not be looked at.
    """

    lineage: str | None
    owner: Owner | None
    steps: tuple[StepSummary, ...]
    problems: tuple[str, ...]


def list_directory(root: Path, local_dirs: Sequence[Path] = (), signing: Signing | None = None) -> Listing:
    """Look at a persistent directory and at node-local ones that belong to it."""
    require_directory(root)
    lineage, problems = _lineage(root, needed=bool(local_dirs))
    stocks = []
    for directory in local_dirs:
        found = _take_stock(directory, lineage, signing)
        problems += found.problems
        stocks.append((directory, found))
    local = _OnNodes(stocks)
    persistent: dict[int, list[PersistentStep]] = {}
    for entry in examine(root, signing):
        persistent.setdefault(entry.step, []).append(entry)
    steps: list[StepSummary] = []
    for step in sorted(persistent.keys() | {attempt.step for attempt in local.attempts}):
        steps += _summaries(root, step, persistent.get(step, ()), local)
    lines = {run.session: run.lines for run in reduced_runs(root)}
    steps = [replace(each, reduced=lines.get(each.attempt.session, ())) if each.attempt else each for each in steps]
    suspicions = read_suspicions(root)
    problems += suspicions.problems
    steps = [replace(each, suspect=suspicions.of(each.attempt)) if each.attempt else each for each in steps]
    return Listing(lineage, read_owner(root), tuple(steps), tuple(problems))


def require_directory(root: Path) -> None:
    """Refuse what is no directory, and point to the right one where a step's own directory was given."""
    try:
        is_directory = stat.S_ISDIR(root.stat().st_mode)
    except FileNotFoundError as error:
        raise no_such_directory(root) from error
    except OSError as error:
        raise storage_error("cannot read a checkpoint directory", error, root) from error
    if not is_directory:
        raise StorageError("a checkpoint directory was expected", found="a file", where=str(root))
    if (root / MANIFEST_NAME).is_file():
        raise RestoreError(
            "this is the directory of one step",
            where=str(root),
            todo=f"give the directory above it, {root.absolute().parent}, and the step with --step",
        )
    mistaken = recognize(root)
    if mistaken is not None and any(root.iterdir()):
        raise RestoreError(mistaken.what, where=str(root), todo=mistaken.todo)


def _lineage(root: Path, *, needed: bool) -> tuple[str | None, list[str]]:
    try:
        if needed and is_copy(root):
            return None, ["a copy that no job has used yet: what lies on nodes belongs to the original"]
        return read_lineage(root), []
    except (FormatError, StorageError) as error:
        if needed:
            raise
        return None, [error.summary]


def _take_stock(directory: Path, lineage: str | None, signing: Signing | None) -> NodeContents:
    """The files of a lineage under a node-local directory."""
    if lineage is None:
        return NodeContents(
            problems=[f"{directory}: not searched, because DIR has no lineage of its own to match it with"]
        )
    return stock_of(directory, lineage, signing)


class _OnNodes:
    """The files of all node-local directories together; each directory counts as a node."""

    def __init__(self, stocks: Sequence[tuple[Path, NodeContents]]) -> None:
        self._stocks = stocks
        self._files = FilesByAttempt(
            Inventory(
                found=tuple(tuple(found.parts) for _, found in stocks),
                node_of=tuple(range(len(stocks))),
                committed=(),
                parity=tuple(tuple(found.parity) for _, found in stocks),
            )
        )
        self.attempts = self._files.attempts()

    def lacks_nearly_all(self, attempt: Attempt) -> bool:
        """True if so many parts are on no node that it is useless to look for each."""
        return self._files.is_hopeless(attempt)

    def sources(self, attempt: Attempt, digests: Mapping[int, frozenset[str]]) -> dict[int, Source]:
        """part -> where it can be had; only what has the digest that the manifest names, if there is one."""
        found: dict[int, Source] = {}
        for part, finding in enumerate(self._files.findings(attempt) if attempt in self.attempts else ()):
            for source in finding.sources:
                if source.index_digest in digests.get(part, (source.index_digest,)):
                    found.setdefault(part, source)
        return found

    def places(self, attempt: Attempt, digests: Mapping[int, frozenset[str]]) -> list[StepLocation]:
        """The parts at each level and in each directory, and the owners of shares of parity."""
        places = []
        for level in NODE_FOLDERS:
            for directory, found in self._stocks:
                ranks = {
                    part.rank
                    for part in found.parts
                    if (part.level, part.attempt) == (level, attempt)
                    and part.index_digest in digests.get(part.rank, (part.index_digest,))
                }
                if level == Level.PARITY:
                    here = [each.identity for each in found.parity if each.identity.attempt == attempt]
                    own = (identity.members[identity.place].part for identity in here)
                    ranks |= {part for part in own if part is not None}
                if ranks:
                    places.append(StepLocation(level, str(directory), tuple(sorted(ranks))))
        return places

    def nbytes(self, attempt: Attempt) -> int:
        """Length of all parts, each counted once."""
        each = {part.rank: part.nbytes for _, found in self._stocks for part in found.parts if part.attempt == attempt}
        return sum(each.values())


def _summaries(root: Path, step: int, entries: Sequence[PersistentStep], local: _OnNodes) -> list[StepSummary]:
    """One summary per attempt at a step; parts of different attempts never count together."""
    rest = [attempt for attempt in local.attempts if attempt.step == step]
    rest.sort(key=lambda attempt: attempt.sequence)
    summaries: list[StepSummary] = []
    for entry in entries:
        attempt = entry.manifest.attempt if entry.manifest is not None else None
        if attempt is None and entry.state == UNFINISHED_STATE:
            # Its own files cannot be restored from, but those of the same attempt on nodes can. In the older layout,
            # most likely the flush of the newest attempt was cut short.
            attempt = next((each for each in reversed(rest) if entry.key.may_hold(each)), None)
        summaries.append(_summary(root, entry.key, attempt, entry, local))
        rest = [other for other in rest if other != attempt]
    return [*(_summary(root, attempt.key, attempt, None, local) for attempt in rest), *summaries]


def _summary(
    root: Path, key: StepKey, attempt: Attempt | None, persistent: PersistentStep | None, local: _OnNodes
) -> StepSummary:
    manifest = persistent.manifest if persistent else None
    places = [StepLocation(Level.PERSISTENT, str(root), persistent.parts)] if persistent and persistent.parts else []
    state = persistent.state if persistent else UNFINISHED_STATE
    reasons = persistent.reasons if persistent else ("not on the persistent level",)
    digests = {part.rank: part.index_digests for part in manifest.parts} if manifest else {}
    if attempt is not None:
        on_nodes = local.places(attempt, digests)
        places += on_nodes
        if state in (UNFINISHED_STATE, DAMAGED):
            few = local.lacks_nearly_all(attempt) and manifest is None
            usable = set() if few else set(local.sources(attempt, digests))
            usable |= set(persistent.parts if persistent and manifest else ())
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


def name_ranks(ranks: Iterable[int], most: int = 8) -> str:
    """Ranks as ranges: ``0-3, 7``."""
    ranges: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if ranges and ranges[-1][1] == rank - 1:
            ranges[-1] = (ranges[-1][0], rank)
        else:
            ranges.append((rank, rank))
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")


#: Every part that the manifest names is on the persistent level.
COMPLETE = "complete"
#: Never committed: no manifest.
UNFINISHED_STATE = "unfinished"
#: Committed, but the manifest is damaged, or a part is missing or is not the one that it names.
DAMAGED = "damaged"
#: Written by a newer version of the library.
NEWER = "newer"


@dataclass(frozen=True, slots=True)
class PersistentStep:
    """A step directory on the persistent level.

    Attributes:
        key: from its name.
        state: COMPLETE, UNFINISHED_STATE, DAMAGED or NEWER.
        reasons: the reasons why it is not complete.
        manifest: None where there is no sound one.
        parts: ranks whose part is there and is the right one; of an unfinished step, ranks whose file is there.
        nbytes: length of all part files in the directory.
        refused: true if the only fault of the manifest is that it is not signed with one of the keys.
    """

    key: StepKey
    state: str
    reasons: tuple[str, ...]
    manifest: Manifest | None
    parts: tuple[int, ...]
    nbytes: int
    refused: bool = False

    @property
    def step(self) -> int:
        """Its number."""
        return self.key.step

    @property
    def is_committed(self) -> bool:
        """True if it has a manifest, sound or not."""
        return self.state != UNFINISHED_STATE


def examine(root: Path, signing: Signing | None = None) -> list[PersistentStep]:
    """Every step directory of a persistent directory, by ascending step, less what is retired meanwhile."""
    found: dict[StepKey, PersistentStep | None] = {}
    for _ in range(MOST_LOOKS):
        new = list_steps(root).keys() - found.keys()
        looked = {key: examine_step(root, key, signing) for key in sorted(new)}
        found |= looked
        if None not in looked.values():  # otherwise the job has committed newer ones, and there may be no others
            break
    return sorted((entry for entry in found.values() if entry is not None), key=_order)


def _order(entry: PersistentStep) -> tuple[int, bool, str, int]:
    """By step; of several at one step unfinished ones first, then by the time of the commit."""
    return (entry.step, entry.is_committed, entry.manifest.created if entry.manifest else "", entry.key.sequence)


def examine_step(root: Path, key: StepKey, signing: Signing | None = None) -> PersistentStep | None:
    """One step directory: its manifest is read, and every part is looked at (:mod:`deeppart.storage.manifests`)."""
    directory = step_directory(root, key)
    entry = _look_at(root, directory, key, signing)
    if entry.state == UNFINISHED_STATE:
        return None if is_gone(directory) else entry
    return None if entry.state != COMPLETE and step_is_retired(directory) else entry


def _look_at(root: Path, directory: Path, key: StepKey, signing: Signing | None) -> PersistentStep:
    try:
        manifest = read_manifest(root, key, signing)
    except FileNotFoundError:
        ranks, nbytes = _part_files(directory)
        return PersistentStep(key, UNFINISHED_STATE, (UNFINISHED,), None, ranks, nbytes)
    except NewerFormatError as error:
        return PersistentStep(key, NEWER, (error.summary,), None, *_part_files(directory))
    except (FormatError, StorageError) as error:
        reason = f"manifest: {error.summary}" + (f": {error.found}" if error.found else "")
        refused = isinstance(error, SignatureError)
        return PersistentStep(key, DAMAGED, (reason,), None, *_part_files(directory), refused=refused)
    parts, reasons, nbytes = [], [], 0
    for record in manifest.parts:
        problem, length = part_problem(directory, manifest, record, signing)
        nbytes += length
        if problem is None:
            parts.append(record.rank)
        else:
            reasons.append(f"part {record.rank} {problem}")
    return PersistentStep(key, DAMAGED if reasons else COMPLETE, tuple(reasons), manifest, tuple(parts), nbytes)


def _part_files(directory: Path) -> tuple[tuple[int, ...], int]:
    """(ranks, bytes) of the part files, and node files, in a directory without a sound manifest."""
    ranks, nbytes = set(), 0
    try:
        names = access.names_in(directory)
    except OSError:
        return (), 0
    for name in names:
        if (parsed := parse_part_file_name(name)) is not None:
            found, length = file_length(directory / name)
            nbytes += length
            if found is None:
                ranks.add(parsed[0])
        elif (node := parse_node_file_name(name)) is not None:
            ranks |= _sections(directory / name, *node)
            nbytes += file_length(directory / name)[1]
    return tuple(sorted(ranks)), nbytes


def _sections(path: Path, first: int, world_size: int) -> set[int]:
    """Ranks of the sections of a node file; none if it is damaged."""
    try:
        with FileSource(path) as source:
            table = read_table(source, SectionPath(str(path), first, first, world_size))
    except (FormatError, StorageError):
        return set()
    return {section.rank for section in table.sections}
