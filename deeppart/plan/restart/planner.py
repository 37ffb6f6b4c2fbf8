"""From what survives to what is read: candidate steps, newest first, and who reads which part from where.

Pure and deterministic: every rank plans alone and gets the same answer. Parts of different attempts (another session,
another ``checkpoint()`` call of the same step number) never meet in one plan.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from deeppart.model import LEVELS, Attempt, Level
from deeppart.plan.restart.inventory import Inventory, Location
from deeppart.plan.restart.sources import FilesByAttempt, Finding, Source

_NOT_COMMITTED = "not committed to the persistent level"
_LEVEL_WORDS: dict[str, str] = {Level.PARITY: "rebuilt from parity"}


@dataclass(frozen=True, slots=True)
class Candidate:
    """An attempt that could be restored.

    Attributes:
        attempt: which checkpoint.
        sources: part number -> places to read it from, cheapest first; every part has at least one, but for what
            :meth:`without_files` leaves.
    """

    attempt: Attempt
    sources: tuple[tuple[Source, ...], ...]

    @property
    def lacking(self) -> tuple[int, ...]:
        """Parts without any source."""
        return tuple(part for part, places in enumerate(self.sources) if not places)

    def without(self, failed: Iterable[tuple[int, Location]]) -> Candidate | int:
        """The candidate less some sources of parts; the number of a part that has none left, if there is one."""
        bad = set(failed)
        rest = self._with(lambda part, source: (part, source.location) not in bad)
        return rest.lacking[0] if rest.lacking else rest

    def without_files(self, files: Collection[Location]) -> Candidate:
        """The candidate less some files, whichever parts they are of; see :attr:`lacking`."""
        return self._with(lambda _, source: source.location not in files)

    def without_parts(self, parts: Collection[int]) -> Candidate:
        """The candidate less all sources of some parts."""
        return self._with(lambda part, _: part not in parts)

    def _with(self, keeps: Callable[[int, Source], bool]) -> Candidate:
        sources = (
            tuple(source for source in places if keeps(part, source)) for part, places in enumerate(self.sources)
        )
        return Candidate(self.attempt, tuple(sources))


@dataclass(frozen=True, slots=True)
class Read:
    """Part ``part`` is read by rank ``reader`` from ``source``."""

    part: int
    reader: int
    source: Source


@dataclass(frozen=True, slots=True)
class Outlook:
    """The candidates of a restart.

    Attributes:
        candidates: recoverable attempts, best first.
        rejected: step -> why it cannot be recovered.
        notes: lines about files of the candidates that contradict the others and are ignored.
        lost: those of the rejected steps that were complete once: committed, copied or encoded.
    """

    candidates: tuple[Candidate, ...]
    rejected: tuple[tuple[int, str], ...]
    notes: tuple[str, ...] = ()
    lost: tuple[int, ...] = ()


def survey(inventory: Inventory, step: int | None = None) -> Outlook:
    """Find every recoverable attempt.

    Args:
        step: only this one; None for all.

    Returns:
        Candidates by descending step. Of several attempts at one step committed ones come first, the later first.
    """
    files = FilesByAttempt(inventory)
    candidates: list[Candidate] = []
    rejected: list[tuple[int, str]] = []
    notes: list[str] = []
    lost: list[int] = []
    for attempt in files.attempts():
        if step is not None and attempt.step != step:
            continue
        if files.is_hopeless(attempt):
            known = len(files.known_parts(attempt))
            reason = f"{known} of {attempt.world_size} parts found on nodes; {_NOT_COMMITTED}"
            rejected.append((attempt.step, reason))
            lost += [attempt.step] if files.was_complete(attempt) else []
            continue
        findings = files.findings(attempt)
        lacking = [part for part, finding in enumerate(findings) if not finding.sources]
        if lacking:
            rejected.append((attempt.step, _why_lacking(attempt, lacking, findings)))
            lost += [attempt.step] if files.was_complete(attempt) else []
            continue
        notes += [f"step {attempt.step}: {remark}" for finding in findings for remark in finding.contradictions]
        candidates.append(Candidate(attempt, tuple(finding.sources for finding in findings)))
    _sort(candidates, files)
    notes += _told_apart(files, [each.attempt for each in candidates])
    return Outlook(tuple(candidates), tuple(sorted(rejected, reverse=True)), tuple(notes), tuple(lost))


def _sort(candidates: list[Candidate], files: FilesByAttempt) -> None:
    """Best first: the later step; of sessions, that with the latest attempt at it; of a session, its last attempt.

    Whatever two attempts have in common, the order is the same on all ranks.
    """
    ages = {each.attempt: files.age(each.attempt) for each in candidates}
    latest: dict[tuple[int, str], tuple[bool, str, float, int]] = {}
    for attempt, age in ages.items():
        at = attempt.step, attempt.session
        latest[at] = max(latest.get(at, age), age)

    def rank(candidate: Candidate) -> tuple[object, ...]:
        of = candidate.attempt
        first = of.step, latest[of.step, of.session], of.session, of.sequence
        return (*first, ages[of], of.lineage, of.world_size)

    candidates.sort(key=rank, reverse=True)


def _told_apart(files: FilesByAttempt, attempts: Sequence[Attempt]) -> list[str]:
    """A line about each step at which several attempts are complete; they are in the order of preference."""
    by_step: dict[int, list[Attempt]] = {}
    for attempt in attempts:
        by_step.setdefault(attempt.step, []).append(attempt)
    lines = []
    for step, found in by_step.items():
        if len(found) > 1:
            names = "; ".join(
                f"session {each.session}, sequence {each.sequence}"
                + (f", committed {files.age(each)[1]}" if files.is_committed(each) else ", on nodes only")
                for each in found
            )
            lines.append(f"step {step}: there are {len(found)} checkpoints of it; the first of these is taken: {names}")
    return lines


def assign(candidate: Candidate, ranks: int) -> tuple[Read, ...]:
    """Give every part to one reader: its cheapest source, the least loaded of the ranks that reach it.

    Returns:
        One read per part, in part order.
    """
    load = [0] * ranks
    idlest: dict[
        int, list[tuple[int, int]]
    ] = {}  # per group of readers, a heap of (load, rank), brought up to date late
    reads: dict[int, Read] = {}
    order = sorted(range(len(candidate.sources)), key=lambda part: (-candidate.sources[part][0].nbytes, part))
    for part in order:
        source = candidate.sources[part][0]
        if id(source.readers) not in idlest:
            idlest[id(source.readers)] = [(load[rank], rank) for rank in source.readers]
            heapify(idlest[id(source.readers)])
        reader = _idlest(idlest[id(source.readers)], load)
        # The rank that will own the part's per-rank leaves saves a message.
        if part < ranks and load[part] == load[reader] and _contains(source.readers, part):
            reader = part
        load[reader] += source.nbytes
        reads[part] = Read(part, reader, source)
    return tuple(reads[part] for part in range(len(candidate.sources)))


def _idlest(heap: list[tuple[int, int]], load: list[int]) -> int:
    """The rank with the least load, of equals the lowest; loads have only grown since they were put on the heap."""
    while heap[0][0] != load[heap[0][1]]:
        rank = heap[0][1]
        heapreplace(heap, (load[rank], rank))
    return heap[0][1]


def _contains(ranks: tuple[int, ...], rank: int) -> bool:
    """True if a rank is among ascending ranks."""
    place = bisect_left(ranks, rank)
    return place < len(ranks) and ranks[place] == rank


def explain(candidate: Candidate, reads: Sequence[Read]) -> str:
    """One readable line: ``step 1200: 6 of 8 parts local, 2 of 8 parts rebuilt from parity; saved by 8 ranks``."""
    counts: dict[str, int] = {}
    for read in reads:
        counts[read.source.level] = counts.get(read.source.level, 0) + 1
    shares = ", ".join(
        f"{counts[level]} of {len(reads)} parts {_LEVEL_WORDS.get(level, level)}" for level in LEVELS if level in counts
    )
    saved = candidate.attempt.world_size
    return f"step {candidate.attempt.step}: {shares}; saved by {saved} rank{'s' if saved != 1 else ''}"


def explain_parts(candidate: Candidate, reads: Sequence[Read]) -> list[str]:
    """A readable line per part: who has it from where, and what comes next if that turns out bad."""
    lines = []
    for read, sources in zip(reads, candidate.sources, strict=True):
        first, *rest = [_describe(source, read.reader) for source in sources]
        otherwise = f"; otherwise {', then '.join(rest)}" if rest else "; there is no other source"
        lines.append(
            f"part {read.part} ({read.source.nbytes} bytes): rank {read.reader} takes it from {first}{otherwise}"
        )
    return lines


def _describe(source: Source, reader: int) -> str:
    if source.rebuild is None:
        return f"{source.level} {source.path if _contains(source.readers, reader) else source.location}"
    rebuild = source.rebuild
    data = {piece.place for piece in rebuild.data if piece.path} - {rebuild.identity.place}
    shares = {piece.place for piece in rebuild.parity}
    return (
        f"{source.path} ({len(data)} other parts and {len(shares)} shares of parity are there; "
        f"{rebuild.identity.tolerate} of {len(rebuild.identity.members)} nodes may be lost)"
    )


def _why_lacking(attempt: Attempt, lacking: list[int], findings: Sequence[Finding]) -> str:
    """One line per part that cannot be had, with everything that is known of it; parts with the same story together."""
    stories: dict[tuple[str, ...], list[int]] = {}
    for part in lacking:
        stories.setdefault(findings[part].remarks, []).append(part)
    lines = []
    for remarks, parts in stories.items():
        names = ", ".join(map(str, parts[:8])) + (" ..." if len(parts) > 8 else "")
        noun = "part" if len(parts) == 1 else "parts"
        lines.append(f"{noun} {names} of {attempt.world_size}: {'; '.join((*remarks, _NOT_COMMITTED))}")
    return "\n    ".join(lines)
