"""Leaves in another precision: which can be converted, and to what."""

from __future__ import annotations

import pytest
import torch

from deeppart.state.restore.leaf_matching import can_cast
from deeppart.state.restore.merge import cast_into
from deeppart.state.tree.leaves import TORCH_DTYPES, LeafType, leaf_type

FLOATS = ("float64", "float32", "float16", "bfloat16")


@pytest.mark.parametrize("saved", FLOATS)
@pytest.mark.parametrize("live", FLOATS)
def test_floats_are_rounded_as_torch_does(saved: str, live: str) -> None:
    values = torch.tensor([1.0, -0.1, 3e-5, float("inf"), float("nan")], dtype=TORCH_DTYPES[saved])
    target = torch.zeros(5, dtype=TORCH_DTYPES[live], requires_grad=True)
    assert can_cast(leaf_type(values), leaf_type(target))
    cast_into([(target, values)])
    assert torch.equal(target.detach(), values.to(target.dtype)) or torch.equal(
        target.detach().nan_to_num(), values.to(target.dtype).nan_to_num()
    )


@pytest.mark.parametrize(
    ("saved", "live"),
    [
        ("int64", "int32"),
        ("int64", "float32"),
        ("float32", "int64"),
        ("bool", "float32"),
        ("complex64", "float32"),
        ("float32", "complex64"),
        ("float4_e2m1fn_x2", "float32"),
    ],
)
def test_what_may_not_fit_is_not_converted(saved: str, live: str) -> None:
    if saved in TORCH_DTYPES:
        assert not can_cast(LeafType("torch", saved, (4,)), LeafType("torch", live, (4,)))


def test_kind_and_shape_must_be_the_same() -> None:
    one = LeafType("torch", "float32", (4,))
    assert not can_cast(one, LeafType("torch", "bfloat16", (2, 2)))
    assert not can_cast(one, LeafType("numpy", "<f8", (4,)))
    assert can_cast(LeafType("numpy", "<f8", (2,)), LeafType("numpy", "<f2", (2,)))
    assert not can_cast(LeafType("numpy", "<i8", (2,)), LeafType("numpy", "<f8", (2,)))
    assert can_cast(LeafType("torch", "complex128", ()), LeafType("torch", "complex64", ()))
