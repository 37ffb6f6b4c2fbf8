"""A working directory with nothing in it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: no configuration."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
