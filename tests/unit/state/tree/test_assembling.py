"""Tensors are made of their components again; components that make none are damage, whatever they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.errors import CorruptFileError
from deeppart.state.tree.composites import assemble, take_apart
from tests.tensor_kinds import batched_bsr, by_channels, coo, csr, jagged, quantized, with_holes

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")


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
    parts = take_apart(sound(), "x")
    assert parts is not None
    with pytest.raises(CorruptFileError, match="do not make one") as caught:
        assemble(parts.kind, parts.items | changes)
    assert parts.kind in str(caught.value)


def test_a_component_too_many_is_damage() -> None:
    parts = take_apart(coo(), "x")
    assert parts is not None
    with pytest.raises(CorruptFileError):
        assemble(parts.kind, parts.items | {"more": 1})
