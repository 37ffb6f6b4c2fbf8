"""One structure on all ranks, whoever has read the parts; and damage that all ranks hear of.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from deeppart.comm import connect
from deeppart.errors import CorruptFileError
from tests.fuzz.images import PartImage
from tests.mpi.suspect_training import checkpointer
from tests.unit.recovery.opened import TIMEOUT_S, edit_parts, open_step

pytestmark = pytest.mark.mpi(min_size=4)


def save(comm: Any, directory: Path, own: bool) -> None:
    state = {"w": torch.ones(50_000), "n": 5}
    rules: Any = "all"
    if own:
        state |= {"mine": torch.full((comm.rank + 1,), 1.0), "rank": comm.rank}
        rules = {"mine": "none", "rank": "none"}
    with checkpointer(comm, directory, replicated=rules) as ck:
        ck.checkpoint(state, 1).wait(timeout=200)


def documents(comm: Any, directory: Path) -> tuple[list[Any], int, list[tuple[list[Any], list[Any]]]]:
    """Paths of the structure, how many parts this rank tells of, and what each old rank had of its own."""
    opened = open_step(directory, connect(comm, TIMEOUT_S))
    found = opened.documents()
    own = [([kind.shape for kind in each.types.values()], list(each.values.values())) for each in found.own]
    return found.structure.array_paths(), len(opened.recovered.led_by(comm.rank)), own


def harmed(comm: Any, directory: Path, part: int) -> str:
    if comm.rank == 0:

        def harm(rank: int, image: PartImage) -> None:
            if rank == part:
                image.meta["leaves"] = {}

        edit_parts(directory, harm)
    comm.barrier()
    opened = open_step(directory, connect(comm, TIMEOUT_S))
    with pytest.raises(CorruptFileError) as caught:
        opened.documents()
    return str(caught.value)


@pytest.mark.parametrize("part", [0, 1])
def test_a_damaged_document_is_told_on_all_ranks(run_on: Any, shared_path: Path, part: int) -> None:
    """Also on those that have read other parts, or none."""
    run_on(2, save, shared_path, True)
    for text in run_on(3, harmed, shared_path, part):
        assert f"part {part}" in text and "does not fit the structure document" in text
