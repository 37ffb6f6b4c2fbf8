"""What accumulators have in common; their own tests have what they add."""

from __future__ import annotations

from typing import Any

import pytest

from deeppart.elastic.sums import Sums


class Noted(Sums):
    """Outside of a block, what is added is noted as a text."""

    def __init__(self) -> None:
        self.noted: dict[Any, str] = {}

    def _addend(self, key: Any) -> Any:
        return Text(self.noted.get(key, ""))

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._open is not None:
            self._open[key] = value
        else:
            self.noted[key] = value

    def open(self, values: dict[Any, Any] | None) -> None:
        self._open = values


class Text(str):
    __slots__ = ()

    def __add__(self, value: object) -> Text:
        return Text(f"{self!s}+{value}")

    def __sub__(self, value: object) -> Text:
        return Text(f"{self!s}-{value}")


def test_outside_of_a_block_it_is_empty_and_takes_what_is_added() -> None:
    sums = Noted()
    kept = sums
    sums["a"] += 1
    sums.update({"a": 2}, b=3)
    sums.subtract(a=4)
    sums += {"b": 5}
    sums -= {"b": 6}
    assert sums is kept and sums.noted == {"a": "+1+2-4", "b": "+3+5-6"}
    assert (len(sums), list(sums), "a" in sums) == (0, [], False)
    assert sums.get("a") is None and sums.get("a", 5) == 5
    with pytest.raises(KeyError):
        del sums["a"]


def test_within_a_block_it_is_the_dict() -> None:
    sums, values = Noted(), {"a": 1}
    sums.open(values)
    sums["a"] += 1
    sums.update(a=2)
    sums -= {"a": 1}
    sums["b"] = 7
    assert sums.get("b") == 7 and sums.get("c", 8) == 8
    sums.update(new=2)
    sums.subtract(new=3)
    with pytest.raises(KeyError):
        sums["newer"] += 1
    assert values == {"a": 3, "b": 7, "new": -1}
    del sums["new"]
    assert dict(sums) == values and "b" in sums and len(sums) == 2
    del sums["a"]
    sums.open(None)
    assert values == {"b": 7} and not sums.noted and len(sums) == 0
