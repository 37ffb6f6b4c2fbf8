"""The order in which the entries of values are compared."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from deeppart.state.tree.paths import canonical_order
from deeppart.state.tree.runs import encode_leaf_value, make_run, run_kind
from deeppart.state.tree.values import Encoded


def in_order(value: Any) -> Encoded:
    """A value's encoding, that of dicts with their entries in canonical order, of ordered dicts in their own."""
    return encode_leaf_value(_ordered(value), "")


def _ordered(value: Any) -> Any:
    kind = run_kind(value)
    if kind is None:
        return value
    if isinstance(value, OrderedDict):
        keys: Any = list(value)  # two of them in other orders are not equal
    else:
        keys = canonical_order(value) if isinstance(value, dict) else range(len(value))
    return make_run(kind, keys, [_ordered(value[key]) for key in keys])
