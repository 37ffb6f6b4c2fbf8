"""Fixtures that tests of several packages share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.state.capture import lazy as deferred
from deeppart.storage import owner


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Background copies begin only when the event is set, which it is when an optimizer is about to step."""
    go, copied, held = threading.Event(), deferred._copy, deferred.DeferredCopy.hold

    def hold(copies: deferred.DeferredCopy) -> None:
        go.set()
        held(copies)

    def waiting(piece: Any) -> Any:
        if threading.current_thread().name.startswith("deeppart"):
            go.wait(20)
        return copied(piece)

    monkeypatch.setattr(deferred, "_copy", waiting)
    monkeypatch.setattr(deferred.DeferredCopy, "hold", hold)
    yield go
    go.set()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that is in use is not waited for."""
    monkeypatch.setattr(owner, "_LOCK_PATIENCE_S", 0.05)


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is written by a relative path is in the test's own directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def workplace(working_directory: Path) -> Iterator[Path]:
    """The same, for tests of the default checkpointer, which is closed afterwards."""
    yield working_directory
    deeppart.close()
