"""What a checkpointer works with, made of an open session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.comm import SingleComm
from deeppart.session.open import open_session
from deeppart.session.record import Session
from deeppart.session.wiring import cadence_for, pipeline_for, retention_for, scrubber_for


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    sessions: list[Session] = []

    def start(**settings: Any) -> Session:
        where: dict[str, Any] = {"persistent_dir": str(tmp_path / "ckpt"), "local_dir": str(tmp_path / "local")}
        sessions.append(open_session(deeppart.Config(**where, **settings), SingleComm()))
        return sessions[-1]

    yield start
    for session in sessions:
        session.close()


def test_what_is_off_is_not_made(opened: Any) -> None:
    session = opened()
    retention = retention_for(session)
    pipeline = pipeline_for(session, retention)
    assert scrubber_for(session, pipeline) is None and cadence_for(session) is None


def test_what_is_on_is_made(opened: Any) -> None:
    cadence = cadence_for(opened(every="auto"))
    assert cadence is not None


def test_a_damaged_history_is_told_and_stops_nobody(opened: Any, tmp_path: Path) -> None:
    session = opened(every="auto")
    (tmp_path / "ckpt" / "deeppart-runs.json").write_text("[")
    with pytest.warns(deeppart.DeeppartWarning, match="does not know earlier runs"):
        assert cadence_for(session) is not None
