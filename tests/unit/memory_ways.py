"""Ways in which training can give tensors other memory, each applied to the state of a checkpoint under way.

A program, because what it looks for may end the process: ``python memory_ways.py DIRECTORY WAYS CAPTURE-MOMENT ...``,
where WAYS is a list of names in JSON, prints one line of JSON per case and way: their names, and "right", "refused"
with the reason, or what is wrong.
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import deeppart
from deeppart.state.capture import lazy as deferred
from tests.states import difference

#: Elements: above and below what the C library keeps on its heap.
SIZES = (1_200_000, 30_000, 1_000_000, 25_000, 25_000, 40_000)
ARRAYS: list[Any] = []


class Net(nn.Module):
    def __init__(self, seed: int, *, on_arrays: bool = False) -> None:
        super().__init__()
        generator = np.random.default_rng(seed)
        for number, size in enumerate(SIZES):
            values = generator.standard_normal(size).astype(np.float32)
            if on_arrays:
                ARRAYS.append(values)
            tensor = torch.from_numpy(values) if on_arrays else torch.tensor(values)
            self.register_parameter(f"p{number}", nn.Parameter(tensor))


def _each(change: Callable[[torch.Tensor], object]) -> Callable[[nn.Module], None]:
    def way(net: nn.Module) -> None:
        with torch.no_grad():
            for parameter in list(net.parameters()):
                change(parameter)

    return way


def _flagged(flag: str) -> Callable[[nn.Module], None]:
    def way(net: nn.Module) -> None:
        setter = getattr(torch.__future__, f"set_{flag}")
        setter(True)
        try:
            net.half()
        finally:
            setter(False)

    return way


def _data(parameter: Any) -> None:
    parameter.data = torch.full_like(parameter, 7.0)


def _swap(parameter: Any) -> None:
    torch.utils.swap_tensors(parameter, nn.Parameter(torch.full_like(parameter, 7.0)))


def _gone_and_back(parameter: torch.Tensor) -> None:
    """As sharded training frees what it has gathered: the same storage, perhaps at the same address."""
    storage = parameter.untyped_storage()
    nbytes = storage.nbytes()
    storage.resize_(0)
    storage.resize_(nbytes)
    parameter.detach().numpy()[...] = 7.0  # which no counter sees


def _swap_pointers(parameter: torch.Tensor) -> None:
    parameter.untyped_storage()._swap_data_ptr_(torch.full_like(parameter, 7.0).untyped_storage())  # type: ignore[attr-defined]


def _vector(net: nn.Module) -> None:
    nn.utils.vector_to_parameters(torch.zeros(sum(SIZES)), net.parameters())


def _arrays(net: nn.Module) -> None:
    for array in ARRAYS:
        array.resize((array.size * 3,), refcheck=False)


def _dropped(net: nn.Module) -> None:
    for name in list(net._parameters):
        del net._parameters[name]


WAYS: dict[str, Callable[[Any], object]] = {
    "vector_to_parameters": _vector,
    "half": lambda net: net.half(),
    "to": lambda net: net.to(torch.float64),
    "half, overwriting": _flagged("overwrite_module_params_on_conversion"),
    "half, swapping": _flagged("swap_module_params_on_conversion"),
    "to_empty": lambda net: net.to_empty(device="cpu"),
    "data": _each(_data),
    "set_": _each(lambda p: p.set_(torch.full((p.numel(),), 7.0))),  # type: ignore[call-overload]
    "set_ storage": _each(lambda p: p.data.set_(torch.full((p.numel(),), 7.0).untyped_storage())),
    "resize_": _each(lambda p: p.data.resize_(3 * p.numel())),
    "swap_tensors": _each(_swap),
    "storage freed": _each(lambda p: p.untyped_storage().resize_(0)),
    "typed storage freed": _each(lambda p: p._typed_storage()._resize_(0)),
    "storage shrunk": _each(lambda p: p.untyped_storage().resize_(p.numel())),
    "storage grown": _each(lambda p: p.untyped_storage().resize_(8 * p.numel())),
    "storage freed and back": _each(_gone_and_back),
    "share_memory_": lambda net: net.share_memory(),
    "_share_filename_cpu_": _each(lambda p: p.untyped_storage()._share_filename_cpu_()),
    "_share_fd_cpu_": _each(lambda p: p.untyped_storage()._share_fd_cpu_()),
    "pin_memory": _each(lambda p: setattr(p, "data", p.data.pin_memory())),
    "dropped": _dropped,
    "arrays resized": _arrays,
    "_swap_data_ptr_": _each(_swap_pointers),
}


class Slow:
    """Stops the background copies in the middle until told to go on."""

    def __init__(self, *, copies_before: int) -> None:
        self.reached, self.go, self._left = threading.Event(), threading.Event(), copies_before
        self._copied = deferred._copy
        deferred._copy = self._copy

    def _copy(self, piece: Any) -> Any:
        if threading.current_thread().name.startswith("deeppart"):
            if self._left == 0:
                self.reached.set()
                assert self.go.wait(60)
            self._left -= 1
        return self._copied(piece)

    def end(self) -> None:
        self.go.set()
        deferred._copy = self._copied


def outcome(name: str, directory: Path, capture: str, moment: str) -> str:
    """Two checkpoints; the way is applied while the second is under way."""
    ARRAYS.clear()
    net = Net(1, on_arrays=name == "arrays resized")
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    state = {"params": dict(net.named_parameters()), "optimizer": optimizer}
    before = {key: value.detach().clone() for key, value in net.named_parameters()}
    config = deeppart.Config(persistent_dir=str(directory), capture=capture, compression="none", timeout=60.0)
    with deeppart.Checkpointer(config) as ck:
        ck.checkpoint(state, 1).wait("persistent", 60)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(2.0)
        poison: list[torch.Tensor] = []
        slow = Slow(copies_before=0 if moment == "before" else 3)
        pending = ck.checkpoint(state, 2)
        del state
        try:
            if capture == "lazy":
                assert slow.reached.wait(60)
            WAYS[name](net)
            gc.collect()
            poison = [torch.full((size,), 3.0) for size in SIZES for _ in range(3)]
        except RuntimeError:
            if name != "pin_memory" or torch.cuda.is_available():
                raise
        finally:
            slow.end()
        try:
            pending.wait("persistent", 60)
        except deeppart.errors.CheckpointError as error:
            reason = str(error)
            if difference(before, deeppart.load(directory, 1)["params"]) is not None:
                return "the earlier checkpoint is damaged"
            try:
                deeppart.load(directory, 2)
            except deeppart.DeeppartError:
                return f"refused: {reason}" if "params/p" in reason else f"refused without a name: {reason}"
            return "refused, but it can be loaded"
        doubled = {key: value * 2.0 for key, value in before.items()}
        wrong = difference(doubled, deeppart.load(directory, 2)["params"])
        del poison
    return "right" if wrong is None else f"wrong bytes: {wrong}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    gc.freeze()  # torch's own objects: each collection would go through all of them
    for case, (number, way) in itertools.product(sys.argv[3:], enumerate(json.loads(sys.argv[2]))):
        if way == "_swap_data_ptr_" and not hasattr(torch.UntypedStorage, way):
            found = "right"
        else:
            found = outcome(way, Path(sys.argv[1]) / f"{case}-{number}", *case.split("-"))
        print(json.dumps([case, way, found]), flush=True)
