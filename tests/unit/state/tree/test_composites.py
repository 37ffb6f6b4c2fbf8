"""Tensors that are made of others: taken apart, made again, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.state.tensors.composites import assemble, decompose
from tests.tensor_kinds import KINDS, Described, batched_bsr, by_channels, coo, csr, jagged, quantized, two, with_holes

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")


def test_components_share_the_memory_of_the_tensor() -> None:
    cases: list[tuple[torch.Tensor, str, Callable[[Any], torch.Tensor]]] = [
        (coo(), "values", lambda x: x._values()),
        (csr(), "values", lambda x: x.values()),
        (quantized(), "ints", lambda x: x.int_repr()),
        (quantized().t(), "ints", lambda x: x.int_repr()),
        (by_channels(), "ints", lambda x: x.int_repr()),
        (jagged(), "values", lambda x: x.values()),
        (two(), "a", lambda x: x.a),
    ]
    for tensor, key, read in cases:
        parts = decompose(tensor, "x")
        assert parts is not None
        parts.items[key].fill_(7)
        assert (read(tensor) == 7).all()


def test_what_is_plain_or_not_known_has_none() -> None:
    packed = torch.quantize_per_channel(torch.ones(2, 4), torch.ones(2), torch.zeros(2), 0, torch.quint4x2)
    strided = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])

    class Tagged(torch.Tensor):
        pass

    for tensor in (
        torch.ones(3), torch.nn.Parameter(torch.ones(3)), torch.ones(3, device="meta"), torch.ones(3).to_mkldnn(),
        packed, strided, torch.ones(3).as_subclass(Tagged), torch.nn.UninitializedParameter(),
        torch.eye(3).to_sparse().to("meta"),
    ):  # fmt: skip
        assert decompose(tensor, "x") is None


def test_a_context_is_made_of_small_values() -> None:
    parts = decompose(KINDS["subclass, with context"](1), "x")
    assert parts is not None
    name = "tests.tensor_kinds"
    settings = ("dataclass", f"{name}.Settings", {"size": 3, "colour": ("enum", f"{name}.Colour", "RED")})
    assert parts.items["context"] == {
        "shape": torch.Size([3]),
        "dtype": torch.float32,
        "context": {"s": settings, "sizes": [1, (2, torch.Size([3]))], "dtype": torch.int8},
    }


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
    assert (
        said in str(caught.value)
        and "Described" in str(caught.value)
        and "to do: save the tensors" in str(caught.value)
    )


@pytest.mark.parametrize(
    ("names", "said"),
    [(["b"], "AttributeError"), (["shape"], "a torch.Size|a Size"), ([], "0 components"), (["context"], "'context'")],
)
def test_names_that_lead_to_no_tensors_are_refused(names: list[str], said: str) -> None:
    class Odd(Described):
        def __tensor_flatten__(self) -> tuple[list[str], Any]:
            return names, None

    odd = torch.Tensor._make_wrapper_subclass(Odd, (2,))
    odd.context = torch.ones(2)
    with pytest.raises(UnsupportedLeafError, match=said):
        decompose(odd, "x")


def test_the_result_of_a_collective_is_not_taken_for_what_it_wraps() -> None:
    class Waiting(Described):
        def trigger_wait(self) -> torch.Tensor:
            return self.a

    waiting = torch.Tensor._make_wrapper_subclass(Waiting, (2,))
    assert decompose(waiting, "x") is None


def tensor(*items: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(items, dtype=dtype)


BIG = torch.Size([1 << 61, 1 << 61])
FORGED: dict[str, tuple[Callable[[], torch.Tensor], dict[str, Any]]] = {
    "coo: index too large": (coo, {"indices": tensor([0, 9, 1, 2], [0, 0, 0, 0])}),
    "coo: negative index": (coo, {"indices": tensor([0, -1, 1, 2], [0, 0, 0, 0])}),
    "coo: too few indices": (coo, {"indices": tensor([0, 1], [0, 0])}),
    "coo: indices of one dimension": (coo, {"indices": tensor(0, 1, 2, 3)}),
    "coo: indices of floats": (coo, {"indices": torch.zeros(2, 4)}),
    "coo: indices of 32 bits": (coo, {"indices": torch.zeros(2, 4, dtype=torch.int32)}),
    "coo: indices of another number of dimensions": (coo, {"indices": tensor([0, 1, 2, 3])}),
    "coo: negative shape": (coo, {"shape": torch.Size([-5, 6])}),
    "coo: shape of too much": (coo, {"shape": BIG}),
    "coo: shape that is none": (coo, {"shape": [5, 6]}),
    "coo: not coalesced": (coo, {"coalesced": True}),
    "coo: coalesced of another type": (coo, {"coalesced": 1}),
    "coo: values missing": (coo, {"values": None}),
    "coo: indices that repeat": (coo, {"indices": torch.zeros(2, 1).long().expand(2, 1 << 40)}),
    "csr: columns that repeat": (csr, {"plain": torch.zeros(1).int().expand(1 << 40)}),
    "quantized: ints that repeat": (quantized, {"ints": torch.zeros(1).byte().expand(1 << 40)}),
    "coo: values of numpy": (coo, {"values": np.ones(4, np.float32)}),
    "coo: values that are a number": (coo, {"values": torch.tensor(1.0)}),
    "csr: column too large": (csr, {"plain": torch.full((5,), 6, dtype=torch.int32)}),
    "csr: negative column": (csr, {"plain": torch.full((5,), -1, dtype=torch.int32)}),
    "csr: rows that fall": (csr, {"compressed": tensor(0, 5, 1, 2, 5, dtype=torch.int32)}),
    "csr: rows that begin later": (csr, {"compressed": tensor(1, 1, 1, 2, 5, dtype=torch.int32)}),
    "csr: rows beyond the end": (csr, {"compressed": tensor(0, 1, 1, 2, 9, dtype=torch.int32)}),
    "csr: too few rows": (csr, {"compressed": tensor(0, 5, dtype=torch.int32)}),
    "csr: indices of two dtypes": (csr, {"plain": torch.zeros(5, dtype=torch.int64)}),
    "csr: indices of 8 bits": (csr, {"plain": torch.zeros(5).char(), "compressed": torch.zeros(5).char()}),
    "csr: no dimensions": (
        csr,
        {"plain": tensor(dtype=torch.int32).sum().int(), "compressed": torch.tensor(0).int()},
    ),
    "csr: another shape": (csr, {"shape": torch.Size([3, 6])}),
    "csr: one dimension": (csr, {"shape": torch.Size([4])}),
    "csr: more dimensions": (csr, {"shape": torch.Size([4, 6, 2])}),
    "csr: negative shape": (csr, {"shape": torch.Size([4, -6])}),
    "csr: shape of too much": (csr, {"shape": torch.Size([4, 1 << 62])}),
    "csr: other values": (csr, {"values": torch.ones(4)}),
    "bsr: blocks of nothing": (batched_bsr, {"values": torch.zeros(2, 4, 0, 3)}),
    "bsr: blocks that do not fit": (batched_bsr, {"values": torch.zeros(2, 4, 3, 3)}),
    "bsr: no blocks": (batched_bsr, {"values": torch.zeros(2, 4)}),
    "bsr: another batch": (batched_bsr, {"shape": torch.Size([3, 4, 6])}),
    "quantized: another dtype": (quantized, {"dtype": torch.qint8}),
    "quantized: a plain dtype": (quantized, {"dtype": torch.uint8}),
    "quantized: no dtype": (quantized, {"dtype": "quint8"}),
    "quantized: scale of another type": (quantized, {"scale": 1}),
    "quantized: zero point of another type": (quantized, {"zero_point": 1.0}),
    "quantized: zero point of too many bits": (quantized, {"zero_point": 1 << 70}),
    "quantized: ints missing": (quantized, {"ints": None}),
    "channels: no such axis": (by_channels, {"axis": 2}),
    "channels: negative axis": (by_channels, {"axis": -1}),
    "channels: another axis": (by_channels, {"axis": 0}),
    "channels: too few scales": (by_channels, {"scales": torch.ones(2, dtype=torch.float64)}),
    "channels: scales of another dtype": (by_channels, {"scales": torch.ones(4).half()}),
    "channels: zero points of another dtype": (by_channels, {"zero_points": torch.zeros(4, dtype=torch.int16)}),
    "channels: ints of no dimension": (by_channels, {"ints": torch.tensor(1, dtype=torch.uint8)}),
    "jagged: offsets beyond the end": (jagged, {"offsets": tensor(0, 2, 2, 6)}),
    "jagged: negative offsets": (jagged, {"offsets": tensor(-1, 2, 2, 5)}),
    "jagged: offsets that fall": (jagged, {"offsets": tensor(0, 4, 2, 5)}),
    "jagged: no offsets": (jagged, {"offsets": tensor()}),
    "jagged: offsets of two dimensions": (jagged, {"offsets": tensor([0, 5])}),
    "jagged: offsets of floats": (jagged, {"offsets": torch.tensor([0.0, 5.0])}),
    "jagged: no such dimension": (jagged, {"ragged_dim": 3}),
    "jagged: dimension 0": (jagged, {"ragged_dim": 0}),
    "jagged: values of no dimension": (jagged, {"values": torch.tensor(1.0)}),
    "jagged: lengths too long": (with_holes, {"lengths": tensor(2, 9, 1)}),
    "jagged: negative lengths": (with_holes, {"lengths": tensor(2, -1, 1)}),
    "jagged: lengths that would wrap": (with_holes, {"lengths": tensor(2, (1 << 63) - 1, 1)}),
    "jagged: too few lengths": (with_holes, {"lengths": tensor(2, 1)}),
    "jagged: lengths of floats": (with_holes, {"lengths": torch.ones(3)}),
    "jagged: lengths that are a number": (with_holes, {"lengths": 3}),
}


@pytest.mark.parametrize("name", FORGED)
def test_components_that_make_no_tensor_are_damage(name: str) -> None:
    sound, changes = FORGED[name]
    parts = decompose(sound(), "x")
    assert parts is not None
    with pytest.raises(CorruptFileError, match="do not make one") as caught:
        assemble(parts.kind, parts.items | changes)
    assert parts.kind in str(caught.value)


def test_a_component_too_many_is_damage() -> None:
    parts = decompose(coo(), "x")
    assert parts is not None
    with pytest.raises(CorruptFileError):
        assemble(parts.kind, parts.items | {"more": 1})
