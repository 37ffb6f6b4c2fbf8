"""Operations between ranks.

Every operation is a generator that yields until it has finished and returns its result, so that one thread can run
several at once; :mod:`deeppart.comm.waiting` drives them to their end.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
#: A running operation: advance it with ``next``; its result is the generator's return value. One with several steps may
#: yield True when it has made progress: the timeout for other ranks then starts again.
Operation = Generator[bool, None, T]
Int64s = npt.NDArray[np.int64]


def rank_names(ranks: Iterable[int]) -> str:
    """Readable list of ranks, runs folded: ``ranks 0-3 and 7``."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    if not texts:
        return "no rank"
    noun = "rank" if len(runs) == 1 and runs[0][0] == runs[0][1] else "ranks"
    return f"{noun} " + (texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1])


def interleaved(operations: Iterable[Operation[Any]]) -> Operation[None]:
    """Run several operations concurrently until all have finished."""
    rest = list(operations)
    while rest:
        moved = False
        for operation in list(rest):
            try:
                moved = next(operation) or moved
            except StopIteration:
                rest.remove(operation)
                moved = True
        if rest:
            yield moved
