"""Repairing files from others: parts from copies, from parity or from the other level, parity from the parts.

One process that sees all the directories concerned; a running job repairs its own nodes itself
(:mod:`deeppart.repair.scrub`). Whatever is written was checked before, and takes the damaged file's place at once or
not at all. Memory: one part; two where parity is computed from parts that have to be rebuilt themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xxhash

from deeppart import access
from deeppart.comm.single import SingleComm
from deeppart.comm.waiting import finish
from deeppart.errors import CorruptFileError, DeeppartError, FormatError, StorageError
from deeppart.model import Attempt, ParityIdentity, ParityMember, PartRecord
from deeppart.nodes.exchange.memory import Arena
from deeppart.nodes.exchange.rebuild import rebuild_parts
from deeppart.nodes.exchange.rebuild_steps import Wanted, padded_bytes
from deeppart.offline.inspect.node_file_repair import DamagedNodeFile
from deeppart.offline.inspect.node_files import NodeFiles
from deeppart.offline.inspect.parity import encode_share
from deeppart.offline.inspect.repair_paths import are_one, file_of, repair_order
from deeppart.part import (
    FileSource,
    MemorySource,
    ParityWriter,
    PartReader,
    SectionPath,
    Signing,
    is_parity_file_name,
    parity_file_name,
    parse_base_file_name,
    parse_part_file_name,
    parse_section_path,
    part_file_name,
    set_id,
)
from deeppart.plan.restart import Committed, FilesByAttempt, Inventory, Read, Source
from deeppart.recovery.load_part import LoadedPart, load_part, sound_pieces
from deeppart.storage.files import DurableFile, fill
from deeppart.storage.manifests import read_manifests
from deeppart.storage.node import file_problem, one_line
from deeppart.storage.steps import list_steps, parse_step_directory_name

_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result for one damaged file.

    Attributes:
        path: the file.
        source: the source of its bytes; None if it could not be repaired.
        problem: the reason why not; None if it could be repaired.
    """

    path: Path
    source: str | None
    problem: str | None


class Repairer:
    """Repairs files of one persistent directory and of node-local directories that belong to it.

    Args:
        root: the persistent directory.
        nodes: the files on nodes, with the damaged ones.
        damaged: files on the persistent level that are damaged or missing.
        signing: the keys; a copy must be signed with one of them to be used. None: not checked.

    Raises:
        StorageError: the directory cannot be read.
    """

    def __init__(self, root: Path, nodes: NodeFiles, damaged: Sequence[Path], signing: Signing | None = None) -> None:
        self._root, self._nodes, self._signing = root, nodes, signing
        steps, _ = read_manifests(root, signing)
        self._steps = {step.key: step for step in steps}
        self._manifests = {step.manifest.attempt: step.manifest for step in steps}
        self._bad = {str(path) for path in damaged} | {str(each.path) for each in nodes.damage}
        self._inventory = Inventory(
            found=(tuple(part for _, found in nodes.stocks for part in found.parts),),
            node_of=(0,),
            committed=tuple(
                Committed(step.manifest.attempt, str(step.directory), step.manifest.parts, step.manifest.created)
                for step in steps
            ),
            parity=(tuple(each for _, found in nodes.stocks for each in found.parity),),
        )
        self._files = FilesByAttempt(self._inventory)
        self._arena = Arena()

    def repair_nodes(self) -> list[Repaired]:
        """Everything that is damaged on the nodes: parts first, since parity is computed from them."""
        damage = sorted((each.path for each in self._nodes.damage), key=repair_order)
        return [self._attempted(path) for path in damage]

    def repair(self, paths: Sequence[Path]) -> list[Repaired]:
        """Files of committed steps, and sections of node files."""
        sections: dict[str, list[SectionPath]] = {}
        for path in paths:
            if (place := parse_section_path(path)) is not None:
                sections.setdefault(place.file, []).append(place)
        files = [path for path in sorted(paths, key=repair_order) if parse_section_path(path) is None]
        done = [self._attempted(path) for path in files]
        for file, places in sorted(sections.items()):
            done += self._attempted_node_file(Path(file), places)
        return done

    def _attempted_node_file(self, file: Path, places: Sequence[SectionPath]) -> list[Repaired]:
        paths = {place.rank: file / part_file_name(place.rank, place.world_size) for place in places}
        try:
            attempt = self._attempt_of(file, places[0].world_size)
            parts = self._manifests[attempt].parts
            records = [record for record in parts if record.file.split("/")[0] == file.name]
            damaged = DamagedNodeFile(file, attempt, records, self._signing)
            outcomes = damaged.repair(lambda record: self._elsewhere(attempt, record, file.parent / record.file))
        except DeeppartError as error:
            return [Repaired(path, None, one_line(error)) for path in paths.values()]
        done = []
        for rank, path in sorted(paths.items()):
            outcome = outcomes.get(rank, "the file itself")  # sound when it was read again
            if isinstance(outcome, DeeppartError):
                done.append(Repaired(path, None, one_line(outcome)))
            else:
                self._bad.discard(str(path))
                done.append(Repaired(path, outcome, None))
        return done

    def _elsewhere(self, attempt: Attempt, record: PartRecord, path: Path) -> tuple[Iterator[memoryview | bytes], str]:
        part, source = self._get(attempt, record.rank, path, self._wanted(attempt, record.rank, path, record))
        return part.pieces(), _told(source)

    def _attempted(self, path: Path) -> Repaired:
        try:
            source = self._repair(path)
        except DeeppartError as error:
            return Repaired(path, None, one_line(error))
        self._bad.discard(str(path))  # it may serve as a source for the next one
        return Repaired(path, source, None)

    def _repair(self, path: Path) -> str:
        if is_parity_file_name(path.name):
            return self._repair_parity(path)
        base = parse_base_file_name(path.name)
        if base is not None:
            return self._repair_base(path, *base)
        parsed = parse_part_file_name(path.name)
        if parsed is None:
            raise FormatError("not a file that can be repaired", where=str(path))
        rank, world_size = parsed
        if (lent := self._repair_bases(path)) is not None:
            return lent
        attempt = self._attempt_of(path, world_size)
        record = self._record(attempt, rank)
        part, source = self._get(attempt, rank, path, self._wanted(attempt, rank, path, record))
        for name, other in part.bases():
            if not access.exists(path.with_name(name)):
                fill(DurableFile(path.with_name(name), over="damaged"), sound_pieces(other))
        _write(path, part, record.digest if record and record.index_digest == source.index_digest else None)
        return _told(source)

    def _repair_bases(self, path: Path) -> str | None:
        """Put in place again what a part refers to; None if that is not all that is wrong with it, or is nowhere."""
        try:
            with FileSource(path) as source:
                names = PartReader(source, where=str(path), signing=self._signing).base_names
            lacking = [path.with_name(name) for name in names if not access.exists(path.with_name(name))]
            bases = [(base, parse_base_file_name(base.name)) for base in lacking]
            sources = [self._repair_base(base, *parsed) for base, parsed in bases if parsed is not None]
        except (FormatError, StorageError):
            return None
        sound = sources and file_problem(path, self._signing, lambda nbytes: None) is None
        return ", ".join(sources) if sound else None

    def _repair_base(self, path: Path, rank: int, world_size: int, index_digest: str) -> str:
        """Find the same file anywhere else.

        Raises:
            CorruptFileError: there is no sound one.
        """
        stored = [each for _, found in self._nodes.stocks for each in (*found.bases, *found.parts)]
        names = [Path(each.path) for each in stored if each.index_digest == index_digest]
        for step in list_steps(self._root).values():
            names += [step / path.name, step / part_file_name(rank, world_size)]
        for committed in self._steps.values():
            parts = committed.manifest.parts
            records = [each for each in parts if each.index_digest == index_digest]
            names += [committed.directory / each.file for each in records]  # sections, too
        tried = []
        for other in dict.fromkeys(names):
            file = file_of(other)
            if str(other) in self._bad or not access.exists(file) or are_one(path, file):
                continue
            try:
                with FileSource(other) as source:
                    if PartReader(source, where=str(other)).index_digest != index_digest:
                        continue
                fill(DurableFile(path, over="damaged"), sound_pieces(other))
                return str(other)
            except (FormatError, StorageError) as error:
                tried.append(one_line(error))
        raise CorruptFileError(
            "there is no other sound file with these chunks within reach",
            found="; ".join(tried) or "no other file",
            where=str(path),
            todo="name the local_dir of nodes with --local, or let a restored job write a new checkpoint",
        )

    def _attempt_of(self, path: Path, world_size: int) -> Attempt:
        """The checkpoint to which a file belongs, according to the directory in which it lies."""
        for _, found in self._nodes.stocks:
            for part in found.parts:
                if part.path == str(path):
                    return part.attempt
        key = parse_step_directory_name(path.parent.name)
        if key in self._steps and path.parent.parent == self._root:
            return self._steps[key].manifest.attempt
        known = [a for a in self._files.attempts() if key and key.may_hold(a) and a.world_size == world_size]
        committed = [attempt for attempt in known if self._files.is_committed(attempt)]
        if len(committed or known) != 1:
            raise CorruptFileError(
                "nothing tells which checkpoint this file belonged to",
                found=f"{len(known)} at this step",
                where=str(path),
            )
        return (committed or known)[0]

    def _wanted(self, attempt: Attempt, rank: int, path: Path, record: PartRecord | None) -> frozenset[str]:
        """Digests of the indexes that a file may have; empty where nothing tells.

        A part may be encoded in one way on nodes and in another on the persistent level. There, it must be the file
        that its manifest names; on nodes, what parity was computed of and copies were made of, or these would not count
        for it any more.
        """
        if self._is_persistent(path):
            return frozenset({record.index_digest} if record else ())
        stored = [each for _, found in self._nodes.stocks for each in found.parts]
        mine = [each for each in stored if (each.attempt, each.rank) == (attempt, rank)]
        own = frozenset(each.index_digest for each in mine if each.path == str(path))
        shares = [each.identity for _, found in self._nodes.stocks for each in found.parity]
        members = [member for each in shares if each.attempt == attempt for member in each.members]
        others = frozenset(member.index_digest for member in members if member.part == rank)
        others |= frozenset(each.index_digest for each in mine)
        named = frozenset({record.node_index_digest or record.index_digest} if record else ())
        return own or others or named

    def _is_persistent(self, path: Path) -> bool:
        return file_of(path).parent.parent == self._root

    def _get(self, attempt: Attempt, rank: int, path: Path, wanted: frozenset[str]) -> tuple[LoadedPart, Source]:
        """A sound copy of a part, in memory.

        Args:
            path: the file that is to be repaired.
            wanted: digests of the indexes that it may have; empty for any.

        Raises:
            CorruptFileError: there is none.
        """
        finding = self._files.findings(attempt)[rank]
        tried = list(finding.remarks)
        than = "" if self._is_persistent(path) else " than copies and parity here"
        for source in finding.sources:
            if source.path == str(path) or source.path in self._bad:
                continue
            if wanted and source.index_digest not in wanted:
                same = "holds the same bytes, but encoded in another way"
                tried.append(f"{source.path}: {same}{than}: a restore can use it")
                continue
            try:
                return self._load(Read(rank, 0, source), attempt), source
            except (FormatError, StorageError) as error:
                tried.append(one_line(error))
        raise CorruptFileError(
            f"there is no sound copy of part {rank} within reach",
            found="; ".join(tried) or "no other copy",
            where=str(path),
            todo="name the local_dir of more nodes with --local, or let a restored job rebuild it",
        )

    def _load(self, read: Read, attempt: Attempt) -> LoadedPart:
        if read.source.rebuild is None:
            with FileSource(read.source.path) as source:
                return load_part(source, read, attempt, self._signing)
        room = np.empty(padded_bytes(read.source.rebuild.identity), dtype=np.uint8)
        comm = SingleComm()
        wanted = [Wanted(read.part, 0, read.source.rebuild)]
        operation = rebuild_parts(comm, wanted, {read.part: room}, self._arena, careful=True)
        refused = finish(comm, operation, "repairing from parity", _TIMEOUT_S)
        if refused:
            raise CorruptFileError(refused[read.part], where=read.source.path)
        return load_part(MemorySource(room[: read.source.nbytes].data), read, attempt, self._signing)

    def _record(self, attempt: Attempt, rank: int) -> PartRecord | None:
        """The manifest's entry about a part, if there is a manifest of this attempt."""
        manifest = self._manifests.get(attempt)
        return manifest.parts[rank] if manifest is not None else None

    def _repair_parity(self, path: Path) -> str:
        """Compute a share of parity again, from all parts that it protects."""
        identity = self._identity_of(path)
        file = DurableFile(path, over="damaged")
        readers: list[PartReader] = []
        with ExitStack() as stack:
            parts = {
                place: self._open(identity.attempt, member, path, stack, readers)
                for place, member in enumerate(identity.members)
                if member.part is not None
            }
            try:
                encode_share(identity, parts, ParityWriter(file, identity))
                for reader in readers:  # none has changed since it was checked, while it was read
                    reader.verify()
                file.commit()
            except BaseException:
                file.abort()
                raise
        return f"the {len(parts)} parts that it protects"

    def _open(
        self, attempt: Attempt, member: ParityMember, path: Path, stack: ExitStack, readers: list[PartReader]
    ) -> FileSource | MemorySource:
        """A sound copy of a part as it was encoded for parity, to read blocks from: a file if there is one, which is
        added to ``readers``, else in memory.
        """
        assert member.part is not None
        digest, signing = member.index_digest, self._signing
        for source in self._files.findings(attempt)[member.part].sources:
            if source.rebuild is None and source.index_digest == digest and source.path not in self._bad:
                try:
                    opened = stack.enter_context(FileSource(source.path))
                    reader = PartReader(opened, where=source.path, expected_index_digest=digest, signing=signing)
                    reader.verify()
                    readers.append(reader)
                    return opened
                except (FormatError, StorageError):
                    continue
        loaded, _ = self._get(attempt, member.part, path, frozenset({digest}))
        return MemorySource(b"".join(loaded.pieces()))

    def _identity_of(self, path: Path) -> ParityIdentity:
        """Whose share a parity file is, from itself or from the other members of its set."""
        _, name, place, _, _ = path.stem.split("-")  # parity-<set>-<place>-of-<members>
        for _, found in self._nodes.stocks:
            for each in found.parity:
                if set_id(each.identity) == name:
                    identity = replace(each.identity, place=int(place))
                    if parity_file_name(identity) == path.name:
                        return identity
        raise CorruptFileError(
            "no other file of this parity set is within reach, so nothing tells what it protected",
            where=str(path),
            todo="name the local_dir of more nodes with --local",
        )


def _write(path: Path, part: LoadedPart, digest: str | None) -> None:
    """Put a part in place.

    Raises:
        CorruptFileError: it is not what the manifest names after all. StorageError: it cannot be written.
    """

    def pieces() -> Iterator[memoryview | bytes]:
        whole = xxhash.xxh3_128()
        for piece in part.pieces():
            whole.update(piece)
            yield piece
        if digest is not None and whole.hexdigest() != digest:
            raise CorruptFileError(
                "what was found in its place has another digest",
                expected=digest,
                found=whole.hexdigest(),
                where=str(path),
            )

    fill(DurableFile(path, over="damaged"), pieces())


def _told(source: Source) -> str:
    return source.path if source.rebuild is not None else f"{source.level} {source.path}"
