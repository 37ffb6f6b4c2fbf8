"""GPUs that nobody has."""

from __future__ import annotations

from deeppart_simulator.cluster.engine import Free


def test_the_emptiest_nodes_come_first() -> None:
    free = Free(3, 4, {"a": (0, 0, 1)})
    assert free.take(5) == (2, 2, 2, 2, 1)
    assert free.take(4) == (0, 0, 1, 1)
