"""The checkpoints that stay on each level: the rules of ``keep``, as the library follows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deeppart.model import REDUNDANT_LEVELS, Level

from .survival import Stored


def retire(stored: Sequence[Stored], keep: Mapping[str, int]) -> list[Stored]:
    """Take from each level the checkpoints that are older than its newest ``keep``.

    Args:
        stored: all checkpoints; ``levels`` of those that are too old is changed in place.
        keep: level -> how many steps stay there; 0 keeps all.

    Returns:
        Those that are still on a level, in the order given.
    """
    newest = sorted(stored, key=lambda each: -each.sequence)
    for level in (*REDUNDANT_LEVELS, Level.PERSISTENT):
        _drop(level, [each for each in newest if level in each.levels][keep[level] :] if keep[level] else [])
    local = [each for each in newest if Level.LOCAL in each.levels][keep[Level.LOCAL] :] if keep[Level.LOCAL] else []
    # What the redundant levels keep, the local level keeps too.
    _drop(Level.LOCAL, [each for each in local if not each.levels & set(REDUNDANT_LEVELS)])
    return [each for each in stored if each.levels]


def _drop(level: str, old: Sequence[Stored]) -> None:
    for each in old:
        each.levels.discard(level)
