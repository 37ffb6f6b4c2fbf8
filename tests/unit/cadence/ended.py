"""Checkpoints that have come to their end, without a job."""

from __future__ import annotations

from deeppart.pending import DONE, Pending


def checkpoint(levels: tuple[str, ...], blocked_s: float, busy_s: dict[str, float], **states: str) -> Pending:
    """One that has come to its end."""
    pending = Pending(1, frozenset(levels))
    pending.note(blocked_s=blocked_s)
    for level in levels:
        pending.note_stage(level, busy_s[level])
        pending.note_level(level, states.get(level, DONE))
    return pending
