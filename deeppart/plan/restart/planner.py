"""Finds the steps that can be restored, newest first, and the sources of their parts.

Pure and deterministic: every rank plans alone and gets the same result. A plan never has parts of different attempts
(another session, or another ``checkpoint()`` call with the same step number).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from deeppart.model import Attempt
from deeppart.plan.restart.inventory import Inventory, Location
from deeppart.plan.restart.sources import FilesByAttempt, Finding, Source

_NOT_COMMITTED = "not committed to the persistent level"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An attempt that could be restored.

    Attributes:
        attempt: the attempt.
        sources: part number -> sources, cheapest first; every part has at least one, except after
            :meth:`without_files`.
    """

    attempt: Attempt
    sources: tuple[tuple[Source, ...], ...]

    @property
    def lacking(self) -> tuple[int, ...]:
        """Parts without any source."""
        return tuple(part for part, places in enumerate(self.sources) if not places)

    def without(self, failed: Iterable[tuple[int, Location]]) -> Candidate | int:
        """The candidate without some sources of parts; or the number of a part that has none left."""
        bad = set(failed)
        rest = self._with(lambda part, source: (part, source.location) not in bad)
        return rest.lacking[0] if rest.lacking else rest

    def without_files(self, files: Collection[Location]) -> Candidate:
        """The candidate without some files, whichever parts they belong to; see :attr:`lacking`."""
        return self._with(lambda _, source: source.location not in files)

    def _with(self, keeps: Callable[[int, Source], bool]) -> Candidate:
        sources = (
            tuple(source for source in places if keeps(part, source)) for part, places in enumerate(self.sources)
        )
        return Candidate(self.attempt, tuple(sources))


@dataclass(frozen=True, slots=True)
class Outlook:
    """The candidates of a restart.

    Attributes:
        candidates: recoverable attempts, best first.
        rejected: step -> why it cannot be recovered.
        notes: lines about files of candidates that contradict others and are ignored.
        lost: the rejected steps that were complete once: committed, copied or encoded.
    """

    candidates: tuple[Candidate, ...]
    rejected: tuple[tuple[int, str], ...]
    notes: tuple[str, ...] = ()
    lost: tuple[int, ...] = ()


def survey(inventory: Inventory, step: int | None = None) -> Outlook:
    """Every recoverable attempt, but for steps that were not looked for; found once for each inventory and step."""
    if step not in inventory.outlooks:
        inventory.outlooks[step] = _survey(inventory, step)
    return inventory.outlooks[step]


def _survey(inventory: Inventory, step: int | None) -> Outlook:
    files = FilesByAttempt(inventory)
    candidates: list[Candidate] = []
    rejected: list[tuple[int, str]] = []
    notes: list[str] = []
    lost: list[int] = []
    for attempt in files.attempts():
        if (step is not None and attempt.step != step) or attempt.step < (inventory.since or 0):
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
    notes += _ambiguous_steps(files, [each.attempt for each in candidates])
    return Outlook(tuple(candidates), tuple(sorted(rejected, reverse=True)), tuple(notes), tuple(lost))


def _sort(candidates: list[Candidate], files: FilesByAttempt) -> None:
    """Best first: the later step; of sessions, the one with the latest attempt at it; of a session, its last attempt.

    The order is total, so it is the same on all ranks.
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


def _ambiguous_steps(files: FilesByAttempt, attempts: Sequence[Attempt]) -> list[str]:
    """A line about each step with several complete attempts, which are in the order of preference."""
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
            lines.append(f"step {step}: there are {len(found)} checkpoints of it; the first of these is used: {names}")
    return lines


def _why_lacking(attempt: Attempt, lacking: list[int], findings: Sequence[Finding]) -> str:
    """One line per part without a source, with everything known about it; parts with the same reasons share a line."""
    stories: dict[tuple[str, ...], list[int]] = {}
    for part in lacking:
        stories.setdefault(findings[part].remarks, []).append(part)
    lines = []
    for remarks, parts in stories.items():
        names = ", ".join(map(str, parts[:8])) + (" ..." if len(parts) > 8 else "")
        noun = "part" if len(parts) == 1 else "parts"
        lines.append(f"{noun} {names} of {attempt.world_size}: {'; '.join((*remarks, _NOT_COMMITTED))}")
    return "\n    ".join(lines)
