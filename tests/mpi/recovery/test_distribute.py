"""From the ranks that have read the parts to all ranks, however many there are.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.mpi.training_states import PER_RANK, restore, same

pytestmark = pytest.mark.mpi(min_size=4)


def cycle(path: str, old: list[Any], rank: int, size: int) -> Any:
    assert path in PER_RANK
    return old[rank % len(old)]


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_restore_on_another_number_of_ranks(run_on: Any, two_ranks: tuple[Path, list[Any]], ranks: int) -> None:
    directory, saved = two_ranks
    for rank, (step, found, _) in enumerate(run_on(ranks, restore, directory, cycle)):
        assert step == 3
        assert same(saved[rank % 2][0], found) == []
