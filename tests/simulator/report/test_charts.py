"""Pictures in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.commands import SMALL, sim


@pytest.mark.parametrize("command", ["scale", "campaign", "advise"])
def test_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    file = tmp_path / "out.png"
    more = ("--days", "1", "--seeds", "1") if command == "campaign" else ()
    assert sim(capsys, command, *SMALL, "--ranks", "64", "--png", str(file), *more)[0] == 0
    assert file.read_bytes().startswith(b"\x89PNG")
