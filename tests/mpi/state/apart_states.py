"""States of other structures on other ranks, saved and restored."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import deeppart
from tests.mpi.on_nodes import config
from tests.states import blank


def save(comm: Any, directory: Path, make: Any, rules: Any = "auto", steps: int = 2) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config(directory, replicated=rules), comm) as ck:
            for step in range(1, steps + 1):
                ck.checkpoint(make(comm.rank), step=step).wait(timeout=200)
    return [str(w.message) for w in caught if issubclass(w.category, deeppart.DeeppartWarning)]


def restore(comm: Any, directory: Path, make: Any, per_rank: Any = "strict", clear: bool = True) -> Any:
    state = make(comm.rank)
    if clear:
        state = blank_tensors(state)
    with deeppart.Checkpointer(config(directory), comm) as ck, warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.errors.PerRankNotice)
        try:
            return ck.restore(state, per_rank=per_rank), state
        except deeppart.DeeppartError as error:
            return type(error), str(error)


def blank_tensors(state: Any) -> Any:
    """The same structure, with None where there is None, and other contents."""
    if state is None:
        return None
    if isinstance(state, dict):
        return type(state)((key, blank_tensors(item)) for key, item in state.items())
    if isinstance(state, list):
        return [blank_tensors(item) for item in state]
    return blank(state)
