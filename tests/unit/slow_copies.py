"""A model whose lazy capture takes long enough to do something meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import deeppart
from deeppart.state import deferred


def config(path: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(path / "ckpt"), capture="lazy", timeout=30.0, **settings)


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(200, 300), nn.BatchNorm1d(300), nn.Linear(300, 200))


def gradients(module: nn.Module) -> None:
    module.zero_grad()
    module(torch.randn(8, 200)).square().sum().backward()


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


def saved(path: Path, step: int) -> Any:
    return deeppart.load(path / "ckpt", step)
