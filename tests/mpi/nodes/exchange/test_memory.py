"""No memory for an exchange on one rank: it begins on none, and nobody waits.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import deeppart
import deeppart.repair.heal
from deeppart.errors import CheckpointError
from deeppart.nodes import Arena
from tests.mpi.lost_nodes import PARITY, PARTNER, config, lose, restore, short, state

pytestmark = pytest.mark.mpi(min_size=4)


def without_memory_to_exchange(comm: Any, directory: Path, settings: dict[str, Any]) -> list[Any]:
    """One rank has not the memory for what is under way between nodes: when a step is saved, and at a restore."""
    level = "parity" if settings is PARITY else "partner"

    results: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.errors.DeeppartWarning)
        with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
            for step in (1, 2):
                with pytest.MonkeyPatch.context() as patch:
                    if step == 1 and comm.rank == 1:
                        patch.setattr(Arena, "reserve", short)
                    began = time.monotonic()
                    pending = ck.checkpoint(state(step, comm.rank), step)
                    try:
                        pending.wait(level)
                        results.append("complete")
                    except CheckpointError as error:
                        results.append("there is no memory for an exchange" in str(error))
                    results.append(time.monotonic() - began < 60.0)
    lose(comm, directory, 2)
    with pytest.MonkeyPatch.context() as patch:
        if comm.rank == 1:
            patch.setattr(Arena, "reserve", short)
        began = time.monotonic()
        try:
            results.append(restore(comm, directory, settings)[:2])
        except deeppart.DeeppartError as error:
            results.append("there is no memory for an exchange" in str(error))
        results.append(time.monotonic() - began < 60.0)
    return [*results, restore(comm, directory, settings)[:2]]


@pytest.mark.timeout(110)
@pytest.mark.filterwarnings("ignore::deeppart.errors.DeeppartWarning")
@pytest.mark.parametrize(("settings", "at_restore"), [(PARTNER, (2, True)), (PARITY, True)], ids=["copies", "parity"])
def test_a_rank_without_memory_keeps_no_other_one_waiting(
    run_on: Any, shared_path: Path, settings: dict[str, Any], at_restore: Any
) -> None:
    """A part that is rebuilt needs the exchange before it is restored, one of which there is a copy only afterwards."""
    saved = [True, True, "complete", True]
    for results in run_on(4, without_memory_to_exchange, shared_path, settings):
        assert results == [*saved, at_restore, True, (2, True)]
