"""A record of suspect steps."""

from __future__ import annotations

from deeppart.model import Attempt, SuspectLeaf, Suspicion

LINEAGE, SESSION, OTHER = "1" * 32, "2" * 32, "3" * 32


RECORD = Suspicion(
    LINEAGE,
    SESSION,
    9,
    190,
    (150, 160, 170, 180),
    (
        SuspectLeaf("a/b", "rank 1 differs from rank 0", 4, 140),
        SuspectLeaf("c", "every rank holds other bytes", 6, 160),
    ),
)


def attempt(sequence: int, session: str = SESSION) -> Attempt:
    return Attempt(LINEAGE, session, sequence, 100 + 10 * sequence, 2)
