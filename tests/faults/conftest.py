"""Directories that a job shares with other users, and a file that nobody may touch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.foreign import PRECIOUS


@pytest.fixture(params=["disk", "memory"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory as /tmp, or as /dev/shm: everyone may make things in it, nobody may remove those of others."""
    where = Path("/dev/shm") if request.param == "memory" else Path(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(dir=where) as name:
        Path(name).chmod(0o1777)
        yield Path(name)


@pytest.fixture
def precious(shared: Path) -> Iterator[Path]:
    """A file of whoever runs the job, longer than a part; nothing may change in it."""
    path = shared / "precious"
    path.write_bytes(PRECIOUS * 10_000)
    path.chmod(0o600)
    yield path
    assert path.read_bytes() == PRECIOUS * 10_000
