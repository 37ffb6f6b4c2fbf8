"""Names in the order of their numbers."""

from __future__ import annotations

from deeppart_simulator.traces.record import in_order


def test_numbers_count_as_numbers() -> None:
    assert in_order(["n10", "n9", "n9", "m1"]) == ("m1", "n9", "n10")
    assert in_order(["r2n1", "r1n12", "r1n3"]) == ("r1n3", "r1n12", "r2n1")
    assert in_order(["1", "a", "10", "", "2"]) == in_order(["10", "2", "", "1", "a"])
    assert in_order(["007", "7"]) == ("007", "7")
