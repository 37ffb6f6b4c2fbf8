"""One Slurm for all tests here: starting it takes a second or two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mpi import launchers
from tests.slurm.rig import Rig, unavailable


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip where Slurm, or an MPI for its jobs, is missing."""
    if reason := unavailable() or launchers.unavailable():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def slurm() -> Iterator[Rig]:
    """A running Slurm of four virtual nodes."""
    with Rig() as rig:
        yield rig
