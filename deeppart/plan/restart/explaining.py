"""What is read from where, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from deeppart.model import LEVELS, Level
from deeppart.plan.restart.planner import Candidate
from deeppart.plan.restart.reading import Read, contains
from deeppart.plan.restart.sources import Source

_LEVEL_WORDS: dict[str, str] = {Level.PARITY: "rebuilt from parity"}
#: Ranks that are named of those that read one part together.
_MOST_NAMED = 8


def explain(candidate: Candidate, reads: Sequence[Read]) -> str:
    """One readable line: ``step 1200: 6 of 8 parts local, 2 of 8 parts rebuilt from parity; saved by 8 ranks``."""
    saved = candidate.attempt.world_size
    return f"step {candidate.attempt.step}: {explain_sources(reads)}; saved by {saved} rank{'s' if saved != 1 else ''}"


def explain_sources(reads: Sequence[Read]) -> str:
    """How many parts come from where: ``6 of 8 parts local, 2 of 8 parts rebuilt from parity``."""
    counts = Counter(read.source.level for read in reads)
    return ", ".join(
        f"{counts[level]} of {len(reads)} parts {_LEVEL_WORDS.get(level, level)}" for level in LEVELS if level in counts
    )


def explain_parts(candidate: Candidate, reads: Sequence[Read]) -> list[str]:
    """A readable line per part: who has it from where, and what comes next if that turns out bad."""
    lines = []
    for read, sources in zip(reads, candidate.sources, strict=True):
        first, *rest = [_describe(source, read.reader) for source in sources]
        otherwise = f"; otherwise {', then '.join(rest)}" if rest else "; there is no other source"
        lines.append(f"part {read.part} ({read.source.nbytes} bytes): {_takers(read)} from {first}{otherwise}")
    return lines


def _takers(read: Read) -> str:
    if not read.portions:
        return f"rank {read.reader} takes it"
    names = ", ".join(map(str, read.readers[:_MOST_NAMED])) + (", ..." if len(read.readers) > _MOST_NAMED else "")
    return f"{len(read.readers)} ranks ({names}) take a stretch of it each"


def _describe(source: Source, reader: int) -> str:
    if source.rebuild is None:
        return f"{source.level} {source.path if contains(source.readers, reader) else source.location}"
    rebuild = source.rebuild
    data = {piece.place for piece in rebuild.data if piece.path} - {rebuild.identity.place}
    shares = {piece.place for piece in rebuild.parity}
    return (
        f"{source.path} ({len(data)} other parts and {len(shares)} shares of parity are there; "
        f"{rebuild.identity.tolerate} of {len(rebuild.identity.members)} nodes may be lost)"
    )
