"""One run of a job: which rank does what in its directories, and what is given back at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deeppart.errors import DirectoryInUseError
from tests.descriptors import open_at

pytestmark = pytest.mark.usefixtures("working_directory")


def test_closing_gives_the_directory_and_descriptors_back(opened: Any, tmp_path: Path) -> None:
    opened().close()
    before = open_at(tmp_path)
    session = opened()
    assert len(open_at(tmp_path)) > len(before)
    with pytest.raises(DirectoryInUseError):
        opened()
    session.close()
    session.close()
    assert open_at(tmp_path) == before
    again = opened()
    assert again.lineage == session.lineage and again.session != session.session
