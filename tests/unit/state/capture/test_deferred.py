"""Copies that are made later: a write in between is told, and replaced tensors keep their old bytes."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import deeppart
from deeppart.errors import BackgroundFailureWarning, CheckpointError, LazyCaptureNotice
from deeppart.state.capture import lazy as deferred
from tests.unit.slow_copies import config, gradients, model, saved

# --- writes that nobody announces -------------------------------------------------------------------------------------


def _in_place(weight: nn.Parameter) -> None:
    with torch.no_grad():
        weight.add_(1.0)


def _one_element(weight: nn.Parameter) -> None:
    with torch.no_grad():
        weight[3, 5] = 1.0


def _around_the_counter(weight: nn.Parameter) -> None:
    weight.data.clamp_(-0.001, 0.001)


@pytest.mark.parametrize("write", [_in_place, _one_element, _around_the_counter])
def test_a_write_before_the_capture_is_told(
    tmp_path: Path, slow: threading.Event, write: Callable[[nn.Parameter], None]
) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    gradients(net)
    state = {"net": net, "optimizer": optimizer}
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        slow.set()
        ck.checkpoint(state, 1).wait("persistent", 30)
        slow.clear()
        pending = ck.checkpoint(state, 2)
        version = net[0].weight._version
        write(net[0].weight)
        counted = net[0].weight._version != version
        assert counted == (write is not _around_the_counter)
        slow.set()
        with pytest.raises(CheckpointError, match="written to while it was being captured") as caught:
            pending.wait("persistent", 30)
        told = "writes to net/0.weight" if counted else "other bytes than when checkpoint() was called: net/0.weight"
        assert told in str(caught.value)
        assert 'set capture="eager"' in str(caught.value)
        expected = {3: net[0].weight.detach().clone()}
        with pytest.warns(LazyCaptureNotice, match=r"outside of optimizer\.step\(\).*: net/0\.weight$"):
            pending = ck.checkpoint(state, 3)
        write(net[0].weight)  # was copied before
        pending.wait("persistent", 30)
        expected[4] = net[0].weight.detach().clone()
        with warnings.catch_warnings():  # once
            warnings.simplefilter("error")
            pending = ck.checkpoint(state, 4)
        write(net[0].weight)
        pending.wait("persistent", 30)
    for step in (3, 4):
        assert torch.equal(saved(tmp_path, step)["net"]["0.weight"], expected[step])
    with pytest.raises(deeppart.RestoreError):
        saved(tmp_path, 2)


def test_a_failed_capture_is_told_at_the_next_call(tmp_path: Path, slow: threading.Event) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        ck.checkpoint({"net": net, "optimizer": optimizer}, 1)
        _in_place(net[0].weight)
        slow.set()
        assert ck._pipeline.wait_until_idle(30)
        with (
            pytest.warns(BackgroundFailureWarning, match=r"writes to net/0\.weight"),
            pytest.warns(LazyCaptureNotice, match=r"net/0\.weight"),
        ):
            ck.checkpoint({"net": net, "optimizer": optimizer}, 2).wait("persistent", 30)
        assert ck.failures == 1


def test_an_error_within_a_copy_holds_nobody_back(
    tmp_path: Path, slow: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    state = {"net": net, "optimizer": optimizer}

    def fails(piece: object) -> None:
        raise IndexError("within a copy")

    with deeppart.Checkpointer(config(tmp_path)) as ck:
        with monkeypatch.context() as patch:
            patch.setattr(deferred, "_copy", fails)
            pending = ck.checkpoint(state, 1)
            slow.set()
            with pytest.raises(deeppart.CheckpointError, match="within a copy"):
                pending.wait("persistent", 30)
        ck.checkpoint(state, 2).wait("persistent", 30)
