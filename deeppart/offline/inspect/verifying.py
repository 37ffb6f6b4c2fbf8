"""Verifies a checkpoint: reads every byte, checks every digest, and names the leaves that are damaged.

The digests are those of the manifest; of header, footer, index and whole file of each part; and of the encoded and
decoded bytes of each chunk. Verification continues after damage. The leaves of a part with a damaged index are found by
elimination: they are those that no other part has.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from deeppart.errors import DeeppartError, FormatError, NewerFormatError, RestoreError, StorageError
from deeppart.model import Attempt, Box, Manifest, PartRecord, StepKey, SuspectLeaf
from deeppart.offline.find import OpenPart, open_part, structure_of
from deeppart.offline.inspect.listing import name_ranks, require_directory, step_names
from deeppart.offline.inspect.node_files import NodeFiles, look_at_nodes, verify_nodes
from deeppart.part import BadChunks, PartReader, Signing, parse_json, step_name
from deeppart.repair import Repaired, repair_files
from deeppart.state.document import Structure
from deeppart.state.paths import readable
from deeppart.state.pieces import EXTRA, GAP, Fault, Held, own_faults
from deeppart.state.tree import Alias
from deeppart.storage import (
    MANIFEST_NAME,
    Owner,
    PosixStore,
    StepState,
    StoredStep,
    Suspicions,
    hold_directory,
    list_steps,
    read_owner,
    read_steps,
)


def choose_steps(
    root: Path, step: int | None = None, *, every: bool = False, signing: Signing | None = None
) -> list[StoredStep]:
    """The steps to verify: one step (all attempts at it), every step, or by default the newest commit, sound or not."""
    require_directory(root)
    store = PosixStore(root)
    found = read_steps(store, signing)
    steps = sorted((*found.committed, *found.others), key=lambda each: each.key)
    if step is not None:
        steps = [each for each in steps if each.key.step == step]
    elif not every:
        newest = max((each.key.step for each in steps if each.state != StepState.UNFINISHED), default=None)
        steps = [each for each in steps if each.key.step == newest and each.state != StepState.UNFINISHED]
    if steps:
        return steps
    numbers = sorted({key.step for key in list_steps(store)})
    raise RestoreError(
        "there is no committed checkpoint" if step is None else f"there is no step {step}",
        found=f"steps {', '.join(map(str, numbers[-8:]))}" if numbers else "no step directory",
        where=str(root.absolute()),
        todo="`deeppart ls DIR` lists the steps"
        if numbers
        else "give the persistent_dir of a job that has saved a step",
    )


#: Every byte is as it was written. Other states are those of ``deeppart ls``; unfinished and newer steps cannot be
#: checked.
SOUND = "sound"
#: The step was retired or pruned while it was being read.
REMOVED = "removed"

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class DamagedLeaf:
    """Damaged bytes ``[start, stop)`` of a leaf or of a box of it, in C order.

    Attributes:
        path: components joined by ``/``.
        rank: the rank, for a per-rank leaf; None if replicated.
        start, stop: None for small values, and if only the leaf is known: per-rank leaves of a part that cannot be
            read, and leaves that share memory with a damaged one.
        box: the damaged box of a sharded tensor.
    """

    path: str
    rank: int | None
    start: int | None
    stop: int | None
    box: Box | None = None

    @property
    def name(self) -> str:
        """The path, and the rank of a per-rank leaf."""
        return self.path if self.rank is None else f"{self.path} (rank {self.rank})"


@dataclass(frozen=True, slots=True)
class Damage:
    """One damage. Fields: docs/commands.md, verify."""

    kind: str
    message: str
    file: str | None = None
    rank: int | None = None
    start: int | None = None
    stop: int | None = None
    leaves: tuple[DamagedLeaf, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The result of verifying one step. Fields: docs/commands.md, verify."""

    json_also: ClassVar = ("step", "session", "signed", "damaged_leaves")

    key: StepKey
    state: str
    parts: int
    nbytes: int
    raw_bytes: int
    damage: tuple[Damage, ...]
    manifest: Manifest | None = field(default=None, metadata={"json": False})
    seconds: float = 0.0
    suspect: tuple[SuspectLeaf, ...] = ()
    name: str = field(default="", metadata={"json": False})

    @property
    def step(self) -> int:
        """Number of the step."""
        return self.key.step

    @property
    def signed(self) -> bool:
        """Whether its manifest is signed; false if that is unknown."""
        return self.manifest is not None and self.manifest.signed

    @property
    def session(self) -> str:
        """The session of the attempt."""
        return self.key.session

    @property
    def damaged_leaves(self) -> tuple[str, ...]:
        """Distinct names of all damaged leaves, in the order found."""
        return tuple(dict.fromkeys(leaf.name for damage in self.damage for leaf in damage.leaves))

    @property
    def is_only_parts(self) -> bool:
        """True if only part files are damaged, which copies may replace."""
        kinds = {damage.kind for damage in self.damage}
        follows = {"cover"} if "part" in kinds else set()  # bytes that are missing because of a missing part
        return self.manifest is not None and kinds <= {"part", "chunk", "digest"} | follows

    @property
    def damaged_files(self) -> tuple[str, ...]:
        """Names of missing and damaged parts by rank; parts of earlier steps with their directory."""
        if self.manifest is None:
            return ()
        bad = {(d.rank, d.file) for d in self.damage if d.rank is not None and d.file and d.kind != "cover"}
        return tuple(file for _, file in sorted(bad))


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying a directory. Fields: docs/commands.md, verify."""

    json_also: ClassVar = ("good",)

    directory: Path
    owner: Owner | None
    signatures_checked: bool
    steps: tuple[VerifyResult, ...]
    nodes: NodeFiles | None
    repairs: tuple[Repaired, ...] | None
    unreadable_suspect_records: tuple[str, ...]

    @property
    def good(self) -> bool:
        """True if everything is sound or repaired; unfinished and removed steps are accepted while a job is running."""
        repairs = self.repairs or ()
        paths = {each.path for each in repairs}
        if any(each.problem is not None for each in repairs):
            return False
        if self.nodes is not None and (self.nodes.unread or any(each.path not in paths for each in self.nodes.damage)):
            return False
        running = self.owner is not None and bool(self.owner.running)
        passable = {SOUND, REMOVED, *([StepState.UNFINISHED] if running else [])}
        return all(step.state in passable or (repairs and step.is_only_parts) for step in self.steps)


def verify_directory(
    root: Path,
    *,
    step: int | None = None,
    every: bool = False,
    local_dirs: Sequence[Path] = (),
    signing: Signing | None = None,
    repair: bool = False,
    without_lock: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
    verified: Callable[[VerifyResult], None] = lambda result: None,
) -> Verification:
    """Verify steps of a persistent directory, and all of its files in node-local directories.

    ``repair``: keep jobs out of the directory, and repair damaged files. ``verified`` is called with the result of each
    step as soon as it is available.
    """
    owner = read_owner(root)
    with hold_directory(root, without_lock=without_lock) if repair else nullcontext():
        suspicions = Suspicions.read(PosixStore(root))
        steps = []
        if not local_dirs or list_steps(PosixStore(root)):
            steps = choose_steps(root, step, every=every, signing=signing)
        names = step_names(each.key for each in steps)
        sizes = [each.manifest.nbytes + each.manifest.referenced_bytes for each in steps if each.error is None]
        total, done, results = sum(sizes), 0, list[VerifyResult]()

        def advance(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            progress(done, total)

        for each in steps:
            began = time.monotonic()
            result = verify(each, advance)
            suspect = () if result.manifest is None else suspicions.of(result.manifest.attempt)
            seconds = round(time.monotonic() - began, 6)
            results.append(replace(result, name=names[each.key], seconds=seconds, suspect=suspect))
            verified(results[-1])
        nodes = None
        if local_dirs:
            nodes = verify_nodes(look_at_nodes(root, local_dirs, signing), signing, step)
            nodes = replace(nodes, suspect=_suspect_on_nodes(nodes, results, suspicions))
        repairs = tuple(_repair(root, results, nodes, signing)) if repair else None
    return Verification(root, owner, signing is not None, tuple(results), nodes, repairs, suspicions.problems)


def _suspect_on_nodes(
    nodes: NodeFiles, results: Sequence[VerifyResult], suspicions: Suspicions
) -> tuple[tuple[Attempt, tuple[SuspectLeaf, ...]], ...]:
    attempts = {part.attempt for _, found in nodes.stocks for part in found.parts}
    attempts -= {result.manifest.attempt for result in results if result.manifest is not None}
    ordered = sorted(attempts, key=lambda attempt: (attempt.step, attempt.key))
    return tuple((attempt, leaves) for attempt in ordered if (leaves := suspicions.of(attempt)))


def _repair(
    root: Path, results: Sequence[VerifyResult], nodes: NodeFiles | None, signing: Signing | None
) -> list[Repaired]:
    damaged = [] if nodes is None else [each.path for each in nodes.damage]
    for result in results:
        for file in result.damaged_files:
            damaged.append(root / file if "/" in file else root / step_name(result.key) / file)
    return repair_files(root, () if nodes is None else nodes.stocks, damaged, signing)


def verify(step: StoredStep, advance: Advance = lambda nbytes: None) -> VerifyResult:
    """Verify one step. Raises nothing: everything that is wrong is in the result.

    Memory: the indexes of all parts, and one chunk.
    """
    parts, damage, checking = 0, list[Damage](), None
    try:
        parts = len(step.manifest.parts)
        checking = _Checking(step, advance)
    except (FormatError, StorageError) as error:
        # With a sound manifest, the index of a part may still be damaged or of a newer version.
        damaged = StepState.NEWER if isinstance(error, NewerFormatError) else StepState.DAMAGED
        state: str = step.state if step.state == StepState.UNFINISHED else damaged
        text, file = (error.summary, None) if state == StepState.UNFINISHED else (_text(error), MANIFEST_NAME)
        damage.append(Damage("manifest", text, file))
    else:
        damage = checking.run()
        state = StepState.DAMAGED if damage else SOUND
    if damage and step.is_retired():
        state, damage = REMOVED, []
    if checking is None:
        return VerifyResult(step.key, state, parts, 0, 0, tuple(damage))
    return VerifyResult(step.key, state, parts, checking.nbytes, checking.raw_bytes, tuple(damage), step.manifest)


class _Checking:
    """Verifies one step: each part, then whether the parts together have every byte."""

    def __init__(self, step: StoredStep, advance: Advance) -> None:
        self._step, self._advance = step, advance
        self._structure = structure_of(step)
        self._names = LeafNames(self._structure)
        self._damage: list[Damage] = []
        self._spans: dict[int, npt.NDArray[np.void]] = {}
        self._unreadable: dict[int, int] = {}  # rank -> index in self._damage
        self.nbytes = self.raw_bytes = 0

    def run(self) -> list[Damage]:
        """Return all damage: first by part, then of the whole step."""
        for record in self._step.manifest.parts:
            self.part(record)
        self._cover()
        return self._damage

    def part(self, record: PartRecord) -> None:
        """Verify one part, and record its damage."""
        before = self.nbytes
        try:
            with open_part(self._step, record.rank) as part:
                self._part(part)
        except (FormatError, StorageError) as error:
            self._unreadable[record.rank] = len(self._damage)
            leaves = self._names.all_own(record.rank)
            message = _problem(error, "the part file is missing")
            self._damage.append(Damage("part", message, record.file, record.rank, leaves=leaves))
        whole = record.nbytes + record.referenced_bytes
        self._advance(whole - (self.nbytes - before))  # bytes that will not be read

    def _part(self, part: OpenPart) -> None:
        record, reader = part.record, part.reader
        structure = self._document(part)
        names = self._names if structure is self._structure else LeafNames(structure)

        def tell(bad: BadChunks) -> None:
            file = f"{reader.base_place(bad.base)}/{record.file}" if bad.base else record.file
            leaves = tuple(leaf for chunk in bad.chunks for leaf in names.in_chunk(reader, chunk))
            if bad.offset is None:
                message = _problem(bad.error, "an earlier part that holds chunks of this one is missing")
                self._damage.append(Damage("part", message, file, record.rank, leaves=leaves))
            else:
                stop = bad.offset + int(reader.chunks["encoded_length"][bad.chunks[0]])
                self._damage.append(Damage("chunk", _text(bad.error), file, record.rank, bad.offset, stop, leaves))

        self._done(sum(map(len, reader.frame())))
        digest = reader.check_bytes(tell, with_bases=True, pace=self._done)
        if digest not in (None, record.digest):
            found = f"the digest of the whole file does not hold: {digest} instead of {record.digest}"
            self._damage.append(Damage("digest", found, record.file, record.rank))
        self.raw_bytes += reader.raw_bytes
        self._spans[record.rank] = reader.spans.copy()
        self._add_faults(own_faults(structure, part.own.types, reader.spans), record, names=names)

    def _document(self, part: OpenPart) -> Structure:
        """Check that the part describes leaves and values like the manifest. Returns the structure of its rank."""
        record, structure, messages = part.record, self._structure, list[str]()
        try:
            structure = part.own.check(self._structure, record.file)
            if record.rank == 0 and parse_json(part.reader.meta).get("structure") != self._step.manifest.structure:
                raise FormatError("another structure")
        except FormatError:
            messages.append("the part's document describes another state than the manifest does")
        else:
            try:
                part.check_places(structure, f"{self._step.where}/{record.file}")
            except FormatError as error:
                messages.append(_text(error))
        if part.reader.raw_bytes != record.raw_bytes:
            found, expected = part.reader.raw_bytes, record.raw_bytes
            messages.append(f"the part holds {found} raw bytes, the manifest says {expected}")
        self._damage += [Damage("part", message, record.file, record.rank) for message in messages]
        return structure

    def _done(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._advance(nbytes)

    def _cover(self) -> None:
        """Check that the parts together have every byte; gaps are attributed to unreadable parts."""
        faults = Held(self._structure, self._spans).faults
        lost = [fault for fault in faults if self._unreadable and fault.kind == GAP]
        self._add_faults([fault for fault in faults if not self._unreadable or fault.kind != GAP])
        if len(self._unreadable) > 1 and lost:
            ranks = name_ranks(self._unreadable)
            self._add_faults(lost, None, f"no sound part holds these bytes; they were in parts {ranks}")
        elif lost:
            (at,) = self._unreadable.values()
            old = self._damage[at]
            leaves = (*self._names.of_faults(lost, None), *old.leaves)
            self._damage[at] = Damage(old.kind, old.message, old.file, old.rank, old.start, old.stop, leaves)

    def _add_faults(
        self,
        faults: list[Fault],
        record: PartRecord | None = None,
        message: str | None = None,
        names: LeafNames | None = None,
    ) -> None:
        if not faults:
            return
        if message is None:
            extra = any(fault.kind == EXTRA for fault in faults)
            message = "the parts do not hold every byte exactly once" + (
                ": some stand twice, or behind the end of their leaf" if extra else ": some are missing"
            )
        rank, file = (record.rank, record.file) if record else (None, None)
        self._damage.append(Damage("cover", message, file, rank, leaves=(names or self._names).of_faults(faults, rank)))


class LeafNames:
    """Maps bytes of parts to the leaves of a structure."""

    def __init__(self, structure: Structure) -> None:
        self._structure = structure
        self._paths = [readable(path) for path in structure.paths()]
        self._tied: dict[int, list[tuple[str, int, int]]] = {}
        for index, alias in structure.aliases.items():
            extent = self._extent(index, alias)
            self._tied.setdefault(alias.owner, []).append((self._paths[index], *extent))

    def _extent(self, index: int, alias: Alias) -> tuple[int, int]:
        """The range of its owner's bytes that an alias covers."""
        kind = self._structure.types[index]
        steps = zip(kind.shape, alias.strides, strict=True)
        last = sum((length - 1) * stride for length, stride in steps) if kind.nbytes else -1
        return alias.offset, alias.offset + (last + 1) * kind.itemsize

    def all_own(self, rank: int) -> tuple[DamagedLeaf, ...]:
        """All leaves and values that only this rank's part has."""
        own = np.flatnonzero(self._structure.per_rank).tolist()
        return tuple(DamagedLeaf(self._paths[index], rank, None, None) for index in own)

    def of_faults(self, faults: Iterable[Fault], rank: int | None) -> tuple[DamagedLeaf, ...]:
        """The leaves with coverage faults."""
        leaves: list[DamagedLeaf] = []
        for fault in faults:
            leaves += self._at(fault.leaf, fault.box, fault.start, fault.stop, rank)
        return tuple(leaves)

    def in_chunk(self, reader: PartReader, chunk: int) -> tuple[DamagedLeaf, ...]:
        """The leaves with bytes in a chunk of a part."""
        first, last = reader.raw_starts[chunk : chunk + 2].tolist()
        spans, begins = reader.spans, reader.spans["raw_offset"]
        leaves: list[DamagedLeaf] = []
        for row in spans[(begins < last) & (begins + spans["length"] > first)].tolist():
            leaf, table, box, start, length, raw_offset = row
            low, high = max(first, raw_offset) - raw_offset, min(last, raw_offset + length) - raw_offset
            leaves += self._at(leaf, box, start + low, start + high, reader.rank if table else None)
        return tuple(leaves)

    def _at(self, leaf: int, number: int, start: int, stop: int, rank: int | None) -> list[DamagedLeaf]:
        """A range of a leaf, and the leaves that share memory with it."""
        if leaf >= len(self._paths):
            return [DamagedLeaf(f"(leaf {leaf}, which the structure lacks)", rank, start, stop)]
        division = self._structure.divisions.get(leaf)
        box = division.box(number) if division is not None and number < len(division) else None
        leaves = [DamagedLeaf(self._paths[leaf], rank, start, stop, box)]
        for path, begin, end in self._tied.get(leaf, []):
            if division is not None or (begin < stop and end > start):
                leaves.append(DamagedLeaf(path, rank, None, None))
        return leaves


def _problem(error: FormatError | StorageError, missing: str) -> str:
    """The reason why a file cannot be opened as a part."""
    return missing if isinstance(error, StorageError) and error.errno == errno.ENOENT else _text(error)


def _text(error: DeeppartError) -> str:
    """An error's summary with what was expected and found, on one line."""
    if error.expected and error.found:
        return f"{error.summary} (expected {error.expected}, found {error.found})"
    return f"{error.summary} ({error.found})" if error.found else error.summary
