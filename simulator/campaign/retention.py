"""The checkpoints that stay on each level: the rules of ``keep``, as the library follows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from deeppart.model import REDUNDANT_LEVELS, Level

from .survival import Stored

#: A checkpoint that leaves these may leave the local level, too.
_BEFORE_LOCAL = (*REDUNDANT_LEVELS, Level.PERSISTENT)
_sequence = attrgetter("sequence")


def retire(stored: Sequence[Stored], keep: Mapping[str, int]) -> list[Stored]:
    """Take from each level the checkpoints that are older than its newest ``keep``."""
    on = dict.fromkeys(keep, 0)
    # One pass, newest first: campaigns ask at every level that is complete.
    for each in sorted(stored, key=_sequence, reverse=True):
        levels = each.levels
        for level in _BEFORE_LOCAL:
            if level in levels:
                on[level] += 1
                if 0 < keep[level] < on[level]:
                    levels.discard(level)
        if Level.LOCAL in levels:
            on[Level.LOCAL] += 1
            # What the redundant levels keep, the local level keeps too.
            if 0 < keep[Level.LOCAL] < on[Level.LOCAL] and levels.isdisjoint(REDUNDANT_LEVELS):
                levels.discard(Level.LOCAL)
    return [each for each in stored if each.levels]
