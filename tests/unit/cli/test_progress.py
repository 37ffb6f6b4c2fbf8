"""The progress bar: on a terminal only."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from deeppart.cli.output import PlainConsole
from tests.unit.cli_support import call, save


def test_progress_on_a_terminal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    assert "━" not in call("verify", tmp_path)
    monkeypatch.setattr("deeppart.cli.verify.console", lambda: PlainConsole(force_terminal=True, width=100))
    text = click.unstyle(call("verify", tmp_path))
    bar = text[text.rindex("step 1 ━") :]
    assert "6.1/6.1 MB" in bar and "B/s" in bar and "0:00:00" in bar
    assert "\x1b[" not in call("verify", tmp_path, "--json")
