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


@pytest.fixture(autouse=True)
def no_jobs_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test leaves behind, as when it fails, ends before the next one."""
    rig: Rig | None = request.getfixturevalue("slurm") if "slurm" in request.fixturenames else None
    yield
    if rig is not None:
        rig.end_jobs()
