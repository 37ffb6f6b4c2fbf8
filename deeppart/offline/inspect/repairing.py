"""Repairing files from others: parts from copies, from parity or from the other level, parity from the parts.

One process that sees all the directories concerned; a running job repairs its own nodes itself
(:mod:`deeppart.repair.scrub`). Whatever is written was checked before, and takes the damaged file's place at once or
not at all. Memory: one part; two where parity is computed from parts that have to be rebuilt themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import xxhash

from deeppart import access
from deeppart.errors import CorruptFileError, DeeppartError, FormatError, StorageError
from deeppart.model import Attempt, PartRecord
from deeppart.offline.inspect.misplaced import Misplaced
from deeppart.offline.inspect.node_file_repair import DamagedNodeFile
from deeppart.offline.inspect.node_files import NodeFiles
from deeppart.offline.inspect.parity import encode_share
from deeppart.offline.inspect.reach import Reach
from deeppart.offline.inspect.repair_paths import file_of, repair_order
from deeppart.offline.inspect.repair_results import Results, is_base
from deeppart.part import (
    FileSource,
    ParityWriter,
    PartReader,
    SectionPath,
    Signing,
    is_parity_file_name,
    parse_base_file_name,
    parse_part_file_name,
    parse_section_path,
    part_file_name,
)
from deeppart.plan.restart import Source
from deeppart.recovery.load_part import LoadedPart, sound_pieces
from deeppart.storage.exclusive import Kept
from deeppart.storage.files import DurableFile, fill
from deeppart.storage.node import file_problem, one_line
from deeppart.storage.steps import is_temporary_name


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
    """Repairs files of one persistent directory and of node-local directories that belong to it."""

    def __init__(self, root: Path, nodes: NodeFiles, damaged: Sequence[Path], signing: Signing | None = None) -> None:
        self._nodes, self._signing = nodes, signing
        self._reach = Reach(root, nodes, damaged, signing)
        self._results, self._misplaced = Results(self._reach, signing), Misplaced(self._reach)
        self._kept: list[Path] = []

    def repair_nodes(self) -> list[Repaired]:
        """Everything that is damaged on the nodes: parts first, since parity is computed from them."""
        damage = sorted((each.path for each in self._nodes.damage), key=repair_order)
        return [self._attempted(path) for path in damage]

    def remove_leftovers(self) -> None:
        """Remove what repairs that were interrupted have left in committed steps, and beside damaged files on nodes.

        As far as the system lets us. Nobody writes to a committed step but who repairs it.
        """
        directories = {step.directory for step in self._reach.steps.values()}
        for directory in directories | {each.path.parent for each in self._nodes.damage}:
            with contextlib.suppress(OSError):
                for name in filter(is_temporary_name, access.names_in(directory)):
                    access.remove(directory / name)

    def repair(self, paths: Sequence[Path]) -> list[Repaired]:
        """Files of committed steps, and sections of node files: first those that lie in each other's places."""
        moved = dict(self._misplaced.straighten(paths))
        told, lost = set(map(file_of, paths)), []
        done = [Repaired(own, f"{file}, where it lay", None) for own, file in moved.items() if own not in told]
        for path in paths:
            if file_of(path) in {*moved, *moved.values()} and self._results.problem(path) is None:
                self._reach.bad.discard(str(path))
                lay = moved.get(file_of(path))
                done.append(Repaired(path, f"{lay}, where it lay" if lay else "an exchange of names", None))
            else:
                lost.append(path)
        return done + self._repair_all(lost)

    def _repair_all(self, paths: Sequence[Path]) -> list[Repaired]:
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
            attempt = self._reach.attempt_of(file, places[0].world_size)
            parts = self._reach.manifests[attempt].parts
            records = [record for record in parts if record.file.split("/")[0] == file.name]
            damaged = DamagedNodeFile(file, attempt, records, self._signing)
            with self._keeping(file) as kept:
                outcomes = damaged.repair(
                    lambda record: self._elsewhere(attempt, record, file.parent / record.file), kept.keep
                )
        except DeeppartError as error:
            return [Repaired(path, None, one_line(error)) for path in paths.values()]
        done = []
        for rank, path in sorted(paths.items()):
            outcome = outcomes.get(rank, "the file itself")  # sound when it was read again
            if isinstance(outcome, DeeppartError):
                done.append(Repaired(path, None, one_line(outcome)))
            else:
                done.append(self._checked(path, outcome))
        return done

    def _elsewhere(self, attempt: Attempt, record: PartRecord, path: Path) -> tuple[Iterator[memoryview | bytes], str]:
        wanted = self._reach.wanted(attempt, record.rank, path, record)
        part, source = self._reach.get(attempt, record.rank, path, wanted)
        return part.pieces(), _told(source)

    def _attempted(self, path: Path) -> Repaired:
        try:
            source = self._repair(path)
        except DeeppartError as error:
            return Repaired(path, None, one_line(error))
        return self._checked(path, source)

    @contextlib.contextmanager
    def _keeping(self, path: Path) -> Iterator[Kept]:
        """Around what writes over a place: keeps what lies there if it is all there is of something else."""
        with Kept(path) as kept:
            if self._misplaced.must_stay(path):
                kept.keep()
            yield kept
        if kept.name is not None:
            self._kept.append(kept.name)

    def _put(self, path: Path, pieces: Iterable[memoryview | bytes]) -> None:
        with self._keeping(path):
            fill(DurableFile(path, over="damaged"), pieces)

    def _checked(self, path: Path, source: str) -> Repaired:
        """What was put in place is read once more, as what the place requires, before it is called repaired."""
        if self._kept:
            source += f" (what lay there is kept: {', '.join(map(str, self._kept))})"
            self._kept.clear()
        problem = self._results.problem(path)
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
        part, source = self._reach.get(attempt, rank, path, wanted)
        for name, other in part.bases():
            if not is_base(path.with_name(name)):
                self._put(path.with_name(name), sound_pieces(other))
        self._write(path, part, record.digest if record and record.index_digest == source.index_digest else None)
        return _told(source)

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
            lacking = [base for base in map(path.with_name, reader.base_names) if not is_base(base)]
            bases = [(base, parse_base_file_name(base.name)) for base in lacking]
            sources = [self._repair_base(base, *parsed) for base, parsed in bases if parsed is not None]
        except (FormatError, StorageError):
            return None
        sound = sources and file_problem(path, signing, lambda nbytes: None) is None
        return ", ".join(sources) if sound else None

    def _repair_base(self, path: Path, rank: int, world_size: int, index_digest: str) -> str:
        """Find the same file anywhere else."""
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

    def _write(self, path: Path, part: LoadedPart, digest: str | None) -> None:
        """Put a part in place."""

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

        self._put(path, pieces())

    def _repair_parity(self, path: Path) -> str:
        """Compute a share of parity again, from all parts that it protects."""
        identity = self._reach.parity_identity(path)
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


def _told(source: Source) -> str:
    return source.path if source.rebuild is not None else f"{source.level} {source.path}"
