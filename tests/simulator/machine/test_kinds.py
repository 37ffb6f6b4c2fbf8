"""What the fields of machine files may be."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import pytest
from deeppart_simulator.machine.record import COUNT, MTBF, PER_NODE, SHARE, of


def test_never_is_infinity_for_failures_alone() -> None:
    assert MTBF.read("never") == math.inf and MTBF.read("2 h") == 7200.0
    for value in (True, "0.5"):
        with pytest.raises(ValueError, match="a number"):
            SHARE.read(value)


@pytest.mark.parametrize("value", [True, 2.0, "2"])
def test_counts_are_whole(value: object) -> None:
    assert COUNT.read(2) == 2 and PER_NODE.least == 1
    with pytest.raises(ValueError, match="a whole number"):
        COUNT.read(value)


def test_a_field_without_a_default_must_be_there() -> None:
    @dataclass(frozen=True)
    class Some:
        first: float = of(SHARE)
        second: float = of(SHARE, 0.5)

    assert [each.metadata["kind"] for each in fields(Some)] == [SHARE, SHARE]
    assert Some(0.1).second == 0.5
    with pytest.raises(TypeError):
        Some()
