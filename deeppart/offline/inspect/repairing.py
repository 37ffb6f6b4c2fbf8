"""Repairing files from others: parts from copies, from parity or from the other level, parity from the parts.

One process that sees all the directories concerned; a running job repairs its own nodes itself
(:mod:`deeppart.repair.scrub`). Whatever is written was checked before, takes the damaged file's place at once or not
at all, and is read once more before it is called repaired. What lies in a place may be the only file of another part:
it is not written over then. Memory: one part; two where parity is computed from parts that have to be rebuilt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from deeppart import access
from deeppart.errors import CorruptFileError, DeeppartError, FormatError, StorageError
from deeppart.model import Attempt, StepKey
from deeppart.offline.inspect.misnamed import advice, file_of, misnamed
from deeppart.offline.inspect.node_files import NodeFiles, encode_share
from deeppart.offline.inspect.parts import StepFiles
from deeppart.offline.inspect.reach import Reach
from deeppart.offline.inspect.verifying import damage_of_part
from deeppart.part import (
    SECTION_ALIGNMENT,
    FileSource,
    NodeTable,
    ParityWriter,
    PartReader,
    Section,
    Signing,
    is_parity_file_name,
    parse_base_file_name,
    parse_part_file_name,
    parse_section_path,
)
from deeppart.plan.restart import Source
from deeppart.recovery import sound_pieces
from deeppart.storage.files import DurableFile, complete, fill
from deeppart.storage.node import file_problem, one_line
from deeppart.storage.steps import is_temporary_name, parse_step_directory_name


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result for one damaged file, or section of a node file.

    Attributes:
        path: the file.
        source: the source of its bytes; None if it could not be repaired.
        problem: the reason why not; None if it could be repaired.
    """

    path: Path
    source: str | None
    problem: str | None


class Repairer:
    """Repairs files of one persistent directory and of node-local directories that belong to it."""

    def __init__(self, root: Path, nodes: NodeFiles, damaged: Sequence[Path], signing: Signing | None = None) -> None:
        self._nodes, self._signing = nodes, signing
        self._reach = Reach(root, nodes, damaged, signing)
        self._files: dict[StepKey, StepFiles] = {}

    def repair_nodes(self) -> list[Repaired]:
        """Everything that is damaged on the nodes."""
        return self.repair([each.path for each in self._nodes.damage])

    def repair(self, paths: Sequence[Path]) -> list[Repaired]:
        """Damaged files, and damaged sections of node files."""
        done, sections = [], dict[Path, list[Path]]()
        for path in sorted(paths, key=_order):
            if file_of(path) == path:
                done.append(self._attempted(path))
            else:
                sections.setdefault(file_of(path), []).append(path)
        for file, places in sorted(sections.items()):
            done += self._attempted_node_file(file, places)
        return done

    def remove_leftovers(self) -> None:
        """Remove what repairs that were interrupted have left in committed steps, and beside damaged files on nodes.

        As far as the system lets us. Nobody writes to a committed step but who repairs it.
        """
        directories = {step.directory for step in self._reach.steps.values()}
        for directory in directories | {each.path.parent for each in self._nodes.damage}:
            with contextlib.suppress(OSError):
                for name in filter(is_temporary_name, access.names_in(directory)):
                    access.remove(directory / name)

    def _attempted(self, path: Path) -> Repaired:
        try:
            source = self._repair(path)
        except DeeppartError as error:
            return Repaired(path, None, one_line(error))
        return self._checked(path, source)

    def _attempted_node_file(self, file: Path, places: Sequence[Path]) -> list[Repaired]:
        try:
            source = self._repair_node_file(file, places[0])
        except DeeppartError as error:
            return [Repaired(path, None, one_line(error)) for path in places]
        return [self._checked(path, source) for path in places]

    def _checked(self, path: Path, source: str) -> Repaired:
        """What was put in place is read once more, as what the place requires, before it is called repaired."""
        problem = self._problem(path)
        if problem is not None:
            return Repaired(path, None, f"{source} was put in its place, which is still not sound: {problem}")
        self._reach.bad.discard(str(path))  # it may serve as a source for the next one
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
        attempt = self._reach.attempt_of(path, world_size)
        record = self._reach.record(attempt, rank)
        wanted = self._reach.wanted(attempt, rank, path, record)
        if (lent := self._repair_bases(path, attempt, rank, wanted)) is not None:
            return lent
        self._refuse_the_only_file(path, attempt)
        part, source = self._reach.get(attempt, rank, path, wanted)
        for name, other in part.bases():
            if not _is_base(path.with_name(name)):
                self._refuse_the_only_file(path.with_name(name), None)
                self._put(path.with_name(name), sound_pieces(other))
        pieces = part.pieces()
        if record is not None and record.index_digest == source.index_digest:
            pieces = _with_digest(pieces, record.digest, path)
        self._put(path, pieces)
        return _shown(source)

    def _repair_bases(self, path: Path, attempt: Attempt, rank: int, wanted: frozenset[str]) -> str | None:
        """Put in place again what a part refers to; None if that is not all that is wrong with it, or is nowhere."""
        signing = self._signing
        try:
            with FileSource(path) as source:
                reader = PartReader(
                    source, where=str(path), expected_attempt=attempt, expected_rank=rank, signing=signing
                )
            if wanted and reader.index_digest not in wanted:
                return None
            lacking = [base for base in map(path.with_name, reader.base_names) if not _is_base(base)]
            bases = [(base, parse_base_file_name(base.name)) for base in lacking]
            sources = [self._repair_base(base, *parsed) for base, parsed in bases if parsed is not None]
        except (FormatError, StorageError):
            return None
        sound = sources and file_problem(path, signing, lambda nbytes: None) is None
        return ", ".join(sources) if sound else None

    def _repair_base(self, path: Path, rank: int, world_size: int, index_digest: str) -> str:
        """Find the same file anywhere else."""
        self._refuse_the_only_file(path, None)
        tried = []
        for other in self._reach.same_files(path, rank, world_size, index_digest):
            try:
                with FileSource(other) as source:
                    if PartReader(source, where=str(other)).index_digest != index_digest:
                        continue
                self._put(path, sound_pieces(other))
                return str(other)
            except (FormatError, StorageError) as error:
                tried.append(one_line(error))
        raise CorruptFileError(
            "there is no other sound file with these chunks within reach",
            found="; ".join(tried) or "no other file",
            where=str(path),
            todo="name the local_dir of nodes with --local, or let a restored job write a new checkpoint",
        )

    def _repair_node_file(self, file: Path, section: Path) -> str:
        """Write a node file anew, from its sound sections and from copies of the others; all of it or nothing."""
        place = parse_section_path(section)
        assert place is not None
        attempt = self._reach.attempt_of(file, place.world_size)
        records = [each for each in self._reach.manifests[attempt].parts if each.file.split("/")[0] == file.name]
        self._refuse_the_only_file(section, attempt)
        sections, sources = list[Section](), list[str]()
        new = DurableFile(file, over="damaged")
        try:
            for record in records:
                new.skip(-(-new.nbytes // SECTION_ALIGNMENT) * SECTION_ALIGNMENT - new.nbytes)
                at, wanted = new.nbytes, frozenset({record.index_digest})
                part, source = self._reach.get(attempt, record.rank, file, wanted)
                for piece in _with_digest(part.pieces(), record.digest, file):
                    new.write(piece)
                sections.append(Section(record.rank, at, new.nbytes - at, record.index_digest))
                if file_of(Path(source.path)) != file:
                    sources.append(_shown(source))
        except BaseException:
            new.abort()
            raise
        complete(new, NodeTable(place.first, place.world_size, tuple(sections)))
        return ", ".join(sources) or "the file itself"

    def _repair_parity(self, path: Path) -> str:
        """Compute a share of parity again, from all parts that it protects."""
        identity = self._reach.parity_identity(path)
        self._refuse_the_only_file(path, None)
        file = DurableFile(path, over="damaged")
        readers: list[PartReader] = []
        with ExitStack() as stack:
            parts = {
                place: self._reach.open_member(identity.attempt, member, path, stack, readers)
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

    def _put(self, path: Path, pieces: Iterable[memoryview | bytes]) -> None:
        fill(DurableFile(path, over="damaged"), pieces)

    def _refuse_the_only_file(self, path: Path, attempt: Attempt | None) -> None:
        """Raise if what lies in a place belongs elsewhere, and there is no other sound file of it."""
        other = misnamed(path, attempt)
        if other is not None and not self._reach.is_elsewhere(other, path):
            raise CorruptFileError(
                "another file lies in its place, and is not written over: it may be the only one",
                found=advice(path, other, is_only=True),
                where=str(path),
            )

    def _problem(self, path: Path) -> str | None:
        """What is still wrong with a file, all of which is read; None if it is sound, and with it what it refers to."""
        try:
            return self._in_step(path) if self._reach.is_persistent(path) else self._on_node(path)
        except DeeppartError as error:
            return one_line(error)

    def _in_step(self, path: Path) -> str | None:
        """On the persistent level: what `deeppart verify` would say."""
        directory = file_of(path).parent
        key = parse_step_directory_name(directory.name)
        step = None if key is None else self._reach.steps.get(key)
        if key is None or step is None:
            return None
        files = self._files.setdefault(key, StepFiles(directory, step.manifest, self._signing))
        base, parsed = parse_base_file_name(path.name), parse_part_file_name(path.name)
        name = str(path.relative_to(directory))
        rank = base[0] if base is not None else parsed[0] if parsed is not None else 0
        # A base may be sound beside a part that is yet to be repaired.
        found = [each for each in damage_of_part(files, rank) if base is None or each.file == name]
        return found[0].message if found else None

    def _on_node(self, path: Path) -> str | None:
        parsed = parse_part_file_name(path.name)
        if is_parity_file_name(path.name) or parsed is None:
            if parse_base_file_name(path.name) is not None and not _is_base(path):
                return "it is another file than its name says"
            return file_problem(path, self._signing, lambda nbytes: None)
        rank, world_size = parsed
        attempt = self._reach.attempt_of(path, world_size)
        wanted = self._reach.wanted(attempt, rank, path, self._reach.record(attempt, rank))
        with FileSource(path) as source:
            reader = PartReader(
                source, where=str(path), expected_attempt=attempt, expected_rank=rank, signing=self._signing
            )
            if wanted and reader.index_digest not in wanted:
                raise CorruptFileError("it is encoded in another way than copies and parity here", where=str(path))
            reader.verify()
            reader.check_bases()
            for chunk in np.flatnonzero(reader.chunks["base"]).tolist():
                reader.read_chunk(chunk)
        return None


def _order(path: Path) -> int:
    """Bases before the parts that refer to them, these before the parity that is computed of them."""
    if parse_base_file_name(path.name) is not None:
        return 0
    return 2 if is_parity_file_name(path.name) else 1


def _with_digest(pieces: Iterable[memoryview | bytes], digest: str, path: Path) -> Iterator[memoryview | bytes]:
    """The bytes of a file; raises at their end if they have another digest."""
    whole = xxhash.xxh3_128()
    for piece in pieces:
        whole.update(piece)
        yield piece
    if whole.hexdigest() != digest:
        raise CorruptFileError(
            "what was found in its place has another digest",
            expected=digest,
            found=whole.hexdigest(),
            where=str(path),
        )


def _shown(source: Source) -> str:
    return source.path if source.rebuild is not None else f"{source.level} {source.path}"


def _is_base(path: Path) -> bool:
    """True if a file is the one that its name, that of a base, says; its chunks are not read."""
    parsed = parse_base_file_name(path.name)
    try:
        with FileSource(path) as source:
            return parsed is not None and PartReader(source, where=str(path)).index_digest == parsed[2]
    except (FormatError, StorageError):
        return False
