"""Lost parts from parity, with damage among the pieces they are computed from."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from deeppart.errors import RestoreError, StorageError
from deeppart.nodes.exchange import set_files
from deeppart.nodes.exchange.memory import Blocks
from tests.mpi.lost_nodes import PARITY, lose, restore, save
from tests.unit.cli_support import flip

pytestmark = pytest.mark.mpi(min_size=4)


def damaged_pieces(comm: Any, directory: Path) -> list[Any]:
    """Files with a bad block here and there: their good blocks still help."""
    save(comm, directory, PARITY, (1,))
    local = directory / "local"
    results = []
    for place, nodes in ((5000, (0,)), (200_000, (0, 1)), (9000, (0, 1, 2, 3))):
        if comm.rank == 0:
            for node in nodes:  # a part's and a parity's byte, in other stripes
                flip(next((local / f"node{node}").glob("*/step-*/*.dpp")), place + 30_000 * node)
            flip(next((local / "node3").glob("*/parity/*/*.dpy")), place)
        comm.Barrier()
        results.append(restore(comm, directory, PARITY))
    return results


@pytest.mark.timeout(110)
def test_damaged_pieces_still_help_with_their_good_blocks(run_on: Any, shared_path: Path) -> None:
    for results in run_on(4, damaged_pieces, shared_path):
        for step, good, explanation in results:
            assert step == 1 and good, explanation
        assert "4 of 4 parts rebuilt from parity" in results[2][2][-2]


def without_descriptors(comm: Any, directory: Path, ranks: tuple[int, ...], damaged: int | None) -> Any:
    """A node is lost, and some ranks may not open the files that its part would be computed from."""
    save(comm, directory, PARITY, (1, 2))
    lose(comm, directory, 3)
    if damaged is not None and comm.rank == 0:
        flip(max((directory / "local" / f"node{damaged}").glob("*/step-*/*.dpp")), 5000)
    comm.Barrier()

    class Refused(Blocks):
        def __init__(self, path: str) -> None:
            raise StorageError("cannot open a file", errno=errno.EMFILE, found="this process may not open more than 7")

    first: Any
    with pytest.MonkeyPatch.context() as patch:
        if comm.rank in ranks:
            patch.setattr(set_files, "Blocks", Refused)
        try:
            first = restore(comm, directory, PARITY)
        except RestoreError as error:
            first = str(error)
    comm.Barrier()
    return first, restore(comm, directory, PARITY)


@pytest.mark.timeout(110)
@pytest.mark.parametrize(("ranks", "damaged"), [((1, 2), None), ((0,), 1)])
def test_no_older_step_where_input_cannot_be_opened(
    run_on: Any, shared_path: Path, ranks: tuple[int, ...], damaged: int | None
) -> None:
    for refusal, (step, good, _) in run_on(4, without_descriptors, shared_path, ranks, damaged):
        assert "may not open more than 7" in refusal and "ulimit -n" in refusal, refusal
        assert all(f"rank {rank}: " in refusal for rank in ranks) and "nothing is known to be wrong" in refusal
        assert step == 2 and good  # the files were sound
