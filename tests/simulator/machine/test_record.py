"""A machine as numbers: what is worked out from them."""

from __future__ import annotations

import math
from dataclasses import replace

from deeppart_simulator.machine.record import (
    PIECES,
    Failures,
    Group,
    Restart,
)

from tests.simulator.timing.jobs import MACHINE


def test_failures_are_rarer_by_a_factor_and_those_that_are_off_stay_off() -> None:
    machine = replace(MACHINE, failures=Failures(process=10.0, node=20.0, system=40.0, group_nodes=4, shape=0.7))
    rarer = machine.with_failures(2.0).failures
    assert (rarer.process, rarer.node, rarer.system, rarer.group) == (20.0, 40.0, 80.0, math.inf)
    assert (rarer.group_nodes, rarer.shape) == (4, 0.7)
    groups = {"rack": Group(nodes=4, mtbf=5.0), "power": Group(nodes=8, mtbf=math.inf)}
    machine = replace(MACHINE, failures=Failures(groups=groups))
    rarer = machine.with_failures(3.0).failures
    assert [(name, kind.nodes, kind.mtbf) for name, kind in rarer.groups.items()] == [
        ("rack", 4, 15.0), ("power", 8, math.inf),
    ]  # fmt: skip
    assert replace(machine.with_failures(2.0), failures=machine.failures) == machine


def test_pieces_of_a_restart_grow_with_the_ranks_where_they_say_so() -> None:
    restart = Restart(imports=20.0, imports_rank=0.01, communicator_rank=0.5, requeue=7.0, requeue_rank=1.0)
    assert tuple(restart.seconds(100)) == PIECES
    assert restart.seconds(100) == {
        "detect": 30.0, "requeue": 107.0, "replace": 60.0, "relaunch": 120.0, "imports": 21.0, "communicator": 50.0,
        "first_step": 0.0,
    }  # fmt: skip
    for piece in PIECES:
        faster, slower = restart.scaled(piece, 0.5).seconds(100), restart.seconds(100)
        assert faster == slower | {piece: slower[piece] / 2}, piece
