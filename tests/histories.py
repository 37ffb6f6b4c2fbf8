"""Histories of failed runs, for ``every="auto"``."""

from __future__ import annotations

import json
from pathlib import Path

from deeppart.model import RunsFile


def often_failing(directory: Path, count: int = 480) -> None:
    """A history with which a checkpoint is due every second or so."""
    directory.mkdir(parents=True)
    run = {
        "session": "0" * 32, "began": "2026-11-01T00:00:00.000000Z", "nodes": 1,
        "seen": "2026-11-01T00:00:02.000000Z", "ended": None, "restored": "local",
    }  # fmt: skip
    document = {"format": "deeppart-runs", "version": 1, "runs": [run] * count}
    (directory / RunsFile.NAME).write_text(json.dumps(document))
