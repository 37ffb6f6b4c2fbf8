"""A job of AdaptDL's names begins with nothing registered, whatever another test has made."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeppart.elastic.adaptdl import _signal, checkpoint, collective
from deeppart.elastic.adaptdl.torch import _metrics, accumulator, epoch, loops


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(checkpoint, "_states", {})
    monkeypatch.setattr(checkpoint, "_found", {})
    monkeypatch.setattr(collective, "_reducer", None)
    monkeypatch.setattr(epoch, "_state", None)
    monkeypatch.setattr(_metrics, "_state", None)
    monkeypatch.setattr(accumulator._AccumulatorState, "made", collections.Counter())
    monkeypatch.setattr(loops._LoaderState, "made", collections.Counter())
    monkeypatch.setattr(loops.AdaptiveDataLoaderHelper, "_position", collections.Counter())
    for name in ("_training", "_current"):
        monkeypatch.setattr(loops.AdaptiveDataLoaderHelper, name, None)
    yield
    _signal._signals.put_back()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAPTDL_CHECKPOINT_PATH", str(tmp_path / "ckpt"))
    return tmp_path / "ckpt"
