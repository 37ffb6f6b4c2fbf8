"""``capture="lazy"``: what is saved is the state at the call, whatever training does next, or it fails loudly."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import deeppart
from deeppart.errors import BackgroundFailureWarning, CheckpointError, LazyCaptureNotice
from deeppart.state.capture import lazy
from deeppart.state.compare import optimizers as owners
from tests.states import difference
from tests.unit.slow_copies import config, gradients, model, saved

ELEMENTS = 60_000  # large enough to wait


def test_large_owned_tensors_are_what_waits(tmp_path: Path, slow: threading.Event) -> None:
    net = model()
    average = torch.full((ELEMENTS,), 3.0)  # nobody's
    optimizer = torch.optim.Adam(net.parameters())
    gradients(net)
    optimizer.step()
    state = {"net": net.state_dict(), "optimizer": optimizer, "average": average, "progress": [7]}
    expected = copy.deepcopy({**state, "optimizer": optimizer.state_dict()})
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        pending = ck.checkpoint(state, 1)
        average.zero_()  # was copied before the call returned
        state["progress"][0] = 8
        with torch.no_grad():
            net[1].running_mean.zero_()
            net[0].bias.zero_()  # small
        assert not pending.done()
        slow.set()
        pending.wait("persistent", 30)
        assert pending.report.held_s == 0
    assert difference(expected, saved(tmp_path, 1)) is None


def test_several_optimizers_and_accumulated_gradients(tmp_path: Path, slow: threading.Event) -> None:
    first, second = model(1), model(2)
    optimizers = [torch.optim.AdamW(first.parameters()), torch.optim.SGD(second.parameters(), 0.1, momentum=0.9)]
    state = {"nets": [first, second], "optimizers": optimizers}
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        for step in range(1, 4):
            for net, optimizer in zip((first, second), optimizers, strict=True):
                gradients(net)
                optimizer.step()
            expected = copy.deepcopy([first.state_dict(), second.state_dict(), *(o.state_dict() for o in optimizers)])
            pending = ck.checkpoint(state, step)
            for net in (first, second, second, first):
                net(torch.randn(8, 200)).sum().backward()
            optimizers[step % 2].step()
            optimizers[1 - step % 2].step()
            slow.set()
            pending.wait("persistent", 30)
            found = saved(tmp_path, step)
            assert difference(expected, [*found["nets"], *found["optimizers"]]) is None
            slow.clear()
        slow.set()


# --- where it cannot know ---------------------------------------------------------------------------------------------


class NotTorchs:
    """An optimizer that torch knows nothing of."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = list(parameters)

    def step(self) -> None:
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.mul_(0.5)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize("kind", ["other", "capturable", "unwrapped", "unknown"])
def test_falls_back_to_copying_at_once_with_a_notice(
    tmp_path: Path, slow: threading.Event, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(lazy, "NOTICED_BYTES", 1000)
    net = model()
    optimizer: Any = torch.optim.Adam(net.parameters())
    if kind == "other":
        optimizer = NotTorchs(net.parameters())
    elif kind == "capturable":
        optimizer.param_groups[0]["capturable"] = True
    elif kind == "unwrapped":
        monkeypatch.setattr(owners, "_signals_steps", lambda optimizer: False)
    state = {"net": net} if kind == "unknown" else {"net": net, "optimizer": optimizer}
    expected = copy.deepcopy(net.state_dict())
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        with pytest.warns(LazyCaptureNotice, match=r"net/0\.weight, net/2\.weight\. An optimizer is known if"):
            pending = ck.checkpoint(state, 1)
        NotTorchs(net.parameters()).step()
        slow.set()
        pending.wait("persistent", 30)
        with warnings.catch_warnings():  # once
            warnings.simplefilter("error")
            ck.checkpoint(state, 2).wait("persistent", 30)
    assert difference(expected, saved(tmp_path, 1)["net"]) is None


def test_a_leaf_and_the_optimizers_tensor_may_have_counters_of_their_own(tmp_path: Path, slow: threading.Event) -> None:
    """As with flat parameters: the module's tensors are views, by way of ``.data``, of what the optimizer has."""
    net = nn.Linear(300, 300, bias=False)
    whole = nn.Parameter(net.weight.detach().clone().reshape(-1))
    net.weight.data = whole.data.view(300, 300)
    optimizer = torch.optim.SGD([whole], 0.1)
    for step, write in enumerate((net.weight, whole)):
        with deeppart.Checkpointer(config(tmp_path / str(step))) as ck:
            whole.grad = torch.ones_like(whole)
            optimizer.step()
            slow.clear()
            pending = ck.checkpoint({"net": net}, 1)
            with torch.no_grad():
                write[7:8].mul_(2.0)
            slow.set()
            with pytest.raises(CheckpointError, match=r"writes to net/weight"):
                pending.wait("persistent", 30)


def test_views_of_a_larger_buffer_are_copied_at_once(tmp_path: Path) -> None:
    """Who writes to the buffer advances a version counter that nobody has told of."""
    net = nn.Sequential(nn.Linear(300, 300, bias=False), nn.Linear(300, 300, bias=False))
    buffer = torch.randn(2, 300, 300)
    for number in range(2):
        net[number].weight.data = buffer[number]
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        for step in range(1, 4):
            for each in net.parameters():
                each.grad = torch.ones_like(each)
            optimizer.step()
            expected = copy.deepcopy(net.state_dict())
            pending = ck.checkpoint({"net": net, "optimizer": optimizer}, step)
            buffer[1, 5].mul_(2.0)
            pending.wait("persistent", 30)
            assert difference(expected, saved(tmp_path, step)["net"]) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_step_signals_steps() -> None:
    """The hook itself is not compiled: it runs before each step, every time."""
    net = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    heard: list[int] = []

    class Ears:
        def before_step(self, optimizer: torch.optim.Optimizer) -> None:
            heard.append(len(heard))

        def after_step(self, optimizer: torch.optim.Optimizer) -> None:
            pass

    listener = Ears()
    owners.REGISTRY.listen(listener)
    try:

        @torch.compile(backend="eager")
        def train() -> None:
            optimizer.step()

        for count in range(1, 4):
            net(torch.ones(3)).sum().backward()
            train()
            assert len(heard) == count
    finally:
        owners.REGISTRY.unlisten(listener)


def test_the_compiler_is_not_brought_in_before_training_does() -> None:
    """It costs every rank two seconds of processor time."""
    code = """if True:
        import sys
        import deeppart
        from deeppart.state.compare.optimizers import TrainingWatch
        deeppart.Checkpointer
        watch = TrainingWatch(least_bytes=0)  # which Checkpointers of several ranks have
        assert 'torch._dynamo' not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)


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
