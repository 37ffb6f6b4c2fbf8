"""Recovers a step: opens its parts at surviving sources, and checks what is needed of them, collectively.

Every needed chunk is read by exactly one rank, and its digest is checked before any rank continues. If a source turns
out to be bad, when it is opened, read or used, the part's next source is used; if a step cannot be recovered, the step
before it. All reasons are kept for the error or the report.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from deeppart.comm import Operation
from deeppart.errors import (
    CheckpointError,
    DeeppartError,
    RestoreError,
    as_error,
    lacks_resources,
    on_ranks,
    one_line,
)
from deeppart.model import LEVELS, MEMORY, Attempt
from deeppart.nodes import Bytes, NotBegunError, Rebuilt, Wanted, begin_together, padded_bytes, rebuild_parts
from deeppart.part import MemorySource, PartReader
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
from deeppart.recovery.inventory import out_of_resources
from deeppart.recovery.parts import CheckedPart, Chosen
from deeppart.recovery.ranks import Ranks

T = TypeVar("T")
#: Lines of an error about a step that cannot be recovered, at most.
_MOST_REASONS = 40
_BUILD_AGAIN = "the live state holds some bytes of the step: build the state again, and restore again"
#: (part, the failed source, why, and whether that is not the source's fault: see :func:`lacks_resources`)
SourceFailure = tuple[int, Location, str, bool]


@dataclass(frozen=True, slots=True)
class Recovered:
    """A step whose parts are all open on some rank; see :func:`check_chunks`.

    Attributes:
        candidate: the checkpoint, without the sources that turned out to be bad.
        reads: the readers and source of each part, in part order.
        mine: part number -> the part, for those of which this rank reads any chunks.
    """

    candidate: Candidate
    reads: tuple[Read, ...]
    mine: dict[int, CheckedPart]

    @property
    def slowest_level_read(self) -> str:
        """The slowest level read: the highest level that a part had to come from; memory counts as local."""
        levels = (read.source.level for read in self.reads if read.source.level != MEMORY)
        return max(levels, key=LEVELS.index, default=LEVELS[0])

    @property
    def attempt(self) -> Attempt:
        """The checkpoint."""
        return self.candidate.attempt

    def reader(self, part: int) -> PartReader:
        """The index, spans and document of a part that this rank has opened or rebuilt."""
        return self.mine[part].reader

    def forget(self) -> None:
        """Drop what refers to the memory of parts, which may be locked."""
        self.mine.clear()

    def led_by(self, rank: int) -> list[int]:
        """Numbers of the parts whose index a rank sends to the others; numbers, so that no bytes are referenced."""
        return [read.part for read in self.reads if read.reader == rank]


class SourcesFailedError(Exception):
    """Sources failed when they were read, or when bytes read from them were used; raised on all ranks.

    Attributes:
        failed: the sources and reasons.
        has_begun: the live state may have bytes of the step, so that only this step may be restored.
    """

    def __init__(self, failed: list[SourceFailure], *, has_begun: bool) -> None:
        super().__init__(failed)
        self.failed, self.has_begun = failed, has_begun


def recover(
    ranks: Ranks,
    inventories: Iterable[Inventory],
    step: int | None,
    use: Callable[[Recovered], T],
) -> tuple[T | None, Inventory, tuple[str, ...]]:
    """Open the newest recoverable step, and use it (collective).

    Args:
        ranks: that restore it.
        inventories: what there is; of the newest checkpoint first, perhaps, and of all then. Not empty.
        step: the one that is asked for, if any.
        use: see :func:`read_candidate`.

    Returns:
        What ``use`` has returned, or None if there is no checkpoint; the inventory with the step; lines about how it
        was found.
    """
    for inventory in inventories:
        outlook = survey(inventory, step)
        reasons: list[str] = []
        for candidate in outlook.candidates:
            newer = [number for number in outlook.rejected if number[0] > candidate.attempt.step]
            found, lines = read_candidate(ranks, candidate, use)
            reasons += lines
            if found is not None:
                passed_over = [f"step {number}: {reason}" for number, reason in newer]
                explanation = (*inventory.damaged, *inventory.problems, *outlook.notes, *passed_over, *reasons)
                return found, inventory, explanation
    reasons = [*(f"step {number}: {reason}" for number, reason in outlook.rejected), *reasons]
    nothing_is_lost = not outlook.candidates and not inventory.damaged and not outlook.lost
    if step is None and nothing_is_lost and not inventory.unread:
        return None, inventory, (*reasons, *inventory.problems)
    reasons += [*inventory.damaged, *inventory.problems]
    raise on_ranks(_cannot_recover(ranks.rank, inventory, step, reasons), ranks.rank)


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
    ranks: Ranks,
    candidate: Candidate,
    use: Callable[[Recovered], T],
    wanted: Callable[[Read], bool] | None = None,
) -> tuple[T | None, list[str]]:
    """Open parts, falling back from bad sources, and use them; None if a part has no good one (collective).

    Args:
        ranks: that read it.
        candidate: the checkpoint.
        use: reads what it needs. If it raises SourcesFailedError, it is called again with other sources.
        wanted: the parts to read, which are not divided, if not all.
    """
    label = f"step {candidate.attempt.step}"
    lines: list[str] = []
    sources, has_begun, is_last_try = candidate, False, False
    try:
        while True:
            with ExitStack() as files:
                recovered, failed = _open(ranks, candidate, wanted, files)
                try:
                    if not failed:
                        return use(recovered), [*lines, explain(candidate, recovered.reads)]
                except SourcesFailedError as error:
                    failed, has_begun = error.failed, has_begun or error.has_begun
                recovered.forget()
            lines += [f"{label}: {reason}" for _, _, reason, _ in failed]
            rest = candidate.without([(part, location) for part, location, *_ in failed])
            if isinstance(rest, int):
                lines.append(f"{label}: no other source for part {rest}")
                if not has_begun:
                    return None, lines
                if is_last_try:
                    raise _half_filled(ranks.rank, label, lines)
                # What could be read before the filling began may have failed just once.
                rest, is_last_try = sources, True
            candidate = rest
    except DeeppartError as error:
        if has_begun:
            begun(error)
        raise


def _open(
    ranks: Ranks, candidate: Candidate, wanted: Callable[[Read], bool] | None, files: ExitStack
) -> tuple[Recovered, list[SourceFailure]]:
    """Open parts at their first sources, and rebuild those without a file; also all ranks' failures (collective)."""
    attempt, what = candidate.attempt, f"{ranks.doing}, step {candidate.attempt.step}, "
    reads = assign(candidate, ranks.comm.size, whole=wanted is not None)
    reads = reads if wanted is None else tuple(read for read in reads if wanted(read))
    mine, failures = _open_mine(ranks, attempt, reads, files)
    failed = gather_failures(ranks, failures, f"{what}opening")
    rebuilds = [read for read in reads if read.source.rebuild is not None]
    if rebuilds and not failed:
        for careful in (False, True):  # nearly always, the files are undamaged
            doing = f"{what}rebuilding{' once more, block by block' if careful else ''}"
            rebuilt, failures, shortage = _rebuild_mine(ranks, attempt, rebuilds, careful, doing)
            failed = gather_failures(ranks, failures, doing, shortage if careful else "")
            if not failed:
                mine |= rebuilt
                break
    return Recovered(candidate, reads, mine), failed


def check_chunks(ranks: Ranks, recovered: Recovered, chosen: Mapping[int, Chosen] | None = None) -> None:
    """See that chunks of the opened parts are what was saved (collective); all of parts not in ``chosen``.

    Raises:
        SourcesFailedError: some source could not be read.
    """
    failures: list[SourceFailure] = []
    for read in recovered.reads:
        if read.part in recovered.mine:
            try:
                recovered.mine[read.part].check(None if chosen is None else chosen.get(read.part), ranks.threads)
            except Exception as error:  # of any type: the other ranks wait for the parts that this one reads
                failures.append(failure_of(read, ranks.rank, error))
    if failed := gather_failures(ranks, failures, f"{ranks.doing}, step {recovered.attempt.step}, reading"):
        raise SourcesFailedError(failed, has_begun=False)


def begun(error: DeeppartError) -> DeeppartError:
    """The error, which says what to do once the live state may hold bytes of the step."""
    if "build the state again" not in (error.todo or ""):
        error.todo = f"{error.todo}; {_BUILD_AGAIN}" if error.todo else _BUILD_AGAIN
    return error


def _half_filled(rank: int, label: str, lines: list[str]) -> RestoreError:
    return RestoreError(
        f"{label}: a source failed while the live state was being filled, and there is no other",
        found="\n    ".join(lines[-_MOST_REASONS:]),
        where=f"rank {rank}",
        tried="every source of this step, twice; an older one would leave bytes of both",
        todo=f"{_BUILD_AGAIN}; if that fails, too, an older step",
    )


def gather_failures(ranks: Ranks, failures: list[SourceFailure], what: str, shortage: str = "") -> list[SourceFailure]:
    """The failures of all ranks, on every rank."""
    message = [(part, location.rank, location.path, reason, lacks) for part, location, reason, lacks in failures]
    mine = json.dumps([message, shortage]).encode() if message or shortage else b""
    texts = [json.loads(text or '[[], ""]') for text in ranks.finish(ranks.comm.allgather(mine), what)]
    received = [(rank, each) for rank, (sent, _) in enumerate(texts) for each in sent]
    lines = [f"rank {rank}: {reason}" for rank, (_, _, _, reason, lacks) in received if lacks]
    if received:
        lines += [f"rank {rank}: {reason}" for rank, (_, reason) in enumerate(texts) if reason]
    if lines:
        raise out_of_resources(f"{what}: the files of a checkpoint cannot be read", lines, ranks.rank)
    return [(part, Location(rank, path), reason, lacks) for _, (part, rank, path, reason, lacks) in received]


def _open_mine(
    ranks: Ranks, attempt: Attempt, reads: Sequence[Read], files: ExitStack
) -> tuple[dict[int, CheckedPart], list[SourceFailure]]:
    """Open this rank's parts; and failures."""
    opened: dict[int, CheckedPart] = {}
    failures: list[SourceFailure] = []
    for read in reads:
        if ranks.rank in read.readers and read.source.rebuild is None:
            try:
                source = files.enter_context(ranks.open_source(read.source.path))
                opened[read.part] = CheckedPart.of(source, read, attempt, ranks.signing, ranks.rank)
            except Exception as error:  # of any type: the other ranks wait for the parts that this one reads
                failures.append(failure_of(read, ranks.rank, error))
    return opened, failures


def failure_of(read: Read, rank: int, error: Exception) -> SourceFailure:
    """A line about a failed source and its node; other nodes may have a file with the same path."""
    line = one_line(as_error(error, f"reading {read.source.path} failed"))
    line = on_node(line, rank) if read.source.is_on_a_node else line
    return read.part, read.source.location, line, lacks_resources(error)


def _rebuild_mine(
    ranks: Ranks, attempt: Attempt, reads: Sequence[Read], careful: bool, what: str
) -> tuple[dict[int, CheckedPart], list[SourceFailure], str]:
    """Rebuild parts without a surviving copy (collective)."""
    wanted = [Wanted(read.part, read.reader, read.source.rebuild) for read in reads if read.source.rebuild]
    space: dict[int, Bytes] = {}

    def begin() -> Operation[Rebuilt]:
        lengths = {each.part: padded_bytes(each.rebuild.identity) for each in wanted if each.reader == ranks.rank}
        space.update({part: np.empty(length, dtype=np.uint8) for part, length in lengths.items()})
        return rebuild_parts(ranks.comm, wanted, space, ranks.arena, ranks.at, careful=careful)

    try:
        rebuilt = ranks.finish(begin_together(ranks.comm, begin), what)
    except NotBegunError as error:  # on all ranks
        rebuilt = Rebuilt(dict.fromkeys((each.part for each in wanted), one_line(error)))
    mine: dict[int, CheckedPart] = {}
    failures: list[SourceFailure] = []
    for read in reads:
        if read.reader != ranks.rank:
            continue
        try:
            if read.part in rebuilt.refused:
                raise CheckpointError(rebuilt.refused[read.part], where=read.source.path)
            name = f"part {read.part}, rebuilt from {read.source.path}"
            data = space[read.part][: read.source.nbytes]
            mine[read.part] = CheckedPart.of(MemorySource(data.data, name), read, attempt, ranks.signing)
            mine[read.part].check(None, ranks.threads)
        except Exception as error:
            failures.append(failure_of(read, ranks.rank, error))
    return mine, failures, one_line(rebuilt.shortage) if rebuilt.shortage is not None else ""
