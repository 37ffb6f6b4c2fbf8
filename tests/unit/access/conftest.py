"""Directories that tests of this package share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeppart.access import Root, Rules


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that everyone can write to, as /tmp, and reach: not below pytest's, which each new pytest closes."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o1777)
        yield Path(name)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The path of a root, with a step in it."""
    path = Root(tmp_path / "root", Rules()).make()
    (path / "step").mkdir()
    (path / "step" / "part").write_bytes(b"part")
    return path
