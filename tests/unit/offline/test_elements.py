"""Elements as numbers: every bit pattern of the small types, and none of the large ones rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from deeppart.offline.elements import as_numpy, numbers, octets_of
from deeppart.state.tensors.leaves import TORCH_DTYPES, leaf_type

FLOATS = [name for name, dtype in TORCH_DTYPES.items() if dtype.is_floating_point and dtype.itemsize <= 2]
HALVES = "float4_e2m1fn_x2"


def found(data: Any) -> Any:
    return numbers(octets_of(data), leaf_type(data))


@pytest.mark.parametrize("name", [name for name in FLOATS if name != HALVES])
def test_every_bit_pattern_of_small_floats(name: str) -> None:
    """Against torch's own conversion; NaNs of all kinds are among them."""
    dtype = TORCH_DTYPES[name]
    octets = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.uint8)
    data = octets.view(dtype) if dtype.itemsize == 2 else octets[:512:2].contiguous().view(dtype)
    assert data.numel() == 1 << 8 * dtype.itemsize
    expected = data.to(torch.float32).to(torch.float64).numpy()
    assert found(data).dtype == np.float64
    np.testing.assert_array_equal(found(data), expected)
    np.testing.assert_array_equal(np.signbit(found(data)), np.signbit(expected))
    np.testing.assert_array_equal(as_numpy(data, leaf_type(data)), data.to(torch.float32).numpy())


@pytest.mark.parametrize(
    "data",
    [
        torch.tensor([2**63 - 1, -(2**63), 2**53 + 1]),
        torch.tensor([2**64 - 1, 2**53 + 1], dtype=torch.uint64),
        np.array([2**53 + 1], dtype=">i8"),
        torch.tensor([True, False]),
        np.array([1 + 2**-60], dtype=np.longdouble),
        np.array([1.5, -0.0], dtype=">f4"),
        torch.tensor([1 + 2j, complex(float("inf"), -0.0)]),
        torch.tensor([1 + 2j]).to(torch.complex64),
    ],
)
def test_no_value_is_rounded(data: Any) -> None:
    assert found(data).tolist() == data.tolist()
