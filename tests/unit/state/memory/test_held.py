"""Memory that is read by address: it is held, whatever becomes of the tensors; and leaves without it are refused."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import deeppart
from deeppart.errors import CheckpointError, FreedMemoryError
from deeppart.state.capture import lazy as deferred
from deeppart.state.tree.template import Template
from tests.sampling import sampled
from tests.unit.memory_ways import WAYS, Slow

#: One worker runs all of these, so that what they share is made once.
pytestmark = pytest.mark.xdist_group("memory")

PROGRAM = Path(__file__).parents[2] / "memory_ways.py"
CASES = ["lazy-before", "lazy-middle", "eager-before"]
#: Ways that leave the old storage alone: it is held, so nothing has to be refused.
REPLACING = ("vector_to_parameters", "half", "to", "data", "set_ storage", "swap_tensors", "half, swapping", "dropped")
#: Those of this run, of both kinds: the program takes seconds for all of them.
TAKEN = sampled(WAYS, 3, kind=lambda way: way in REPLACING)
#: (case, way) -> what became of it.
Outcomes = dict[tuple[str, str], str]


def config(path: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(path / "ckpt"), timeout=30.0, **settings)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What became of a checkpoint for each case and way, in a process of its own; "" says how that ended."""
    command = [sys.executable, str(PROGRAM), str(tmp_path_factory.mktemp("ways")), json.dumps(TAKEN), *CASES]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
    ended = {("", ""): f"ended with {run.returncode}: {run.stderr[-2000:]}"}
    return ended | {(case, way): found for case, way, found in lines}


#: Nobody can tell, where the memory stays mapped (docs/failure-model.md, "Not detected"): neither torch nor numpy
#: says that a tensor's memory was an array's, and is no more. The process lives on.
UNSEEN = ("arrays resized",)


@pytest.mark.parametrize("way", TAKEN)
@pytest.mark.parametrize("case", CASES)
def test_other_memory_never_means_other_bytes(outcomes: Outcomes, case: str, way: str) -> None:
    assert (case, way) in outcomes, outcomes["", ""]
    lazy, found = case.startswith("lazy"), outcomes[case, way]
    if lazy and way in UNSEEN:
        return
    assert found == "right" or (lazy and found.startswith("refused: ")), found


@pytest.mark.parametrize("way", [way for way in TAKEN if way in REPLACING])
def test_a_tensor_that_gets_another_storage_is_saved_from_the_old_one(outcomes: Outcomes, way: str) -> None:
    assert outcomes["lazy-before", way] == outcomes["lazy-middle", way] == "right"


# --- what is held is given back ---------------------------------------------------------------------------------------


def test_old_memory_is_gone_when_the_step_begins(tmp_path: Path) -> None:
    """The copies wait for the step; what was replaced before it lives until they are made, and no longer."""
    net = nn.Linear(400, 300)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    expected = net.weight.detach().clone()
    with deeppart.Checkpointer(config(tmp_path, capture="lazy")) as ck:
        slow = Slow(copies_before=0)
        try:
            pending = ck.checkpoint({"net": net, "optimizer": optimizer}, 1)
            old = StorageWeakRef(net.weight.untyped_storage())
            net.weight.data = torch.zeros(300, 400)
            assert not old.expired()
            threading.Timer(0.2, slow.go.set).start()
            optimizer.step()
            deadline = time.monotonic() + 10  # the thread that made the last copy may still be returning from it
            while not old.expired() and time.monotonic() < deadline:
                time.sleep(0.001)
            assert old.expired()
        finally:
            slow.end()
        pending.wait("persistent", 30)
    assert torch.equal(deeppart.load(tmp_path / "ckpt", 1)["net"]["weight"], expected)


# --- an operation that is under way when its tensor is copied counts when it ends -------------------------------------


def test_a_write_that_is_counted_after_the_copy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Linear(400, 300)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    checked, go = threading.Event(), threading.Event()
    recheck = deferred.DeferredCopy.recheck

    def late(copies: deferred.DeferredCopy) -> Any:
        checked.set()
        assert go.wait(20)
        return recheck(copies)

    with deeppart.Checkpointer(config(tmp_path, capture="lazy")) as ck:
        monkeypatch.setattr(deferred.DeferredCopy, "recheck", late)
        pending = ck.checkpoint({"net": net, "optimizer": optimizer}, 1)
        assert checked.wait(20)  # all is copied, the part is written, and about to be named
        with torch.no_grad():
            net.weight.add_(1.0)
        go.set()
        with pytest.raises(CheckpointError, match=r"writes to net/weight"):
            pending.wait("persistent", 30)
    with pytest.raises(deeppart.DeeppartError):
        deeppart.load(tmp_path / "ckpt", 1)


# --- leaves without all of their memory -------------------------------------------------------------------------------


def freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


def shrunk(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(tensor.untyped_storage().nbytes() - 1)
    return tensor


def _foreign(shrink: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    tensor = torch.zeros(50_000)
    array = tensor.numpy()
    tensor.share_memory_()  # the array stays where the tensor was
    return array[5:]


def _resized_away(shrink: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    owner = np.zeros(50_000)
    view = owner[100:]
    owner.resize((200,), refcheck=False)
    return view


def _view(shrink: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    tensor = torch.zeros(300, 300)
    view = tensor.T[7:]
    shrink(tensor)
    return view


LEAVES: dict[str, Callable[[Any], Any]] = {
    "small": lambda shrink: shrink(torch.zeros(10)),
    "large": lambda shrink: shrink(torch.zeros(50_000)),
    "parameter": lambda shrink: shrink(nn.Parameter(torch.zeros(50_000))),
    "view": _view,
    "bfloat16": lambda shrink: shrink(torch.zeros(50_000, dtype=torch.bfloat16)),
    "array over a tensor": _foreign,
    "array over an array": _resized_away,
}


@pytest.mark.parametrize("capture", ["eager", "lazy"])
def test_a_leaf_without_its_memory_is_refused_by_name(tmp_path: Path, capture: str) -> None:
    good = {"a": torch.ones(50_000), "b": [torch.ones(3)]}
    with deeppart.Checkpointer(config(tmp_path, capture=capture)) as ck:
        for step, (make, shrink) in enumerate(itertools.product(LEAVES.values(), (freed, shrunk))):
            ck.checkpoint(good, step).wait("persistent", 30)
            bad = {"a": good["a"], "b": [make(shrink)]}
            with pytest.raises(FreedMemoryError, match=r"freed, or is smaller than it says: b/0") as caught:
                ck.checkpoint(bad, step + 1)
            assert "expected: " in str(caught.value) and "found: " in str(caught.value)
            with pytest.raises(FreedMemoryError, match="b/0"):
                ck.restore(bad)
        assert ck.restore(good) == step


@pytest.mark.parametrize("shrink", [freed, shrunk])
def test_a_leaf_that_loses_its_memory_in_the_steady_state(shrink: Callable[[Any], Any]) -> None:
    """Where the last structure still fits, the leaves are not looked at one by one."""
    template = Template()
    ragged = torch.zeros(300, 300)
    state = {"x": torch.zeros(7), "y": ragged.T[-9:], "z": [np.zeros(3), torch.zeros(())], "empty": torch.zeros(0, 4)}
    for _ in range(3):
        template.flatten(state)
        template.clear()
    tensor: Any
    for name, tensor in (("x", state["x"]), ("y", ragged)):
        shrink(tensor)
        with pytest.raises(FreedMemoryError, match=f": {name}"):
            template.flatten(state)
        tensor.untyped_storage().resize_(tensor.numel() * 4)
        template.flatten(state)


class Freeing:
    """Its state_dict() frees a tensor that comes before it."""

    def __init__(self, victim: torch.Tensor) -> None:
        self.victim, self.active = victim, False

    def state_dict(self) -> dict[str, Any]:
        if self.active:
            freed(self.victim)
        return {"x": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize("capture", ["eager", "lazy"])
@pytest.mark.parametrize("steady", [False, True])
def test_a_state_dict_that_frees_a_leaf_before_it(tmp_path: Path, capture: str, steady: bool) -> None:
    victim = torch.zeros(2_000_000)
    freeing = Freeing(victim)
    state = {"a": victim, "b": freeing}
    with deeppart.Checkpointer(config(tmp_path, capture=capture)) as ck:
        if steady:
            ck.checkpoint(state, 1).wait("persistent", 30)
        freeing.active = True
        with pytest.raises(FreedMemoryError, match="says: a"):
            ck.checkpoint(state, 2)
