"""Directories that tests of this package share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deeppart.access import Root, Rules


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory that everyone can write to, as /tmp, and reach."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent.stat().st_mode & 0o077 == 0:
            parent.chmod(0o711)
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o1777)
    return directory


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The path of a root, with a step in it."""
    path = Root(tmp_path / "root", Rules()).make()
    (path / "step").mkdir()
    (path / "step" / "part").write_bytes(b"part")
    return path
