"""What is left of a lazy capture when ``checkpoint()`` has returned: who waits for it, and how it ends."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.state.capture import lazy as deferred
from deeppart.state.capture.copying import CallCopy
from tests.states import difference
from tests.unit.slow_copies import config, gradients, model, saved

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd-fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "adam-foreach": lambda p: torch.optim.Adam(p, 0.1, foreach=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_step_waits_until_the_state_is_captured(
    tmp_path: Path, slow: threading.Event, make: Callable[[Any], torch.optim.Optimizer]
) -> None:
    net = model()
    optimizer = make(net.parameters())

    def closure() -> Any:
        net.zero_grad()
        loss = net(torch.ones(8, 200)).square().sum()
        loss.backward()
        return loss

    with deeppart.Checkpointer(config(tmp_path)) as ck:
        optimizer.step(closure)
        expected = copy.deepcopy({"net": net.state_dict(), "optimizer": optimizer.state_dict()})
        pending = ck.checkpoint({"net": net, "optimizer": optimizer}, 1)
        gradients(net)  # runs while nothing has been captured, and changes BatchNorm's buffers
        optimizer.step(closure)
        slow.set()
        pending.wait("persistent", 30)
        assert pending.report.held_s > 0
        assert pending.report.stages_s["deferred"] > 0
    assert difference(expected, saved(tmp_path, 1)) is None


# --- the rest of its life ---------------------------------------------------------------------------------------------


def test_a_restore_waits_for_the_capture(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    gradients(net)
    optimizer.step()
    state = {"net": net, "optimizer": optimizer}
    expected = copy.deepcopy(net.state_dict())
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        ck.checkpoint(state, 1)
        assert ck.restore(state) == 1
    assert difference(expected, net.state_dict()) is None


def test_a_copy_that_never_ends_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    stuck = [CallCopy(None, lambda: never.wait(20))]
    copies = deferred.DeferredCopy(stuck, {}, lambda: 0, 1, "rank 0, step 1", 0.2)
    background = threading.Thread(target=copies.work, daemon=True)
    background.start()
    time.sleep(0.05)
    copies.hold()
    error = copies.wait()
    assert error is not None and "did not end within 0.2 s" in str(error) and not copies.done
    never.set()
    background.join(10)
