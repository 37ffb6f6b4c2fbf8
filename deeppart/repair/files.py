"""Repair of damaged files by one process that sees all the directories concerned (``deeppart verify --repair``).

A running job repairs the files of its nodes itself if ``scrub_bandwidth`` is set (:mod:`deeppart.repair.scrub`). What a
file has to contain is known from its path, the manifest, copies and parity, not from the file: files may have been
exchanged. What is written was checked, takes the damaged file's name at once or not at all, and is read once more
before it is called repaired. A file that may be the only one of another part is not overwritten. Memory: one part; two
where parity is computed from parts that have to be rebuilt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import xxhash

from deeppart import access
from deeppart.comm import SingleComm, finish
from deeppart.errors import CorruptFileError, DeeppartError, FormatError, StorageError, one_line
from deeppart.model import Attempt, ParityIdentity, ParityMember, PartRecord
from deeppart.nodes import Arena, ReedSolomon, Wanted, padded_bytes, rebuild_parts
from deeppart.part import (
    FileSource,
    MemorySource,
    ParityReader,
    ParityWriter,
    PartHeader,
    PartReader,
    Signing,
    is_parity_file_name,
    parity_file_name,
    parse_part_file_name,
    set_id,
    stripes_of,
)
from deeppart.plan.restart import Committed, FilesByAttempt, Inventory, Read, Source
from deeppart.recovery import LoadedPart, load_part
from deeppart.repair.mending import Repaired, Required, check_file, put_part
from deeppart.repair.moved_files import advice, header_of, misnamed
from deeppart.storage import (
    DurableFile,
    NodeContents,
    PosixStore,
    is_temporary_name,
    parse_step_name,
    read_steps,
    step_name,
)

_TIMEOUT_S = 3600.0


def repair_files(
    root: Path,
    stocks: Sequence[tuple[Path, NodeContents]],
    damaged: Sequence[Path],
    signing: Signing | None = None,
) -> list[Repaired]:
    """Repair damaged files of a persistent directory, and of the node-local ones in ``stocks``.

    Leftovers of interrupted repairs are removed: nobody else writes to a committed step.
    """
    repairing = _Repairing(root, stocks, damaged, signing)
    repairing.remove_leftovers()
    # Parts before the parity that is computed of them. Several steps may refer to one that is damaged.
    ordered = sorted(dict.fromkeys(damaged), key=lambda path: is_parity_file_name(path.name))
    return [repairing.repair(path) for path in ordered]


class _Repairing:
    """Sound files within reach, from which damaged ones are repaired; what was repaired serves for the next."""

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
        steps = read_steps(PosixStore(root), signing).committed
        self._steps = {step.key: step for step in steps}
        self._manifests = {step.manifest.attempt: step.manifest for step in steps}
        self._damaged = {str(path) for path in damaged}
        self._parts = [part for stock in stocks for part in stock.parts]
        self._parity = [each for stock in stocks for each in stock.parity]
        self._files = FilesByAttempt(
            Inventory(
                found=(tuple(self._parts),),
                node_of=(0,),
                committed=tuple(
                    Committed(
                        step.manifest.attempt,
                        step.where,
                        step.manifest.parts,
                        step.manifest.created,
                    )
                    for step in steps
                ),
                parity=(tuple(self._parity),),
            )
        )

    def remove_leftovers(self) -> None:
        """Remove temporary files from committed steps and beside damaged files, as far as the system lets us."""
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
            self._check(path)
        except DeeppartError as error:
            problem = f"{source} was put in its place, which is still not sound: {one_line(error)}"
            return Repaired(path, None, problem)
        self._damaged.discard(str(path))
        return Repaired(path, source, None)

    def _mend(self, path: Path) -> str:
        """Put a sound file in place; returns its source."""
        if is_parity_file_name(path.name):
            return self._mend_parity(path)
        required = self._required(path)
        self._refuse_the_only_file(path, required.attempt)
        part, source = self._load(required, path)
        put_part(part, DurableFile(path, over="damaged"), required.digest)
        return source.path if source.rebuild is not None else f"{source.level} {source.path}"

    def _mend_parity(self, path: Path) -> str:
        """Compute a share of parity again, from all parts that it protects."""
        identity = self._parity_identity(path)
        self._refuse_the_only_file(path, None)
        file = DurableFile(path, over="damaged")
        readers: list[PartReader] = []
        with ExitStack() as stack:
            try:
                parts = {
                    place: self._open_member(identity.attempt, member, path, stack, readers)
                    for place, member in enumerate(identity.members)
                    if member.part is not None
                }
                encode_share(identity, parts, ParityWriter(file, identity))
                for reader in readers:  # none has changed since it was checked, while it was read
                    reader.verify()
                file.commit()
            except BaseException:
                file.abort()
                raise
        return f"the {len(parts)} parts that it protects"

    def _check(self, path: Path) -> None:
        """Read a file whole; raises if it is not what its location requires."""
        if is_parity_file_name(path.name):
            with FileSource(path) as file:
                ParityReader(file, where=str(path)).verify()
            return
        check_file(path, self._required(path), self._signing)

    # --- what a location requires, and what there is for it ---

    def _is_persistent(self, path: Path) -> bool:
        return path.parent.parent == self._root

    def _record(self, attempt: Attempt, rank: int) -> PartRecord | None:
        manifest = self._manifests.get(attempt)
        return manifest.parts[rank] if manifest is not None else None

    def _required(self, path: Path) -> Required:
        """What the location of a part requires.

        A part may be encoded in one way on nodes and in another on the persistent level. There, it must be the file
        that its manifest names; on nodes, what parity was computed of and copies were made of, or these would not count
        for it any more.
        """
        parsed = parse_part_file_name(path.name)
        if parsed is None:
            raise FormatError("not a file that can be repaired", where=str(path))
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
        """What later steps refer to in a part of a step that has no manifest any more."""
        return frozenset(
            base.index_digest
            for other, manifest in self._manifests.items()
            if other.session == attempt.session and rank < other.world_size
            for base in manifest.parts[rank].bases
            if base.key(other.session) == attempt.key
        )

    def _attempt_of(self, path: Path, world_size: int) -> Attempt:
        """The checkpoint to which a file belongs, according to the directory in which it lies."""
        key = parse_step_name(path.parent.name)
        if key in self._steps and self._is_persistent(path):
            return self._steps[key].manifest.attempt
        if key is not None and self._is_persistent(path):
            for other in self._manifests:
                if other.session == key.session and other.world_size == world_size:
                    return replace(other, step=key.step, sequence=key.sequence)
        known = [each for each in self._files.attempts() if each.key == key and each.world_size == world_size]
        if not known and (header := header_of(*_placed(path))) is not None:
            # Perhaps the only file of its step within reach.
            is_of_place = header.attempt.key == key and header.attempt.lineage in path.parts
            known = [header.attempt] if is_of_place else []
        if len(known) != 1:
            raise CorruptFileError(
                "nothing tells which checkpoint this file belonged to",
                found=f"{len(known)} at this step",
                where=str(path),
            )
        return known[0]

    def _load(self, required: Required, path: Path) -> tuple[LoadedPart, Source]:
        """A sound copy of a part, in memory."""
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

    def _read(self, read: Read, attempt: Attempt) -> LoadedPart:
        if read.source.rebuild is None:
            with FileSource(self._at(read.source.path)) as source:
                return load_part(source, read, attempt, self._signing)
        memory = np.empty(padded_bytes(read.source.rebuild.identity), dtype=np.uint8)
        comm = SingleComm()
        wanted = [Wanted(read.part, 0, read.source.rebuild)]
        operation = rebuild_parts(comm, wanted, {read.part: memory}, self._arena, self._at, careful=True)
        rebuilt = finish(comm, operation, "repairing from parity", _TIMEOUT_S)
        if rebuilt.refused:
            if rebuilt.shortage is not None:
                raise rebuilt.shortage
            raise CorruptFileError(rebuilt.refused[read.part], where=read.source.path)
        return load_part(MemorySource(memory[: read.source.nbytes].data), read, attempt, self._signing)

    def _open_member(
        self, attempt: Attempt, member: ParityMember, path: Path, stack: ExitStack, readers: list[PartReader]
    ) -> FileSource | MemorySource:
        """A sound copy of a part as it was encoded for parity, to read blocks from: a file if there is one, which is
        added to ``readers``, else in memory.
        """
        assert member.part is not None
        for source in self._files.findings(attempt)[member.part].sources:
            is_as_encoded = source.rebuild is None and source.index_digest == member.index_digest
            if is_as_encoded and source.path not in self._damaged:
                try:
                    opened = stack.enter_context(FileSource(self._at(source.path)))
                    reader = PartReader(
                        opened,
                        where=source.path,
                        expected_index_digest=member.index_digest,
                        signing=self._signing,
                    )
                    reader.verify()
                    readers.append(reader)
                    return opened
                except (FormatError, StorageError):
                    continue
        loaded, _ = self._load(Required(attempt, member.part, frozenset({member.index_digest})), path)
        return MemorySource(b"".join(loaded.pieces()))

    def _parity_identity(self, path: Path) -> ParityIdentity:
        """Whose share a parity file is, from itself or from the other members of its set."""
        _, name, place, _, _ = path.stem.split("-")  # parity-<set>-<place>-of-<members>
        for each in self._parity:
            if set_id(each.identity) == name:
                identity = replace(each.identity, place=int(place))
                if parity_file_name(identity) == path.name:
                    return identity
        raise CorruptFileError(
            "no other file of this parity set is within reach, so nothing tells what it protected",
            where=str(path),
            todo="name the local_dir of more nodes with --local",
        )

    def _refuse_the_only_file(self, path: Path, attempt: Attempt | None) -> None:
        """Raise if what lies in a place belongs elsewhere, and there is no other sound file of it."""
        other = misnamed(*_placed(path), attempt)
        if other is not None and not self._is_elsewhere(other, path):
            raise CorruptFileError(
                "another file lies in its place, and is not written over: it may be the only one",
                found=advice(*_placed(path), other, is_only=True),
                where=str(path),
            )

    def _is_elsewhere(self, header: PartHeader, path: Path) -> bool:
        attempt, rank = header.attempt, header.rank
        if attempt not in self._files.attempts() or rank >= attempt.world_size:
            return False
        for each in self._files.findings(attempt)[rank].sources:
            if each.rebuild is None and each.path not in self._damaged and each.path != str(path):
                with contextlib.suppress(FormatError, StorageError):
                    check_file(self._at(each.path), Required(attempt, rank), self._signing)
                    return True
        return False


def _placed(path: Path) -> tuple[PosixStore, str]:
    """The store in which a file of a step lies, and its key there."""
    return PosixStore(path.parent.parent), f"{path.parent.name}/{path.name}"


def encode_share(
    identity: ParityIdentity, parts: Mapping[int, FileSource | MemorySource], writer: ParityWriter
) -> None:
    """Write one member's share of parity, row by row, from the parts of its set by their places."""
    stripes = stripes_of(identity)
    code = ReedSolomon(stripes.data_blocks, stripes.tolerate)
    for row in range(stripes.rows):
        length = stripes.length(row)
        blocks, digests = [], []
        for index in range(stripes.tolerate):
            stripe = stripes.kept_stripe(identity.place, index)
            data = [np.zeros(length, dtype=np.uint8) for _ in range(stripes.data_blocks)]
            for i, block in enumerate(data):
                place = stripes.source(stripe, i)
                filled = stripes.filled(row, i, identity.members[place].nbytes)
                if filled:
                    parts[place].read_into(stripes.start(row, i), block[:filled].data)
            parity = [np.zeros(length, dtype=np.uint8) for _ in range(stripes.tolerate)]
            code.encode(data, parity)
            blocks.append(parity[index])
            whole = b"".join(xxhash.xxh3_128_digest(each.data) for each in (*data, *parity))
            digests.append(np.frombuffer(whole, dtype=np.uint8).reshape(-1, 16))
        writer.add_row(blocks, np.stack(digests))
    writer.finish()
