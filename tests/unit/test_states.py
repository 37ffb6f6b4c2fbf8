"""The comparison of states sees every bit, and clones have none of the original's."""

from __future__ import annotations

from collections import Counter, OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from tests.states import Box, difference

Point = namedtuple("Point", "x y")
Other = namedtuple("Other", "x z")
NAN = np.frombuffer(np.array([0x7FF8000000000001], dtype="<u8").tobytes(), dtype="<f8")[0].item()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(1), np.zeros(1, dtype=np.float32)),
        (np.zeros(1, dtype="<f4"), np.zeros(1, dtype=">f4")),
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (float("nan"), NAN),
        (np.float32(1), np.float64(1)),
        ([1], (1,)),
        (Point(1, 2), Other(1, 2)),
        ({"a": 1}, OrderedDict(a=1)),
        (Counter(a=1), {"a": 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({1: 0}, {True: 0}),
        ([1, 2], [1]),
        (Box({"w": torch.zeros(1)}), Box({"w": torch.ones(1)})),
        (None, 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Box) else str(value),
)
def test_whatever_differs_is_seen_from_both_sides(one: Any, other: Any) -> None:
    for expected, found in ((one, other), (other, one)):
        assert difference({"deep": [expected]}, {"deep": [found]}) is not None
    for each in (one, other):
        assert difference({"deep": [each]}, {"deep": [each]}) is None


def test_the_place_is_named() -> None:
    one, other = {"a": [0, {"b": torch.zeros(3)}]}, {"a": [0, {"b": torch.tensor([0.0, 1.0, 0.0])}]}
    told = difference(one, other)
    assert told is not None and "a" in told and "bytes differ from byte 6 of 12" in told


def test_the_order_of_dicts_may_be_left_out() -> None:
    assert difference({"a": 1, "b": 2}, {"b": 2, "a": 1}, ordered=False) is None
    assert difference({"a": 1, "b": 2}, {"b": 1, "a": 2}, ordered=False) is not None


def test_a_parameter_is_a_tensor_and_an_object_is_its_state() -> None:
    assert difference(torch.ones(2), torch.nn.Parameter(torch.ones(2))) is None
    assert difference({"w": 1}, Box({"w": 1})) is None and difference(Box(Box([1])), [1]) is None
