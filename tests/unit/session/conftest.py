"""Sessions of one rank, open for the length of a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.comm import SingleComm
from deeppart.session import Session, open_session


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    """``opened(**settings)``: a session in ``ckpt`` and ``local`` of the test's directory."""
    sessions: list[Session] = []

    def start(**settings: Any) -> Session:
        where: dict[str, Any] = {"persistent_dir": str(tmp_path / "ckpt"), "local_dir": str(tmp_path / "local")}
        sessions.append(open_session(deeppart.Config(**(where | settings)), SingleComm()))
        return sessions[-1]

    yield start
    for session in sessions:
        session.close()
