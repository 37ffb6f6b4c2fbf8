"""The ways in which a restore treats per-rank leaves if the world size has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from deeppart.errors import ConfigError, PerRankError
from deeppart.state.tree.naming import Naming

#: ``fn(path, values of the old ranks in rank order, new rank, new world size) -> value for the new rank``
PerRankFunction = Callable[[str, Sequence[Any], int, int], Any]
#: What is taken for ``per_rank``: "strict", "drop", "rank0" or a function.
PerRank = str | PerRankFunction

STRICT, DROP, RANK0, MAP = "strict", "drop", "rank0", "map"
#: All ways; MAP stands for a function.
WAYS = (STRICT, DROP, RANK0, MAP)
_MOST_NAMES = 12


def refusal_of(per_rank: object) -> ConfigError | None:
    """The reason why something is not a way to treat per-rank leaves, or None; to be asked before anything depends on
    it.
    """
    if callable(per_rank) or (isinstance(per_rank, str) and per_rank in (STRICT, DROP, RANK0)):
        return None
    return ConfigError(
        "impossible value for per_rank",
        expected='"strict", "drop", "rank0" or a function (path, old values, new rank, new world size) -> value',
        found=repr(per_rank),
    )


def way_of(per_rank: PerRank) -> str:
    """The name of the way; STRICT if it is none."""
    if callable(per_rank):
        return MAP
    return per_rank if refusal_of(per_rank) is None else STRICT


def strict_error(names: Sequence[str], saved_by: int, ranks: int, step: int) -> PerRankError:
    """That there are per-rank leaves, and nothing says what is to be done with them.

    Args:
        names: paths of the leaves.
        saved_by, ranks: number of ranks that saved the step, and that restore it.
    """
    return PerRankError(
        f"the checkpoint holds leaves of each of its {saved_by} ranks, "
        f"but {ranks} {'ranks restore' if ranks != 1 else 'rank restores'} it",
        found="per rank: " + _listed(names),
        where=f"step {step}",
        todo='pass per_rank="rank0" to give all ranks what rank 0 had, "drop" to keep the live ones, or a function '
        "that maps the old ranks' values to the new rank; or restart on as many ranks as saved it. Leaves of which "
        "only rank 0's matter, such as metrics and running statistics, but not random generators or positions in the "
        "data, need not be per rank: replicated={'metrics/*': 'rank0'}",
    )


def dropped_notice(names: Sequence[str], saved_by: int, ranks: int, step: int) -> str:
    """A notice of the leaves that a restore with ``per_rank="drop"`` has left alone; arguments as of
    :func:`strict_error`.
    """
    return (
        f"restored step {step} of {saved_by} ranks on {ranks} without what each rank had for itself "
        f'(per_rank="drop"): {_listed(names)}. What the live state had there stays as it was; where it had nothing, '
        "an item of a dict is still missing, and one of a list is None. If you need them, restore on as many ranks as "
        'saved the step, or with per_rank="rank0" or a function'
    )


def _listed(names: Sequence[str]) -> str:
    folded = Naming().news(names)
    more = f" ... ({len(names)} in all)" if len(folded) > _MOST_NAMES else ""
    return ", ".join(folded[:_MOST_NAMES]) + more
