"""What a repair can draw from: sound files of a persistent directory and of node-local directories that belong to it.

What a place requires is told by the place, never by what lies there: somebody may have exchanged files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from deeppart import access
from deeppart.comm import SingleComm, finish
from deeppart.errors import CorruptFileError, FormatError, StorageError
from deeppart.model import Attempt, ParityIdentity, ParityMember, PartRecord
from deeppart.nodes import Arena, Wanted, padded_bytes, rebuild_parts
from deeppart.offline.inspect.misnamed import file_of, header_of
from deeppart.offline.inspect.node_files import NodeFiles
from deeppart.part import (
    FileSource,
    MemorySource,
    PartHeader,
    PartReader,
    Signing,
    parity_file_name,
    part_file_name,
    set_id,
)
from deeppart.plan.restart import Committed, FilesByAttempt, Inventory, Read, Source
from deeppart.recovery import LoadedPart, load_part
from deeppart.storage.manifests import read_manifests
from deeppart.storage.node import one_line
from deeppart.storage.steps import list_steps, parse_step_directory_name

_TIMEOUT_S = 3600.0


class Reach:
    """Sound files of one persistent directory and of node-local directories that belong to it.

    Attributes:
        root: the persistent directory.
        steps, manifests: of what is committed, by key and by attempt.
        bad: paths of files that are damaged; what has been repaired is taken out.
    """

    def __init__(self, root: Path, nodes: NodeFiles, damaged: Sequence[Path], signing: Signing | None) -> None:
        self.root, self._nodes, self._signing = root, nodes, signing
        steps, _ = read_manifests(root, signing)
        self.steps = {step.key: step for step in steps}
        self.manifests = {step.manifest.attempt: step.manifest for step in steps}
        self.bad = {str(path) for path in damaged} | {str(each.path) for each in nodes.damage}
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

    def attempt_of(self, path: Path, world_size: int) -> Attempt:
        """The checkpoint to which a file belongs, according to the directory in which it lies."""
        key = parse_step_directory_name(path.parent.name)
        for _, found in self._nodes.stocks:
            for part in found.parts:  # in the older layout, the directory alone does not tell
                if part.path == str(path) and key is not None and key.may_hold(part.attempt):
                    return part.attempt
        if key in self.steps and path.parent.parent == self.root:
            return self.steps[key].manifest.attempt
        known = [a for a in self._files.attempts() if key and key.may_hold(a) and a.world_size == world_size]
        committed = [attempt for attempt in known if self._files.is_committed(attempt)]
        if not known and key is not None and (header := header_of(path)) is not None:
            # The only file of its step within reach, and it lacks what it refers to.
            is_of_place = key.may_hold(header.attempt) and header.attempt.world_size == world_size
            if is_of_place and header.attempt.lineage in path.parts:
                return header.attempt
        if len(committed or known) != 1:
            raise CorruptFileError(
                "nothing tells which checkpoint this file belonged to",
                found=f"{len(known)} at this step",
                where=str(path),
            )
        return (committed or known)[0]

    def wanted(self, attempt: Attempt, rank: int, path: Path, record: PartRecord | None) -> frozenset[str]:
        """Digests of the indexes that a file may have; empty where nothing tells.

        A part may be encoded in one way on nodes and in another on the persistent level. There, it must be the file
        that its manifest names; on nodes, what parity was computed of and copies were made of, or these would not count
        for it any more.
        """
        if self.is_persistent(path):
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

    def is_elsewhere(self, header: PartHeader, path: Path) -> bool:
        """True if there is a sound file of a part, or a sound section, besides the file at ``path``."""
        attempt, rank = header.attempt, header.rank
        if attempt not in self._files.attempts() or rank >= attempt.world_size:
            return False
        for each in self._files.findings(attempt)[rank].sources:
            if each.rebuild is None and each.path not in self.bad and file_of(Path(each.path)) != file_of(path):
                try:
                    with FileSource(each.path) as source:
                        PartReader(
                            source,
                            where=each.path,
                            expected_attempt=attempt,
                            expected_rank=rank,
                            signing=self._signing,
                        ).verify()
                    return True
                except (FormatError, StorageError):
                    continue
        return False

    def is_persistent(self, path: Path) -> bool:
        """True if a file, or a section, lies in a step of the persistent directory."""
        return file_of(path).parent.parent == self.root

    def same_files(self, path: Path, rank: int, world_size: int, index_digest: str) -> list[Path]:
        """Where the file that unchanged chunks refer to may lie, besides ``path``: by names, and by what was found."""
        stored = [each for _, found in self._nodes.stocks for each in (*found.bases, *found.parts)]
        names = [Path(each.path) for each in stored if each.index_digest == index_digest]
        for step in list_steps(self.root).values():
            names += [step / path.name, step / part_file_name(rank, world_size)]
        for committed in self.steps.values():
            parts = committed.manifest.parts
            records = [each for each in parts if each.index_digest == index_digest]
            names += [committed.directory / each.file for each in records]  # sections, too
        files = ((name, file_of(name)) for name in dict.fromkeys(names) if str(name) not in self.bad)
        return [name for name, file in files if access.exists(file) and not _are_one(path, file)]

    def get(self, attempt: Attempt, rank: int, path: Path, wanted: frozenset[str]) -> tuple[LoadedPart, Source]:
        """A sound copy of a part, in memory."""
        finding = self._files.findings(attempt)[rank]
        tried = list(finding.remarks)
        than = "" if self.is_persistent(path) else " than copies and parity here"
        for source in finding.sources:
            if source.path == str(path) or source.path in self.bad:
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
        rebuilt = finish(comm, operation, "repairing from parity", _TIMEOUT_S)
        if rebuilt.refused and rebuilt.shortage is not None:
            raise rebuilt.shortage
        if rebuilt.refused:
            raise CorruptFileError(rebuilt.refused[read.part], where=read.source.path)
        return load_part(MemorySource(room[: read.source.nbytes].data), read, attempt, self._signing)

    def record(self, attempt: Attempt, rank: int) -> PartRecord | None:
        """The manifest's entry about a part, if there is a manifest of this attempt."""
        manifest = self.manifests.get(attempt)
        return manifest.parts[rank] if manifest is not None else None

    def open_member(
        self, attempt: Attempt, member: ParityMember, path: Path, stack: ExitStack, readers: list[PartReader]
    ) -> FileSource | MemorySource:
        """A sound copy of a part as it was encoded for parity, to read blocks from: a file if there is one, which is
        added to ``readers``, else in memory.
        """
        assert member.part is not None
        digest, signing = member.index_digest, self._signing
        for source in self._files.findings(attempt)[member.part].sources:
            if source.rebuild is None and source.index_digest == digest and source.path not in self.bad:
                try:
                    opened = stack.enter_context(FileSource(source.path))
                    reader = PartReader(opened, where=source.path, expected_index_digest=digest, signing=signing)
                    reader.verify()
                    readers.append(reader)
                    return opened
                except (FormatError, StorageError):
                    continue
        loaded, _ = self.get(attempt, member.part, path, frozenset({digest}))
        return MemorySource(b"".join(loaded.pieces()))

    def parity_identity(self, path: Path) -> ParityIdentity:
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


def _are_one(path: Path, other: Path) -> bool:
    """True if two names belong to one file."""
    return access.exists(path) and os.path.samestat(access.lstat(path), access.lstat(other))
