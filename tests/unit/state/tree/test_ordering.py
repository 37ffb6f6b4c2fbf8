"""The order of entries is no difference."""

from __future__ import annotations

from collections import OrderedDict

from deeppart.state.tree.runs import (
    LEAST_ROWS,
    encode_leaf_value,
    in_order,
)


def test_the_order_of_entries_is_no_difference() -> None:
    one = [{"a": 1, "b": {"c": 2, "d": 3}}] * LEAST_ROWS
    other = [{"b": {"d": 3, "c": 2}, "a": 1}] * LEAST_ROWS
    assert encode_leaf_value(one, "") != encode_leaf_value(other, "")
    assert in_order(one) == in_order(other)
    assert in_order(one) != in_order([{"a": 1, "b": OrderedDict(c=2, d=3)}] * LEAST_ROWS)
