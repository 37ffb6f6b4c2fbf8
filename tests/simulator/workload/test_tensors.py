"""Leaves of a state, before a layout divides them."""

from __future__ import annotations

import pytest
import torch
from deeppart_simulator.workload.shapes import ITEM_BYTES, Parameter, Tensor


@pytest.mark.parametrize("dtype", sorted(ITEM_BYTES))
def test_sizes_are_those_of_torch(dtype: str) -> None:
    for shape in ((), (3,), (2, 5), (0, 7)):
        tensor = Tensor(Parameter("w", (2, 5), 0), "w", dtype, shape)
        real = torch.empty(shape, dtype=getattr(torch, dtype))
        assert (tensor.elements, tensor.nbytes) == (real.numel(), real.nbytes)
