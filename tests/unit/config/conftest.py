"""A working directory with machine files and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.files import MACHINES


@pytest.fixture
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: no configuration, and the machine files."""
    monkeypatch.chdir(tmp_path)
    for name in MACHINES:
        (tmp_path / name).write_text('[memory]\ntensor = "2 us"\ncopy = "5 GB/s"\n')
    return tmp_path
