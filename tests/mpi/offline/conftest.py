"""One job of three nodes, made once, and copies of it to damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.copying import copy_as_original
from tests.mpi import launch, launchers
from tests.mpi.offline.redundant import train


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := launchers.unavailable():
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("trained")
    assert launch.run_ranks(3, train, root).values == [0, 1, 2]
    return root


@pytest.fixture
def job(trained: Path, tmp_path: Path) -> Path:
    """A copy to damage: step 1 is on the persistent level, step 2 only on the nodes."""
    return copy_as_original(trained, tmp_path / "job")
