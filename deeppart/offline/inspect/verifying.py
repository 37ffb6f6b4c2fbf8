"""Verifying a checkpoint: every byte is read, every digest checked, and all damage named by the leaves it hits.

Digests in play: the manifest's own, each part's header, footer, index and whole file, each chunk's encoded and decoded
bytes. A damaged chunk does not end the search. Of a part whose index cannot be trusted, the leaves are found by
elimination: what no other part holds was there.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import xxhash

from deeppart.errors import DeeppartError, FormatError, MissingError, NewerFormatError, RestoreError, StorageError
from deeppart.model import Attempt, Manifest, PartRecord, StepKey, SuspectLeaf
from deeppart.offline.inspect.cover import DamagedLeaf, LeafNames
from deeppart.offline.inspect.listing import (
    DAMAGED,
    NEWER,
    UNFINISHED_STATE,
    name_ranks,
    require_directory,
    step_names,
)
from deeppart.offline.inspect.node_files import NodeFiles, lineage_on_nodes, verify_nodes
from deeppart.offline.inspect.ownership import Owner, hold_directory, read_owner
from deeppart.offline.step_files import OpenPart, StepFiles
from deeppart.part import HEADER_BYTES, Signing, parse_json
from deeppart.repair import Repaired, advice, misnamed, repair_files
from deeppart.state.document import Structure
from deeppart.state.pieces import EXTRA, GAP, Fault, Held, check_places, own_faults
from deeppart.storage import (
    MANIFEST_NAME,
    MOST_LOOKS,
    PosixStore,
    Suspicions,
    committed_steps,
    is_gone,
    list_steps,
    read_manifest,
    read_suspicions,
    step_name,
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A step to verify.

    Attributes:
        directory: the step's directory.
        key: from its name.
        manifest: None if there is no sound one.
        error: the reason why there is none; MissingError if it was never committed.
        signing: the keys; it must be signed with one of them. None: not checked.
    """

    directory: Path
    key: StepKey
    manifest: Manifest | None
    error: DeeppartError | None
    signing: Signing | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that verifying reads."""
        return self.manifest.nbytes + self.manifest.referenced_bytes if self.manifest else 0


def choose_steps(
    root: Path, step: int | None = None, *, every: bool = False, signing: Signing | None = None
) -> list[Subject]:
    """The steps to verify: one step, every step directory, or by default the newest commit, sound or not.

    Of a step that there are several attempts at, all of them.
    """
    require_directory(root)
    store = PosixStore(root)
    for _ in range(MOST_LOOKS):
        present = list_steps(store)
        keys = present
        if step is not None:
            keys = [key for key in present if key.step == step]
        elif not every:
            committed = committed_steps(store)
            keys = [key for key in committed if key.step == committed[-1].step]
        if keys or present == list_steps(store):  # otherwise a running job has moved on meanwhile
            break
    if not keys:
        numbers = sorted({key.step for key in present})
        raise RestoreError(
            "there is no committed checkpoint" if step is None else f"there is no step {step}",
            found=f"steps {', '.join(map(str, numbers[-8:]))}" if numbers else "no step directory",
            where=str(root.absolute()),
            todo="`deeppart ls DIR` lists the steps"
            if numbers
            else "give the persistent_dir of a job that has saved a step",
        )
    subjects = [_subject(root, key, signing) for key in keys]
    needed = {key for each in subjects if each.manifest for key, _ in each.manifest.needed_parts}
    return [each for each in subjects if each.key not in needed or not isinstance(each.error, MissingError)]


def _subject(root: Path, key: StepKey, signing: Signing | None) -> Subject:
    directory = root / step_name(key)
    try:
        return Subject(directory, key, read_manifest(PosixStore(root), key, signing), None, signing)
    except (FormatError, StorageError) as error:
        return Subject(directory, key, None, error)


#: Every byte is as it was written. The other states are those of ``deeppart ls``, of which an unfinished or newer step
#: cannot be checked.
SOUND = "sound"
#: A job retired it, or somebody pruned it, while it was being read.
REMOVED = "removed"

#: Read at a time from where no chunk says how much.
_BLOCK_BYTES = 4 << 20

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong. Fields: docs/commands.md, verify."""

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
        """Its number."""
        return self.key.step

    @property
    def signed(self) -> bool:
        """Whether its manifest is; false where that cannot be read."""
        return self.manifest is not None and self.manifest.signed

    @property
    def session(self) -> str:
        """Of the attempt."""
        return self.key.session

    @property
    def damaged_leaves(self) -> tuple[str, ...]:
        """Names of all leaves hit, each once, in the order found."""
        return tuple(dict.fromkeys(leaf.name for damage in self.damage for leaf in damage.leaves))

    @property
    def is_only_parts(self) -> bool:
        """True if only single part files are damaged, which other copies may replace."""
        kinds = {damage.kind for damage in self.damage}
        return self.manifest is not None and (kinds <= {"part", "chunk", "digest"} or self._cover_follows(kinds))

    def _cover_follows(self, kinds: set[str]) -> bool:
        """Bytes that are missing because a part is."""
        return kinds <= {"part", "chunk", "digest", "cover"} and "part" in kinds

    @property
    def damaged_files(self) -> tuple[str, ...]:
        """Names of the parts that are missing or damaged, by rank; those of earlier steps with their directory."""
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
        """Everything was read, and is sound or repaired; or it is on its way in or out while a job is running."""
        repairs = self.repairs or ()
        paths = {each.path for each in repairs}
        if any(each.problem is not None for each in repairs):
            return False
        if self.nodes is not None and (self.nodes.unread or any(each.path not in paths for each in self.nodes.damage)):
            return False
        running = self.owner is not None and bool(self.owner.running)
        passable = {SOUND, REMOVED, *([UNFINISHED_STATE] if running else [])}
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
    """Read and check steps of a persistent directory, and all that node-local directories have of it.

    ``repair`` keeps jobs out of the directory, and repairs what is damaged. ``verified`` gets the result for each step
    as soon as it is there.
    """
    owner = read_owner(root)
    with hold_directory(root, without_lock=without_lock) if repair else nullcontext():
        suspicions = read_suspicions(PosixStore(root))
        subjects = []
        if not local_dirs or list_steps(PosixStore(root)):
            subjects = choose_steps(root, step, every=every, signing=signing)
        names = step_names(subject.key for subject in subjects)
        total, done, results = sum(subject.nbytes for subject in subjects), 0, list[VerifyResult]()

        def advance(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            progress(done, total)

        for subject in subjects:
            began = time.monotonic()
            result = verify(subject, advance)
            suspect = () if result.manifest is None else suspicions.of(result.manifest.attempt)
            seconds = round(time.monotonic() - began, 6)
            results.append(replace(result, name=names[subject.key], seconds=seconds, suspect=suspect))
            verified(results[-1])
        nodes = None
        if local_dirs:
            nodes = verify_nodes(local_dirs, lineage_on_nodes(root), signing, step)
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


def verify(subject: Subject, advance: Advance = lambda nbytes: None) -> VerifyResult:
    """Read and check all of one step. Raises nothing: whatever is wrong is in the verdict.

    Memory: the indexes of all parts, and one chunk.
    """
    manifest = subject.manifest
    if manifest is None:
        return _without_manifest(subject)
    try:
        checking = _Checking(StepFiles(subject.directory, manifest, subject.signing), advance)
    except FormatError as error:
        state = NEWER if isinstance(error, NewerFormatError) else DAMAGED
        damage = Damage("manifest", _text(error), MANIFEST_NAME)
        return VerifyResult(subject.key, state, len(manifest.parts), 0, 0, (damage,))
    damage_found = checking.run()
    state = DAMAGED if damage_found else SOUND
    if damage_found and is_gone(subject.directory / MANIFEST_NAME):
        state, damage_found = REMOVED, []
    counts = len(manifest.parts), checking.nbytes, checking.raw_bytes
    return VerifyResult(subject.key, state, *counts, tuple(damage_found), manifest)


def _without_manifest(subject: Subject) -> VerifyResult:
    error, directory = subject.error, subject.directory
    assert error is not None
    is_unfinished = isinstance(error, MissingError)
    if is_gone(directory if is_unfinished else directory / MANIFEST_NAME):
        return VerifyResult(subject.key, REMOVED, 0, 0, 0, ())
    if is_unfinished:
        damage = Damage("manifest", error.summary)
        return VerifyResult(subject.key, UNFINISHED_STATE, 0, 0, 0, (damage,))
    state = NEWER if isinstance(error, NewerFormatError) else DAMAGED
    return VerifyResult(subject.key, state, 0, 0, 0, (Damage("manifest", _text(error), MANIFEST_NAME),))


class _Checking:
    """One step being verified: part after part, then what they cover together."""

    def __init__(self, files: StepFiles, advance: Advance) -> None:
        self._files, self._advance = files, advance
        self._names = LeafNames(files.structure)
        self._damage: list[Damage] = []
        self._spans: dict[int, npt.NDArray[np.void]] = {}
        self._unreadable: dict[int, int] = {}  # rank -> place in self._damage
        self._buffer = np.empty(_BLOCK_BYTES, dtype=np.uint8)
        self.nbytes = self.raw_bytes = 0

    def run(self) -> list[Damage]:
        """Everything that is wrong, by part, then what concerns all of them."""
        for record in self._files.manifest.parts:
            self.part(record)
        self._cover()
        return self._damage

    def part(self, record: PartRecord) -> list[Damage]:
        """Check one part, and add to everything that is wrong."""
        before = self.nbytes
        try:
            with self._files.part(record.rank) as part:
                self._part(part)
        except (FormatError, StorageError) as error:
            self._unreadable[record.rank] = len(self._damage)
            leaves = self._names.all_own(record.rank)
            message = self._problem(error, self._files.directory / record.file, "the part file is missing")
            self._damage.append(Damage("part", message, record.file, record.rank, leaves=leaves))
        whole = record.nbytes + record.referenced_bytes
        self._advance(whole - (self.nbytes - before))  # what was not read will not be
        return self._damage

    def _part(self, part: OpenPart) -> None:
        record = part.record
        self._document(part)
        whole = xxhash.xxh3_128()
        payload_end = record.nbytes - len(part.reader.frame()[1])
        complete = self._plain(part, 0, HEADER_BYTES, whole)
        gone = self._bases(part)
        for chunk, (offset, length, base) in enumerate(
            part.reader.chunks[["offset", "encoded_length", "base"]].tolist()
        ):
            if base not in gone:
                complete &= self._chunk(part, chunk, offset, length, base, whole)
        complete &= self._plain(part, payload_end, record.nbytes, whole)
        if complete and whole.hexdigest() != record.digest:
            found = f"the digest of the whole file does not hold: {whole.hexdigest()} instead of {record.digest}"
            self._damage.append(Damage("digest", found, record.file, record.rank))
        self._spans[record.rank] = part.reader.spans.copy()
        structure = self._structure_of(part)
        faults = own_faults(structure, part.own.types, part.reader.spans)
        self._add_faults(faults, record, names=self._names_of(part))

    def _bases(self, part: OpenPart) -> set[int]:
        """Those of the part's bases that cannot be had at all; told once each, and not chunk by chunk."""
        gone, reader, rank = set(), part.reader, part.record.rank
        for base in range(1, len(reader.bases) + 1):
            try:
                reader.check_base(base)
            except (FormatError, StorageError) as error:
                gone.add(base)
                file = self._base_file(part, base)
                path = self._files.directory.parent / file
                message = self._problem(error, path, "an earlier part that holds chunks of this one is missing")
                chunks = np.flatnonzero(reader.chunks["base"] == base).tolist()
                leaves = tuple(leaf for chunk in chunks for leaf in self._leaves(part, chunk))
                self._damage.append(Damage("part", message, file, rank, leaves=leaves))
        return gone

    def _base_file(self, part: OpenPart, base: int) -> str:
        """Directory and name of a base."""
        return f"{part.reader.base_place(base)}/{part.record.file}"

    def _problem(self, error: FormatError | StorageError, path: Path, missing: str) -> str:
        """What is wrong with a file that cannot be opened as a part; what it is instead, if it is another one."""
        if isinstance(error, StorageError):
            return missing if error.errno == errno.ENOENT else _text(error)
        manifest = self._files.manifest
        attempt = manifest.attempt if path.parent == self._files.directory else None
        other = misnamed(path, attempt)
        return _text(error) if other is None else f"{_text(error)}; {advice(path, other)}"

    def _leaves(self, part: OpenPart, chunk: int) -> tuple[DamagedLeaf, ...]:
        """The pieces of leaves in a chunk."""
        first, last = part.reader.raw_starts[chunk : chunk + 2].tolist()
        return self._names_of(part).in_raw_range(part.reader.spans, first, last, part.record.rank)

    def _structure_of(self, part: OpenPart) -> Structure:
        """Of the state of one rank."""
        try:
            return part.own.complete(self._files.structure, part.record.file)
        except FormatError:  # told already
            return self._files.structure

    def _names_of(self, part: OpenPart) -> LeafNames:
        structure = self._structure_of(part)
        return self._names if structure is self._files.structure else LeafNames(structure)

    def _document(self, part: OpenPart) -> None:
        """Check that the part describes leaves and values as the manifest does."""
        structure, own = self._files.structure, part.own
        wrong = False
        try:
            own.check(structure, part.record.file)
        except FormatError:
            wrong = True
        if part.record.rank == 0 and not wrong:
            wrong = parse_json(part.reader.meta).get("structure") != self._files.manifest.structure
        if wrong:
            message = "the part's document describes another state than the manifest does"
            self._damage.append(Damage("part", message, part.record.file, part.record.rank))
        else:
            self._places(part)
        if part.reader.raw_bytes != part.record.raw_bytes:
            message = f"the part holds {part.reader.raw_bytes} raw bytes, the manifest says {part.record.raw_bytes}"
            self._damage.append(Damage("part", message, part.record.file, part.record.rank))

    def _places(self, part: OpenPart) -> None:
        """Its leaves must be ones that can stand where it has them."""
        structure, where, reader = self._files.structure, str(part.source.path), part.reader
        try:
            part.own.check(structure, where)
            places = reader.spans, reader.raw_starts, reader.marked_per_rank
            check_places(part.own.complete(structure, where), part.own.types, *places, where)
        except FormatError as error:
            self._damage.append(Damage("part", _text(error), part.record.file, part.record.rank))

    def _chunk(self, part: OpenPart, chunk: int, offset: int, length: int, base: int, whole: xxhash.xxh3_128) -> bool:
        """Check one chunk; False if it is damaged, so that the digest of the whole file need not be looked at."""
        reader = part.reader
        encoded = self._memory(length)
        try:
            reader.read_encoded(chunk, encoded)
            if not base:
                whole.update(encoded)
            reader.decode_chunk(chunk, encoded)
        except (FormatError, StorageError) as error:
            file = self._base_file(part, base) if base else part.record.file
            place = (file, part.record.rank, offset, offset + length)
            self._damage.append(Damage("chunk", _text(error), *place, self._leaves(part, chunk)))
            return False
        finally:
            self._done(length, int(reader.chunks["raw_length"][chunk]))
        return True

    def _plain(self, part: OpenPart, start: int, stop: int, whole: xxhash.xxh3_128) -> bool:
        """Add bytes outside the chunks, whose own digests were checked on opening, to the digest of the whole file."""
        for offset in range(start, stop, _BLOCK_BYTES):
            piece = self._memory(min(_BLOCK_BYTES, stop - offset))
            try:
                part.source.read_into(offset, piece)
            except (FormatError, StorageError) as error:
                place = (part.record.file, part.record.rank, offset, offset + len(piece))
                self._damage.append(Damage("chunk", _text(error), *place))
                return False
            whole.update(piece)
            self._done(len(piece), 0)
        return True

    def _memory(self, length: int) -> memoryview:
        if length > len(self._buffer):
            self._buffer = np.empty(length, dtype=np.uint8)
        return self._buffer.data[:length]

    def _done(self, nbytes: int, raw_bytes: int) -> None:
        self.nbytes += nbytes
        self.raw_bytes += raw_bytes
        self._advance(nbytes)

    def _cover(self) -> None:
        """What all parts hold together; gaps are what the unreadable ones held."""
        faults = Held(self._files.structure, self._spans).faults
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


def _text(error: DeeppartError) -> str:
    """An error's summary, with what was expected and found, on one line."""
    if error.expected and error.found:
        return f"{error.summary} (expected {error.expected}, found {error.found})"
    return f"{error.summary} ({error.found})" if error.found else error.summary
