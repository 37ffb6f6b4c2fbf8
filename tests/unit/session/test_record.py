"""One run of a job: which rank does what in its directories, and what is given back at the end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from deeppart.errors import DirectoryInUseError

pytestmark = pytest.mark.usefixtures("working_directory")


def test_closing_gives_the_directory_and_descriptors_back(opened: Any, tmp_path: Path) -> None:
    opened().close()
    before = len(os.listdir("/proc/self/fd"))
    session = opened()
    assert len(os.listdir("/proc/self/fd")) > before
    with pytest.raises(DirectoryInUseError):
        opened()
    session.close()
    session.close()
    assert len(os.listdir("/proc/self/fd")) == before
    again = opened()
    assert again.lineage == session.lineage and again.session != session.session
