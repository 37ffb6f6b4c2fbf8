"""What a checkpointer works with, made of an open session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.save.retention import Ledger
from deeppart.session.wiring import cadence_for, pipeline_for, retention_for, scrubber_for


def test_what_is_off_is_not_made(opened: Any) -> None:
    session = opened()
    pipeline = pipeline_for(session, retention_for(session), Ledger())
    assert scrubber_for(session, pipeline) is None and cadence_for(session) is None
    pipeline.close(timeout=10.0)  # its threads


def test_what_is_on_is_made(opened: Any) -> None:
    cadence = cadence_for(opened(every="auto"))
    assert cadence is not None


def test_a_damaged_history_is_told_and_stops_nobody(opened: Any, tmp_path: Path) -> None:
    session = opened(every="auto")
    (tmp_path / "ckpt" / "deeppart-runs.json").write_text("[")
    with pytest.warns(deeppart.DeeppartWarning, match="does not know earlier runs"):
        assert cadence_for(session) is not None
