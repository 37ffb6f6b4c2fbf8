"""Live leaves that share memory on some ranks only: all ranks look at them together.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.mpi.recovery.into_ties import restored_into_ties

pytestmark = pytest.mark.mpi(min_size=2)


def test_what_only_one_rank_ties_is_restored_if_it_holds_the_same_bytes(run_on: Any, shared_path: Path) -> None:
    """The other rank takes part in looking: nobody waits."""
    assert run_on(2, restored_into_ties, shared_path, "the same bytes on one rank") == [("", True), ("", True)]


def test_otherwise_it_is_refused_and_nothing_is_changed(run_on: Any, shared_path: Path) -> None:
    refused = [("StructureMismatchError", True), ("RemoteRankError", True)]
    assert run_on(2, restored_into_ties, shared_path, "other bytes on one rank") == refused
