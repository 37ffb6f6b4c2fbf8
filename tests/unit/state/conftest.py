"""These tests are of states, not of storage: their files lie on a tmpfs, where there is one, and nothing is synced."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    where = Path("/dev/shm")
    place = where if where.is_dir() else tmp_path
    with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as directory:
        yield Path(directory)
