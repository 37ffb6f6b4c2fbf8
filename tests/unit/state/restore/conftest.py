"""A checkpointer for a test of restores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import deeppart


@pytest.fixture
def ck(tmp_path: Path) -> Iterator[deeppart.Checkpointer]:
    with deeppart.Checkpointer(persistent_dir=tmp_path / "ckpt", timeout=30.0) as checkpointer:
        yield checkpointer
