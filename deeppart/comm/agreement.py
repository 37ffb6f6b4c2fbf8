"""Small collectives with which all ranks agree before they continue.

One reduction tells all ranks whether they agree; only if they do not is anything longer exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from deeppart.comm.base import rank_names
from deeppart.comm.channel import Comm
from deeppart.comm.waiting import finish
from deeppart.errors import DeeppartError, RemoteRankError, as_error, on_ranks

T = TypeVar("T")
_TODO = "fix what that rank reports; no rank has saved or changed anything"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Outcome of :func:`agree`.

    Attributes:
        differing: names of the fields that are not equal on all ranks.
        flags: name -> the largest value on any rank.
    """

    differing: frozenset[str]
    flags: Mapping[str, int]


def agree(comm: Comm, fields: Mapping[str, int], flags: Mapping[str, int], what: str, timeout: float) -> Agreement:
    """Compare fields and combine flags over all ranks with one reduction of ``2 * fields + flags`` integers."""
    values = np.array(list(fields.values()), dtype=np.int64)
    vector = np.concatenate([values, -values, np.array(list(flags.values()), dtype=np.int64)])
    most = finish(comm, comm.maximum(vector), what, timeout)
    count = len(values)
    same = most[:count] == -most[count : 2 * count]
    differing = frozenset(name for name, equal in zip(fields, same, strict=True) if not equal)
    return Agreement(differing, dict(zip(flags, most[2 * count :].tolist(), strict=True)))


def unequal(comm: Comm, digests: npt.NDArray[np.int64], what: str, timeout: float) -> npt.NDArray[np.bool_]:
    """Where digests differ between ranks (collective), as one bool each; every rank passes the same number."""
    most = finish(comm, comm.maximum(np.concatenate([digests, -digests])), what, timeout)
    found: npt.NDArray[np.bool_] = most[: len(digests)] != -most[len(digests) :]
    return found


def raise_together(
    comm: Comm,
    error: DeeppartError | None,
    what: str,
    timeout: float,
    todo: str = _TODO,
) -> None:
    """Raise an error on every rank if any rank passes one (collective)."""
    mine = "" if error is None else str(error)
    texts = finish(comm, comm.allgather(mine.encode(errors="backslashreplace")), what, timeout)
    failed = {rank: text.decode(errors="replace") for rank, text in enumerate(texts) if text}
    if failed and error is None:
        error = RemoteRankError(
            f"{what}: refused by {rank_names(failed)}",
            found="\n    ".join(next(iter(failed.values())).split("\n")),
            where=f"seen by rank {comm.rank}",
            todo=todo,
        )
    if error is not None:
        raise on_ranks(error, comm.rank, next(iter(failed)))


def together(comm: Comm, do: Callable[[], T], failed: str, within: tuple[str, float], todo: str | None = None) -> T:
    """Call ``do`` on each rank, and continue once it has succeeded on all (collective)."""
    error: DeeppartError | None = None
    try:
        done = do()
    except Exception as problem:  # of any type: the other ranks wait for the outcome
        error = as_error(problem, failed)
    what, timeout = within
    raise_together(comm, error, what, timeout, _TODO if todo is None else todo)
    return done
