"""Repair of damaged files by one process that sees all the directories concerned (``deeppart verify --repair``).

A running job repairs the files of its nodes itself if ``scrub_bandwidth`` is set (:mod:`deeppart.repair.scrub`). The
required content of a file follows from its path, the manifest, copies and parity, not from the file itself: files may
have been swapped. A replacement is checked before it is written, takes the damaged file's name atomically, and is read
again before it counts as repaired. A part in the place of another one may be its only copy, and is not overwritten.
Parity is repaired by jobs only. Memory: one part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from deeppart import access
from deeppart.comm import SingleComm, finish
from deeppart.errors import CorruptFileError, DeeppartError, FormatError, StorageError, one_line
from deeppart.model import Attempt, PartRecord
from deeppart.nodes import Arena, Wanted, padded_bytes, rebuild_parts
from deeppart.part import (
    HEADER_BYTES,
    FileSource,
    MemorySource,
    PartHeader,
    Signing,
    parse_part_file_name,
    parse_step_name,
    step_name,
)
from deeppart.plan.restart import FilesByAttempt, Read, Source
from deeppart.recovery import CheckedPart
from deeppart.repair.mending import Repaired, Required, check_file, put_part
from deeppart.storage import DurableFile, NodeContents, PosixStore, is_temporary_name, read_steps

_TIMEOUT_S = 3600.0


def repair_files(
    root: Path,
    stocks: Sequence[tuple[Path, NodeContents]],
    damaged: Sequence[Path],
    signing: Signing | None = None,
) -> list[Repaired]:
    """Repair damaged files of a persistent directory, and of the node-local ones in ``stocks``.

    Also removes leftovers of interrupted repairs: nothing else writes to a committed step.
    """
    repairing = _Repairing(root, stocks, damaged, signing)
    repairing.remove_leftovers()
    return [repairing.repair(path) for path in dict.fromkeys(damaged)]  # several steps may refer to one file


class _Repairing:
    """Repairs damaged files from the sound files that are accessible, including those repaired before."""

    def __init__(
        self,
        root: Path,
        directories: Sequence[tuple[Path, NodeContents]],
        damaged: Sequence[Path],
        signing: Signing | None,
    ) -> None:
        self._root, self._signing, self._arena = root, signing, Arena()
        self._at = access.Roots.to_read(root, *(directory for directory, _ in directories)).at
        stocks = [stock for _, stock in directories]
        found = NodeContents(
            [part for stock in stocks for part in stock.parts], [each for stock in stocks for each in stock.parity]
        )
        steps = read_steps(PosixStore(root), signing).committed
        self._steps = {step.key: step for step in steps}
        self._manifests = {step.manifest.attempt: step.manifest for step in steps}
        self._damaged = {str(path) for path in damaged}
        self._parts, self._parity = found.parts, found.parity
        self._files = FilesByAttempt(NodeContents.inventory([found], steps))

    def remove_leftovers(self) -> None:
        """Remove temporary files from committed steps and next to damaged files, ignoring errors."""
        damaged = {self._at(path).parent for path in self._damaged}
        for directory in damaged | {self._root / step_name(key) for key in self._steps}:
            store = PosixStore(directory.parent)
            with contextlib.suppress(StorageError):
                leftovers = list(filter(is_temporary_name, store.list(directory.name)))
                store.delete(directory.name, leftovers, durable=False)

    def repair(self, path: Path) -> Repaired:
        """Repair one file."""
        path = self._at(path)
        try:
            source = self._mend(path)
        except DeeppartError as error:
            return Repaired(path, None, one_line(error))
        try:
            check_file(path, self._required(path), self._signing)
        except DeeppartError as error:
            problem = f"{source} was put in its place, which is still not sound: {one_line(error)}"
            return Repaired(path, None, problem)
        self._damaged.discard(str(path))
        return Repaired(path, source, None)

    def _mend(self, path: Path) -> str:
        """Replace a file by a sound one; returns the source of that."""
        required = self._required(path)
        _refuse_other_part(path, required)
        part, source = self._load(required, path)
        put_part(part, DurableFile(path, over="damaged"), required.digest)
        return source.path if source.rebuild is not None else f"{source.level} {source.path}"

    # --- what a location requires, and its sources ---

    def _is_persistent(self, path: Path) -> bool:
        return path.parent.parent == self._root

    def _record(self, attempt: Attempt, rank: int) -> PartRecord | None:
        manifest = self._manifests.get(attempt)
        return manifest.parts[rank] if manifest is not None else None

    def _required(self, path: Path) -> Required:
        """What the location of a part requires.

        A part may be encoded differently on nodes and on the persistent level. On the persistent level, it must be the
        file in the manifest; on nodes, it must be the file from which parity and copies were made, or these would no
        longer belong to it.
        """
        parsed = parse_part_file_name(path.name)
        if parsed is None:
            raise FormatError(
                "parity is computed by jobs alone, when they restore its step and when they scrub; until then, its "
                "sound blocks are used",
                where=str(path),
            )
        attempt, rank = self._attempt_of(path, parsed[1]), parsed[0]
        record = self._record(attempt, rank)
        if self._is_persistent(path):
            if record is None:
                return Required(attempt, rank, self._referred_to(attempt, rank))
            return Required(attempt, rank, frozenset({record.index_digest}), record.digest)
        mine = [each for each in self._parts if (each.attempt, each.rank) == (attempt, rank)]
        found = frozenset(each.index_digest for each in mine if each.path == str(path))
        members = [
            member for each in self._parity if each.identity.attempt == attempt for member in each.identity.members
        ]
        others = frozenset(member.index_digest for member in members if member.part == rank)
        others |= frozenset(each.index_digest for each in mine)
        named = frozenset({record.node_index_digest or record.index_digest} if record else ())
        digests = found or others or named
        is_as_named = record is not None and digests == {record.index_digest}
        return Required(attempt, rank, digests, record.digest if is_as_named and record else None)

    def _referred_to(self, attempt: Attempt, rank: int) -> frozenset[str]:
        """Index digests by which later steps refer to a part of a step that no longer has a manifest."""
        return frozenset(
            base.index_digest
            for other, manifest in self._manifests.items()
            if other.session == attempt.session and rank < other.world_size
            for base in manifest.parts[rank].bases
            if base.key(other.session) == attempt.key
        )

    def _attempt_of(self, path: Path, world_size: int) -> Attempt:
        """The checkpoint to which a file belongs by its directory."""
        key = parse_step_name(path.parent.name)
        if key in self._steps and self._is_persistent(path):
            return self._steps[key].manifest.attempt
        if key is not None and self._is_persistent(path):
            for other in self._manifests:
                if other.session == key.session and other.world_size == world_size:
                    return replace(other, step=key.step, sequence=key.sequence)
        known = [each for each in self._files.attempts() if each.key == key and each.world_size == world_size]
        if not known and (header := _header_of(path)) is not None:
            # It may be the only accessible file of its step.
            is_of_place = header.attempt.key == key and header.attempt.lineage in path.parts
            known = [header.attempt] if is_of_place else []
        if len(known) != 1:
            raise CorruptFileError(
                "nothing tells which checkpoint this file belonged to",
                found=f"{len(known)} at this step",
                where=str(path),
            )
        return known[0]

    def _load(self, required: Required, path: Path) -> tuple[CheckedPart, Source]:
        """A sound copy of a part."""
        finding = self._files.findings(required.attempt)[required.rank]
        tried = list(finding.remarks)
        than = "" if self._is_persistent(path) else " than copies and parity here"
        for source in finding.sources:
            if source.path == str(path) or source.path in self._damaged:
                continue
            if required.index_digests and source.index_digest not in required.index_digests:
                same = "holds the same bytes, but encoded in another way"
                tried.append(f"{source.path}: {same}{than}: a restore can use it")
                continue
            try:
                return self._read(Read(required.rank, 0, source), required.attempt), source
            except (FormatError, StorageError) as error:
                tried.append(one_line(error))
        raise CorruptFileError(
            f"there is no sound copy of part {required.rank} within reach",
            found="; ".join(tried) or "no other copy",
            where=str(path),
            todo="name the local_dir of more nodes with --local, or let a restored job rebuild it",
        )

    def _read(self, read: Read, attempt: Attempt) -> CheckedPart:
        if read.source.rebuild is None:
            with FileSource(self._at(read.source.path)) as source:
                return self._checked(source, read, attempt)
        memory = np.empty(padded_bytes(read.source.rebuild.identity), dtype=np.uint8)
        comm = SingleComm()
        wanted = [Wanted(read.part, 0, read.source.rebuild)]
        operation = rebuild_parts(comm, wanted, {read.part: memory}, self._arena, self._at, careful=True)
        rebuilt = finish(comm, operation, "repairing from parity", _TIMEOUT_S)
        if rebuilt.refused:
            if rebuilt.shortage is not None:
                raise rebuilt.shortage
            raise CorruptFileError(rebuilt.refused[read.part], where=read.source.path)
        return self._checked(MemorySource(memory[: read.source.nbytes].data), read, attempt)

    def _checked(self, source: FileSource | MemorySource, read: Read, attempt: Attempt) -> CheckedPart:
        opened = CheckedPart.of(source, read, attempt, self._signing)
        opened.check()
        return opened


def _header_of(path: Path) -> PartHeader | None:
    """The header of a part file; None if it is not sound, or cannot be read."""
    try:
        with FileSource(path) as source:
            return PartHeader.decode(source.read_at(0, HEADER_BYTES), where=str(path))
    except (FormatError, StorageError):
        return None


def _refuse_other_part(path: Path, required: Required) -> None:
    """Raise if the file is another part than the one required in this place."""
    header = _header_of(path)
    if header is not None and (header.attempt, header.rank) != (required.attempt, required.rank):
        raise CorruptFileError(
            "another part lies in its place, and is not written over: it may be the only file of it",
            found=f"part {header.rank} of step {header.attempt.step}",
            where=str(path),
            todo="move it to where it belongs, or away; then repair again",
        )
