"""``capture="lazy"``: what is saved is the state at the call, whatever training does next, or it fails loudly."""

from __future__ import annotations

import copy
import functools
import gc
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import deeppart
from deeppart.errors import BackgroundFailureWarning, CheckpointError, LazyCaptureNotice
from deeppart.session import leave
from deeppart.state import deferred, lazy, owners
from deeppart.state.capture import CallCopy
from deeppart.testing.states import difference

ELEMENTS = 60_000  # large enough to wait


def config(path: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(path / "ckpt"), capture="lazy", timeout=30.0, **settings)


def model(seed: int = 0) -> Any:
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


OPTIMIZERS: list[tuple[str, Callable[[Any], torch.optim.Optimizer]]] = [
    ("sgd", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    ("sgd-fused", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True)),
    ("adam", lambda p: torch.optim.Adam(p, 0.1, foreach=False)),
    ("adam-foreach", lambda p: torch.optim.Adam(p, 0.1, foreach=True)),
    ("adam-fused", lambda p: torch.optim.Adam(p, 0.1, fused=True)),
    ("adamw-amsgrad", lambda p: torch.optim.AdamW(p, 0.1, amsgrad=True)),
    ("adagrad", lambda p: torch.optim.Adagrad(p, 0.1)),
    ("rmsprop", lambda p: torch.optim.RMSprop(p, 0.1)),
    ("lbfgs", lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3)),
]


@pytest.mark.parametrize("make", [make for _, make in OPTIMIZERS], ids=[name for name, _ in OPTIMIZERS])
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


def test_arrays_over_the_memory_of_parameters(tmp_path: Path, slow: threading.Event) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    gradients(net)
    weight = net[0].weight.detach().numpy()
    state = {"flat": weight, "turned": weight.T, "optimizer": optimizer}
    expected = weight.copy()
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        pending = ck.checkpoint(state, 1)
        optimizer.step()
        pending.wait("persistent", 30)
    found = saved(tmp_path, 1)
    assert (found["flat"] == expected).all() and (found["turned"] == expected.T).all()


def test_plain_state_dicts_of_an_optimizer_that_has_stepped(tmp_path: Path, slow: threading.Event) -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        gradients(net)
        optimizer.step()
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
        expected = copy.deepcopy(state)
        pending = ck.checkpoint(state, 1)
        time.sleep(0.05)
        assert not pending.done()
        gradients(net)
        optimizer.step()
        slow.set()
        pending.wait("persistent", 30)
        assert pending.report.held_s > 0
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


def test_who_needs_the_copies_takes_part_in_making_them() -> None:
    """One thread is stuck in its first piece; the other makes all the rest."""
    stuck, go, made = threading.Event(), threading.Event(), []

    def first() -> None:
        stuck.set()
        assert go.wait(20)

    rest = [lambda number=number: made.append((number, threading.current_thread())) for number in range(50)]
    calls = [CallCopy(None, call) for call in (first, *rest)]
    copies = deferred.DeferredCopy(calls, {}, lambda: 0, 1, "here", 20.0)
    background = threading.Thread(target=copies.work, daemon=True)
    background.start()
    assert stuck.wait(20)
    threading.Timer(0.2, go.set).start()
    copies.hold()
    assert copies.done and copies.held_s >= 0.1
    assert made == [(number, threading.current_thread()) for number in range(50)]
    background.join(20)


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
        assert ck._pipeline.drain(30)
        with (
            pytest.warns(BackgroundFailureWarning, match=r"writes to net/0\.weight"),
            pytest.warns(LazyCaptureNotice, match=r"net/0\.weight"),
        ):
            ck.checkpoint({"net": net, "optimizer": optimizer}, 2).wait("persistent", 30)
        assert ck.failures == 1


def test_a_parameter_that_is_replaced_keeps_its_old_bytes(tmp_path: Path, slow: threading.Event) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    expected = copy.deepcopy(net.state_dict())
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        pending = ck.checkpoint({"net": net, "optimizer": optimizer}, 1)
        net[0].weight.data = torch.zeros(300, 200)
        del net[2]
        gc.collect()
        slow.set()
        pending.wait("persistent", 30)
    assert difference(expected, saved(tmp_path, 1)["net"]) is None


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
        monkeypatch.setattr(owners, "_gives_word", lambda optimizer: False)
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


def test_an_optimizer_whose_step_torch_does_not_wrap_gives_no_word() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)
    assert owners._gives_word(optimizer)
    optimizer.param_groups[0]["capturable"] = True
    assert not owners._gives_word(optimizer)


def test_the_mark_of_a_wrapped_step_is_not_taken_for_the_wrapper() -> None:
    """``functools.wraps`` copies it; torch then does not wrap, and no hook is called."""
    torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)  # the first one of a process puts the mark there

    class Marked(torch.optim.SGD):
        @functools.wraps(torch.optim.SGD.step)
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                group["params"][0].data.add_(1.0)

    assert not owners._gives_word(Marked([nn.Parameter(torch.ones(2))], 0.1))
    replaced = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)
    replaced.step = lambda closure=None: None  # type: ignore[method-assign]
    assert not owners._gives_word(replaced)
    scheduled = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)
    torch.optim.lr_scheduler.StepLR(scheduled, 1)
    assert owners._gives_word(scheduled)


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


# --- the rest of its life ---------------------------------------------------------------------------------------------


def test_nothing_is_held_back_after_the_end(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    gradients(net)
    for failing in (False, True):
        try:
            with deeppart.Checkpointer(config(tmp_path / str(failing))) as ck:
                ck.checkpoint({"net": net, "optimizer": optimizer}, 1).wait("persistent", 30)
                optimizer.step()
                if failing:
                    raise KeyError("training")
        except KeyError:
            leave.settle(60)  # what had begun comes to its end first
        assert not owners.REGISTRY._listeners and owners.REGISTRY._hook is None
        optimizer.step()
    gone = owners.REGISTRY.stepped()
    assert optimizer in gone
    del optimizer, gone
    gc.collect()
    assert not any(each.param_groups[0]["params"][0] is net[0].weight for each in owners.REGISTRY.stepped())


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


def test_tensors_are_let_go_of_when_they_are_captured(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    weight = weakref.ref(net[0].weight)
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        ck.checkpoint({"net": net, "optimizer": optimizer}, 1)
        assert ck._pipeline.drain(30)
        del net, optimizer
        gc.collect()
        assert weight() is None


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_step_gives_word() -> None:
    """The hook itself is not compiled: it runs before each step, every time."""
    net = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    heard: list[int] = []

    def listener() -> None:
        heard.append(len(heard))

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
        from deeppart.state.owners import REGISTRY
        from deeppart.state.training import TrainingWatch
        deeppart.Checkpointer
        watch = TrainingWatch(least_bytes=0)  # which Checkpointers of several ranks have
        REGISTRY.listen(print)
        assert 'torch._dynamo' not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)
