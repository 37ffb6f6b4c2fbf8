"""Recovers a step: reads its parts from surviving sources into memory, collectively, without using the live state.

Every requested chunk is read by exactly one rank, and its digest is checked before any rank continues. If a source
turns out to be bad, then or when its bytes are used, the part's next source is used; if a step cannot be recovered, the
step before it. All reasons are kept for the error or the report.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from deeppart.comm import Comm
from deeppart.errors import (
    CheckpointError,
    DeeppartError,
    RestoreError,
    as_error,
    lacks_descriptors,
    on_ranks,
    one_line,
)
from deeppart.model import LEVELS, MEMORY, Attempt
from deeppart.nodes import Arena, Bytes, NoExchangeMemoryError, Rebuilt, Wanted, padded_bytes, rebuild_parts
from deeppart.part import FileSource, MemorySource, Signing, StoredBytes
from deeppart.plan.restart import (
    Candidate,
    Inventory,
    Location,
    Read,
    assign,
    explain,
    on_node,
    survey,
)
from deeppart.recovery.inventory import Run, no_more_files
from deeppart.recovery.narrow_reading import NarrowReading
from deeppart.recovery.parts import LEAST_THREADS, Chosen, LoadedPart, OpenedPart, load_part
from deeppart.state.capture import Staging, staging_bytes

#: Lines of an error about a step that cannot be recovered, at most.
_MOST_REASONS = 40
_BUILD_AGAIN = "the live state holds some bytes of the step: build it again, and restore again"
#: (part, the failed source, why, and whether that is not the source's fault: see :func:`lacks_descriptors`)
SourceFailure = tuple[int, Location, str, bool]


@dataclass(frozen=True, slots=True)
class Recovered:
    """A step whose parts are all in the memory of some rank.

    Attributes:
        candidate: the checkpoint, without the sources that turned out to be bad.
        reads: the readers and source of each part, in part order.
        mine: part number -> the chunks that this rank has read, for parts of which it has read any.
    """

    candidate: Candidate
    reads: tuple[Read, ...]
    mine: dict[int, LoadedPart]

    @property
    def slowest_level_read(self) -> str:
        """The slowest level read: the highest level that a part had to come from; memory counts as local."""
        levels = (read.source.level for read in self.reads if read.source.level != MEMORY)
        return max(levels, key=LEVELS.index, default=LEVELS[0])

    @property
    def attempt(self) -> Attempt:
        """The checkpoint."""
        return self.candidate.attempt

    def led_by(self, rank: int) -> list[int]:
        """Numbers of the parts whose index a rank sends to the others; numbers, so that no bytes are referenced."""
        return [read.part for read in self.reads if read.reader == rank]


class SourcesFailedError(Exception):
    """Sources failed when bytes read from them were used; raised on all ranks.

    Attributes:
        failed: the sources and reasons.
        has_begun: the live state may have bytes of the step, so that only this step may be restored.
    """

    def __init__(self, failed: list[SourceFailure], *, has_begun: bool) -> None:
        super().__init__(failed)
        self.failed, self.has_begun = failed, has_begun


@dataclass(frozen=True, slots=True)
class Reading:
    """How the ranks read parts.

    Attributes:
        comm: the communicator.
        run: drives an operation between the ranks to its end.
        staging: memory for the chunks that this rank reads.
        arena: memory for exchanges that rebuild parts.
        signing: the keys to check with, or None.
        threads: this rank's threads that read and check.
        at: converts a source's path in text form, relative to its base directory, to a path.
        open_source: opens a source.
    """

    comm: Comm
    run: Run
    staging: Staging
    arena: Arena
    signing: Signing | None = None
    threads: int = LEAST_THREADS
    at: Callable[[str], Path] = Path
    open_source: Callable[[str], StoredBytes] = FileSource


def recover(
    reading: Reading,
    inventory: Inventory,
    step: int | None,
    narrow: NarrowReading | None = None,
    use: Callable[[Recovered], None] | None = None,
) -> tuple[Recovered | None, tuple[str, ...]]:
    """Read the newest recoverable step into memory, and use it (collective).

    None if there is no checkpoint, or, with an inventory of the newest one alone, if that cannot be recovered.
    """
    outlook = survey(inventory, step)
    reasons: list[str] = []
    for candidate in outlook.candidates:
        newer = [number for number in outlook.rejected if number[0] > candidate.attempt.step]
        recovered, lines = read_candidate(reading, candidate, narrow=narrow, use=use)
        reasons += lines
        if recovered is not None:
            passed_over = [f"step {number}: {reason}" for number, reason in newer]
            return recovered, (*inventory.damaged, *inventory.problems, *outlook.notes, *passed_over, *reasons)
    reasons = [*(f"step {number}: {reason}" for number, reason in outlook.rejected), *reasons]
    if inventory.since is not None:
        return None, tuple(reasons)
    nothing_is_lost = not outlook.candidates and not inventory.damaged and not outlook.lost
    if step is None and nothing_is_lost and not inventory.unread:
        return None, (*reasons, *inventory.problems)
    reasons += [*inventory.damaged, *inventory.problems]
    rank = reading.comm.rank
    raise on_ranks(_cannot_recover(rank, inventory, step, reasons), rank)


def _cannot_recover(rank: int, inventory: Inventory, step: int | None, reasons: list[str]) -> RestoreError:
    others = [candidate.attempt.step for candidate in survey(inventory).candidates if candidate.attempt.step != step]
    if step is not None and others:
        todo = f"the newest step that can be recovered is {max(others)}; restore without `step`, or name it"
    else:
        todo = "bring the missing nodes or files back; or start over in a new persistent_dir"
    more = [f"and {len(reasons) - _MOST_REASONS} more lines"] if len(reasons) > _MOST_REASONS else []
    return RestoreError(
        "no checkpoint can be recovered" if step is None else f"step {step} cannot be recovered",
        found="\n    ".join([*reasons[:_MOST_REASONS], *more]) or "it was found at no level",
        where=f"rank {rank}",
        tried="every source of every step listed" if reasons else None,
        todo=todo,
    )


def read_candidate(
    reading: Reading,
    candidate: Candidate,
    wanted: Callable[[Read], bool] | None = None,
    narrow: NarrowReading | None = None,
    use: Callable[[Recovered], None] | None = None,
) -> tuple[Recovered | None, list[str]]:
    """Read parts, falling back from bad sources; None if a part has no good one (collective)."""
    comm, run, label = reading.comm, reading.run, f"step {candidate.attempt.step}"
    lines: list[str] = []
    sources, has_begun, is_last_try = candidate, False, False

    def chosen_of(opened: Mapping[int, OpenedPart]) -> dict[int, Chosen]:
        if narrow is None or reads[0].source.rebuild is not None:
            return {}
        readers = {part: each.reader for part, each in opened.items()}
        return narrow.choose(comm, reads[0].reader, candidate.attempt, readers, run)

    try:
        while True:
            reads = assign(candidate, comm.size, whole=wanted is not None)
            reads = reads if wanted is None else tuple(read for read in reads if wanted(read))
            mine, space, failures = _read_mine(reading, candidate.attempt, reads, chosen_of)
            failed = gather_failures(comm, failures, f"{label}, reading", run)
            if not failed and any(read.source.rebuild for read in reads):
                for careful in (False, True):  # nearly always, the files are undamaged
                    what = f"{label}, rebuilding{' once more, block by block' if careful else ''}"
                    rebuilt, failures, shortage = _rebuild_mine(reading, candidate.attempt, reads, space, careful, what)
                    failed = gather_failures(comm, failures, what, run, shortage if careful else "")
                    mine |= rebuilt
                    if not failed:
                        break
            if not failed:
                recovered = Recovered(candidate, reads, mine)
                try:
                    if use is not None:
                        use(recovered)
                    return recovered, [*lines, explain(candidate, reads)]
                except SourcesFailedError as error:
                    failed, has_begun = error.failed, has_begun or error.has_begun
                    mine.clear()  # before its memory is reused
            lines += [f"{label}: {reason}" for _, _, reason, _ in failed]
            rest = candidate.without([(part, location) for part, location, *_ in failed])
            if isinstance(rest, int):
                lines.append(f"{label}: no other source for part {rest}")
                if not has_begun:
                    return None, lines
                if is_last_try:
                    raise _half_filled(comm.rank, label, lines)
                # What could be read before the filling began may have failed just once.
                rest, is_last_try = sources, True
            candidate = rest
    except DeeppartError as error:
        if has_begun and error.todo != _BUILD_AGAIN:
            error.todo = f"{error.todo}; {_BUILD_AGAIN}" if error.todo else _BUILD_AGAIN
        raise


def _half_filled(rank: int, label: str, lines: list[str]) -> RestoreError:
    return RestoreError(
        f"{label}: a source failed while the live state was being filled, and there is no other",
        found="\n    ".join(lines[-_MOST_REASONS:]),
        where=f"rank {rank}",
        tried="every source of this step, twice; an older one would leave bytes of both",
        todo=_BUILD_AGAIN,
    )


def gather_failures(
    comm: Comm, failures: list[SourceFailure], what: str, run: Run, shortage: str = ""
) -> list[SourceFailure]:
    """The failures of all ranks, on every rank."""
    message = [(part, location.rank, location.path, reason, lacks) for part, location, reason, lacks in failures]
    mine = json.dumps([message, shortage]).encode() if message or shortage else b""
    texts = [json.loads(text or '[[], ""]') for text in run(comm.allgather(mine), what)]
    received = [(rank, each) for rank, (sent, _) in enumerate(texts) for each in sent]
    lines = [f"rank {rank}: {reason}" for rank, (_, _, _, reason, lacks) in received if lacks]
    if received:
        lines += [f"rank {rank}: {reason}" for rank, (_, reason) in enumerate(texts) if reason]
    if lines:
        raise no_more_files(f"{what}: the files of a checkpoint cannot be opened", lines, comm.rank)
    return [(part, Location(rank, path), reason, lacks) for _, (part, rank, path, reason, lacks) in received]


def _read_mine(
    reading: Reading,
    attempt: Attempt,
    reads: tuple[Read, ...],
    chosen_of: Callable[[Mapping[int, OpenedPart]], dict[int, Chosen]],
) -> tuple[dict[int, LoadedPart], dict[int, Bytes], list[SourceFailure]]:
    """Read this rank's parts; also memory for those that it will rebuild, and failures."""
    rank = reading.comm.rank
    assigned = [read for read in reads if rank in read.readers]
    opened: dict[int, OpenedPart] = {}
    mine: dict[int, LoadedPart] = {}
    failures: list[SourceFailure] = []
    with ExitStack() as files:
        for read in assigned:
            if read.source.rebuild is None:
                try:
                    source = files.enter_context(reading.open_source(read.source.path))
                    opened[read.part] = OpenedPart(source, read, attempt, reading.signing, rank)
                except Exception as error:  # of any type: the other ranks wait for the parts that this one reads
                    failures.append(failure_of(read, rank, error))
        chosen = chosen_of(opened)
        try:
            rooms = _rooms(assigned, opened, chosen, reading.staging)
        except MemoryError as error:
            return {}, {}, [(read.part, read.source.location, f"rank {rank}: {error}", False) for read in assigned]
        for read in assigned:
            if read.part not in opened:
                continue
            try:
                mine[read.part] = opened[read.part].load(rooms[read.part], reading.threads, chosen.get(read.part))
            except Exception as error:
                failures.append(failure_of(read, rank, error))
    return mine, {part: room for part, room in rooms.items() if part not in opened}, failures


def failure_of(read: Read, rank: int, error: Exception) -> SourceFailure:
    """A line about a failed source and its node; other nodes may have a file with the same path."""
    line = one_line(as_error(error, f"reading {read.source.path} failed"))
    line = on_node(line, rank) if read.source.is_on_a_node else line
    return read.part, read.source.location, line, lacks_descriptors(error)


def _rooms(
    assigned: list[Read], opened: dict[int, OpenedPart], chosen: dict[int, Chosen], staging: Staging
) -> dict[int, Bytes]:
    """Staging memory for every part that needs some: part -> its buffer."""
    lengths: dict[int, int] = {}
    for read in assigned:
        if read.source.rebuild is not None:
            lengths[read.part] = padded_bytes(read.source.rebuild.identity)
        elif read.part in opened:
            lengths[read.part] = opened[read.part].room_bytes(chosen.get(read.part))
    memory = staging_bytes(staging.reserve(sum(lengths.values())))
    rooms, at = {}, 0
    for part, length in lengths.items():
        rooms[part] = memory[at : at + length]
        at += length
    return rooms


def _rebuild_mine(
    reading: Reading, attempt: Attempt, reads: tuple[Read, ...], space: dict[int, Bytes], careful: bool, what: str
) -> tuple[dict[int, LoadedPart], list[SourceFailure], str]:
    """Rebuild parts without a surviving copy (collective)."""
    comm = reading.comm
    wanted = [Wanted(read.part, read.reader, read.source.rebuild) for read in reads if read.source.rebuild]
    try:
        rebuilt = reading.run(rebuild_parts(comm, wanted, space, reading.arena, reading.at, careful=careful), what)
    except NoExchangeMemoryError as error:  # on all ranks
        rebuilt = Rebuilt(dict.fromkeys((each.part for each in wanted), one_line(error)))
    mine: dict[int, LoadedPart] = {}
    failures: list[SourceFailure] = []
    for read in reads:
        if read.source.rebuild is None or read.reader != comm.rank:
            continue
        try:
            if read.part in rebuilt.refused:
                raise CheckpointError(rebuilt.refused[read.part], where=read.source.path)
            name = f"part {read.part}, rebuilt from {read.source.path}"
            data = space[read.part][: read.source.nbytes]
            mine[read.part] = load_part(MemorySource(data.data, name), read, attempt, reading.signing, reading.threads)
        except Exception as error:
            failures.append(failure_of(read, comm.rank, error))
    return mine, failures, one_line(rebuilt.shortage) if rebuilt.shortage is not None else ""
