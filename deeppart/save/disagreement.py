"""Ranks that are in different calls: the error that says who makes which."""

from __future__ import annotations

from typing import NoReturn

from deeppart.comm.base import Comm
from deeppart.comm.waiting import finish
from deeppart.errors import RanksDisagreeError, on_ranks

_MOST_TOLD = 8


def raise_disagreement(comm: Comm, what: str, timeout: float) -> NoReturn:
    """Say on every rank what each of them has called (collective); to be called once they know that it differs."""
    texts = finish(comm, comm.allgather(what.encode()), what, timeout)
    calls = [text.decode(errors="replace") for text in texts]
    found = ", ".join(f"rank {rank}: {theirs}" for rank, theirs in enumerate(calls[:_MOST_TOLD]))
    found += " ..." if len(calls) > _MOST_TOLD else ""
    if len(set(calls)) == 1:
        found += "; the same step, but not the same number of calls, or not all with `force`"
    error = RanksDisagreeError(
        f"{what}: ranks made different calls",
        expected="the same call with the same step on every rank, and every rank making every call",
        found=found,
        where=f"rank {comm.rank}",
        todo="checkpoint(), prepare() and restore() are collective: all ranks call them, with the same arguments",
    )
    raise on_ranks(error, comm.rank)
