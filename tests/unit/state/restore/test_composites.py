"""Tensors that are made of others are restored in place where their shapes allow it, else replaced, else refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import deeppart
from deeppart.errors import LeafMismatchError, StructureMismatchError, UnsupportedLeafError
from deeppart.state.tensors.composites import decompose
from tests.states import Box
from tests.tensor_kinds import (
    KINDS,
    Described,
    bits,
    by_channels,
    coo,
    csr,
    dense,
    four,
    jagged,
    quantized,
    two,
    with_holes,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")


STEPS = itertools.count(1)


def restored(ck: deeppart.Checkpointer, saved: Any, live: Any) -> Any:
    """The live state after a restore of the saved one."""
    step = next(STEPS)
    ck.checkpoint(saved, step).wait(timeout=200)
    assert ck.restore(live) == step
    return live


def refused(ck: deeppart.Checkpointer, saved: Any, live: Any, *, has_bytes: bool = True) -> str:
    """The message of the error; nothing live was changed."""

    def content() -> Any:
        return bits({key: item for key, item in live.items() if not isinstance(item, torch.nn.Module)})

    before = content() if has_bytes else None
    ck.checkpoint(saved, next(STEPS)).wait(timeout=200)
    with pytest.raises((LeafMismatchError, StructureMismatchError)) as caught:
        ck.restore(live)
    assert before is None or content() == before
    assert "to do:" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", KINDS)
def test_it_is_filled_in_place_or_created_where_nothing_is(ck: deeppart.Checkpointer, name: str) -> None:
    make = KINDS[name]
    saved, live = ({"x": make(seed), "l": [make(seed + 1)], "y": {"z": make(seed + 2)}} for seed in (1, 3))
    item = live["x"]
    restored(ck, saved, live)
    assert bits(live) == bits(saved)
    assert (live["x"] is item) is not name.startswith("jagged") and type(live["x"]) is type(item)
    if not name.startswith("subclass"):
        created: dict[str, Any] = {"x": None, "l": [], "y": {}}
        ck.restore(created)
        assert bits(created) == bits(saved)


@pytest.mark.parametrize("live", [{"x": None}, {}, {"x": [], "y": 1}])
def test_a_subclass_is_not_created(ck: deeppart.Checkpointer, live: dict[str, Any]) -> None:
    saved: Any = two() if "y" not in live else [two()]
    assert "TwoTensor" in refused(ck, {"x": saved, **({"y": 2} if "y" in live else {})}, live)


def test_an_optimizer_that_has_not_stepped_gets_no_subclass(ck: deeppart.Checkpointer) -> None:
    optimizers = []
    for _ in range(2):
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizers.append(torch.optim.SGD([parameter], lr=0.1, momentum=0.9))
    optimizers[0].state[optimizers[0].param_groups[0]["params"][0]]["m"] = two()
    text = refused(ck, {"o": optimizers[0]}, {"o": optimizers[1]})
    assert "path o/state/0/m" in text and "take a step" in text


OTHERS: dict[str, tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]] = {
    "more nonzeros": (lambda: coo(1, 9), lambda: coo(2, 4)),
    "fewer nonzeros": (lambda: coo(1, 2), lambda: coo(2, 4)),
    "no nonzeros": (lambda: coo(1, 4), lambda: torch.sparse_coo_tensor(
        torch.zeros(2, 0, dtype=torch.long), torch.zeros(0), (5, 6), check_invariants=True
    )),
    "csr": (lambda: csr(1, 3), lambda: csr(2, 8)),
    "csc": (lambda: dense(1, 3).to_sparse_csc(), lambda: dense(2, 8).to_sparse_csc()),
    "expanded": (lambda: coo(1, 3), lambda: torch.sparse_coo_tensor(
        torch.zeros(2, 3, dtype=torch.long), torch.zeros(1).expand(3), (5, 6), check_invariants=True
    )),
    "jagged": (lambda: jagged(1), lambda: jagged(2)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_another_number_of_elements_is_put_into_dicts_and_lists(ck: deeppart.Checkpointer, name: str) -> None:
    theirs, mine = OTHERS[name]
    saved: dict[str, Any] = {"x": theirs(), "l": [theirs(), (1, theirs())], "b": Box({"x": theirs()})}
    live: dict[str, Any] = {"x": mine(), "l": [mine(), (1, mine())], "b": Box({"x": mine()})}
    old = live["x"]
    before = bits(old)
    restored(ck, saved, live)
    assert bits(live["x"]) == bits(saved["x"]) and bits(live["l"]) == bits(saved["l"])
    assert bits(live["b"].content) == bits(saved["b"].content)
    assert live["x"] is not old and bits(old) == before


@pytest.mark.parametrize("name", [name for name in OTHERS if name != "no nonzeros"])
def test_where_it_cannot_be_replaced_it_is_refused(ck: deeppart.Checkpointer, name: str) -> None:
    theirs, mine = OTHERS[name]
    for saved, live in (
        ({"p": torch.nn.Parameter(theirs())}, {"p": torch.nn.Parameter(mine())}),
        ({"m": module(theirs())}, {"m": module(mine())}),
    ):
        text = refused(ck, saved, live)
        assert "can only be replaced" in text and "put it into a dict or list" in text
    ck.checkpoint((1, theirs()), next(STEPS)).wait(timeout=200)
    with pytest.raises(StructureMismatchError, match="can only be replaced"):
        ck.restore((1, mine()))


def module(tensor: torch.Tensor) -> Any:
    made = torch.nn.Linear(2, 2)
    made.register_buffer("x", tensor)
    return made


MISMATCHES: dict[str, tuple[Any, Any, str]] = {
    "coo for dense": (coo, lambda: torch.ones(5, 6), "a sparse_coo tensor"),
    "dense for coo": (lambda: torch.ones(5, 6), coo, "a sparse_coo tensor"),
    "csr for csc": (csr, lambda: dense().to_sparse_csc(), "a sparse_csc tensor"),
    "coo for a value": (coo, lambda: 5, "a value of type int"),
    "a value for coo": (lambda: 5, coo, "a sparse_coo tensor"),
    "a dict for a subclass": (lambda: {"a": torch.ones(3)}, two, "a dict of 1"),
    "coo of another shape": (coo, lambda: torch.sparse_coo_tensor(
        coo()._indices(), coo()._values(), (7, 6), check_invariants=True), "its shape"),
    "coo of another dtype": (coo, lambda: coo().double(), "its values"),
    "coo with dense dimensions": (coo, lambda: torch.ones(5, 6).to_sparse(1), "its indices"),
    "bsr of other blocks": (
        lambda: torch.ones(4, 6).to_sparse_bsr((2, 3)), lambda: torch.ones(4, 6).to_sparse_bsr((4, 2)), "its"),
    "csr with indices of 64 bits": (csr, lambda: dense().to_sparse_csr(), "its compressed"),
    "quantized to another dtype": (quantized, lambda: quantized(1, torch.qint8), "its dtype"),
    "quantized by channels": (quantized, by_channels, "a quantized_channels tensor"),
    "quantized of another shape": (lambda: quantized()[:2], quantized, "its ints"),
    "channels of another dimension": (by_channels, lambda: torch.quantize_per_channel(
        torch.ones(3, 4), torch.ones(3).double(), torch.zeros(3).long(), 0, torch.quint8), "its axis"),
    "channels by floats": (by_channels, lambda: by_channels(1, floats=True), "its scales"),
    "jagged of another batch": (
        jagged, lambda: torch.nested.nested_tensor([torch.ones(2, 3)], layout=torch.jagged), "its offsets"),
    "jagged of another dimension": (jagged, lambda: jagged().transpose(1, 2), "its ragged_dim"),
    "jagged with holes": (jagged, lambda: with_holes(), "its values"),
    "another subclass": (two, lambda: Described(torch.ones(3)), "Described"),
    "a subclass of another shape": (two, lambda: TwoTensor(torch.ones(4), torch.ones(4)), "its context"),
    "a subclass of others": (lambda: TwoTensor(two(1), two(2)), two, "path x/a"),
    "a subclass of plain ones": (two, lambda: four(1), "path x/a"),
    "another context": (lambda: Described(torch.ones(3), 1), lambda: Described(torch.ones(3), True), "its context"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISMATCHES)
def test_what_is_of_another_kind_is_refused(ck: deeppart.Checkpointer, name: str) -> None:
    theirs, mine, said = MISMATCHES[name]
    text = refused(ck, {"x": theirs()}, {"x": mine()})
    assert said in text and "path x" in text


def test_one_tensor_at_two_places(ck: deeppart.Checkpointer) -> None:
    makers: list[Callable[[int], torch.Tensor]] = [coo, csr, quantized, by_channels, jagged, two]
    for make in makers:
        one, mine = make(1), make(3)
        live = restored(ck, {"a": one, "b": one}, {"a": mine, "b": mine})
        assert bits(live) == bits({"a": one, "b": one})
        rank_local = restored(ck, {"a": one, "b": one}, {"a": make(5), "b": make(7)})
        assert bits(rank_local) == bits({"a": one, "b": one})


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("context", "said"),
    [
        (torch.ones(1), "torch.Tensor"),
        ({"a": [object()]}, "builtins.object"),
        ({(1, 2): 3}, "keys"),
        (endless(), "deeply"),
    ],
)
def test_a_context_of_anything_else_is_refused(context: Any, said: str) -> None:
    with pytest.raises(UnsupportedLeafError, match="path x/y") as caught:
        decompose(Described(torch.ones(2), context), "x/y")
    assert all(text in str(caught.value) for text in (said, "Described", "to do: save the tensors"))


def test_the_result_of_a_collective_is_not_taken_for_what_it_wraps() -> None:
    class Waiting(Described):
        def trigger_wait(self) -> torch.Tensor:
            return self.a

    waiting = torch.Tensor._make_wrapper_subclass(Waiting, (2,))
    assert decompose(waiting, "x") is None


META = "meta"


def test_a_tensor_on_the_meta_device_is_created_where_a_container_takes_it(ck: deeppart.Checkpointer) -> None:
    saved = {"x": torch.ones(3), "l": [torch.ones(2), (1, torch.ones(1))], "t": (torch.ones(2),)}
    live: dict[str, Any] = {
        "x": torch.ones(3, device=META),
        "l": [torch.empty(2, device=META), (1, torch.nn.Parameter(torch.empty(1, device=META)))],
        "t": (torch.zeros(2),),
    }
    restored(ck, saved, live)
    assert bits(live) == bits(saved) and live["x"].is_cpu


def test_a_tensor_on_the_meta_device_may_stay(ck: deeppart.Checkpointer) -> None:
    ck.checkpoint({"a": torch.ones(3), "m": torch.nn.Linear(2, 2), "x": torch.ones(2)}, step=1).wait()
    unmade, beside = torch.nn.Parameter(torch.zeros(2, device=META)), torch.zeros(1, device=META)
    live: Any = {"a": torch.zeros(3), "m": torch.nn.Linear(2, 2), "x": unmade.data, "beside": beside}
    live["m"].bias = unmade
    ck.restore(live, exclude=["m/bias", "x"], strict=False)
    assert live["a"].tolist() == [1, 1, 1] and live["x"].is_meta and live["m"].bias is unmade
    assert live["beside"] is beside


def test_a_tensor_on_the_meta_device_is_refused_elsewhere(ck: deeppart.Checkpointer) -> None:
    with torch.device(META):
        model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    real = torch.nn.Linear(2, 2)
    stepped = torch.optim.Adam(real.parameters())
    real(torch.ones(2)).sum().backward()
    stepped.step()
    bare = torch.ones(2, device=META)
    for saved, live, said in (
        ({"m": real}, {"m": model}, "to_empty(device=...) first"),
        ({"m": real.state_dict()}, {"m": model}, "to_empty(device=...) first"),
        ({"o": stepped}, {"o": optimizer}, "to_empty(device=...) first"),
        ({"b": Box({"x": torch.ones(2)})}, {"b": Box({"x": bare})}, "to_empty(device=...) first"),
        ({"x": torch.ones(3)}, {"x": bare}, "float32[2] (live)"),
        ({"x": 3}, {"x": bare}, "on the meta device"),
        ({"x": coo()}, {"x": bare}, "on the meta device"),
        ({"x": {"a": 1}}, {"x": {"a": 1, "b": bare}}, "checkpoint lacks"),
    ):
        assert said in refused(ck, saved, live, has_bytes=False)
