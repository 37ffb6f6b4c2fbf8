"""A job of AdaptDL's names begins with nothing registered, whatever another test has made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from deeppart.elastic import Progress, progress, stop_request
from deeppart.elastic.adaptdl import checkpoint


def forget_all() -> None:
    """As at the beginning of a process."""
    checkpoint._states.clear()
    checkpoint._models.clear()
    checkpoint._restored = None
    vars(progress).update(vars(Progress()))


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    forget_all()
    monkeypatch.setattr(stop_request, "_request", None)
    yield
    if stop_request._request is not None:
        stop_request._request.end()
    forget_all()
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAPTDL_CHECKPOINT_PATH", str(tmp_path / "ckpt"))
    return tmp_path / "ckpt"
