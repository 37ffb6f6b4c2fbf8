"""What stands at a place, in words."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch

from deeppart.state.restore.leaf_matching import describe_node, first_inside
from deeppart.state.tree.flat import ValueLeaf
from deeppart.state.tree.flatten import flatten


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (torch.ones(2), "an array"),
        ({"a": torch.ones(2)}, "a dict of 1"),
        (OrderedDict(a=torch.ones(2)), "an OrderedDict of 1"),
        (None, "None"),
        (3, "a value of type int"),
        (list(range(30)), "a list of 30"),
        (torch.eye(2).to_sparse(), "a sparse_coo tensor"),
    ],
)
def test_each_kind_has_its_name(item: Any, expected: str) -> None:
    node = flatten(item).root
    assert describe_node(node, node.value if isinstance(node, ValueLeaf) else None) == expected


def test_the_first_thing_in_a_container_that_is_no_value() -> None:
    assert first_inside(flatten({"a": 1, "b": [2, {"c": torch.ones(2)}]}).root) == ", with an array at b/1/c"
    assert first_inside(flatten({"a": 1, "b": [2]}).root) == ", with small values alone"
