"""A machine as numbers: what is worked out from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import pytest
from deeppart_simulator.campaign.failures import CLASSES
from deeppart_simulator.machine.record import (
    MTBF,
    PIECES,
    SHARE,
    WAYS,
    Failures,
    Group,
    Restart,
    of,
    read_currency,
    read_watts,
)

from tests.simulator.timing.jobs import MACHINE


def test_computing_takes_longer_where_there_are_more_ranks_than_cores() -> None:
    machine = replace(MACHINE, cores=8, encode_threads=4)
    assert [machine.crowding(ranks) for ranks in (1, 8, 16)] == [1.0, 1.0, 2.0]
    assert [machine.encoding_threads(ranks) for ranks in (1, 2, 4, 16)] == [4.0, 3.0, 1.0, 0.5]


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


def test_never_is_infinity_for_failures_alone() -> None:
    assert MTBF.read("never") == math.inf and MTBF.read("2 h") == 7200.0
    for value in (True, "0.5"):
        with pytest.raises(ValueError, match="a number"):
            SHARE.read(value)


def test_a_field_without_a_default_must_be_there() -> None:
    @dataclass(frozen=True)
    class Some:
        first: float = of(SHARE)
        second: float = of(SHARE, 0.5)

    assert [each.metadata["kind"] for each in fields(Some)] == [SHARE, SHARE]
    assert Some(0.1).second == 0.5
    with pytest.raises(TypeError):
        Some()


def test_watts_with_a_unit_and_without() -> None:
    assert [read_watts(value) for value in (700, 2500.0, "2.5 kW", "21 MW", "300 W")] == [700, 2500, 2500, 21e6, 300]
    assert math.isnan(read_watts("3 horses")) and math.isnan(read_watts("700"))


def test_currencies_are_short_and_no_markup() -> None:
    assert [read_currency(value) for value in ("USD", "€", "SBU-h")] == ["USD", "€", "SBU-h"]
    for value in ("", "US dollars", "[red]", "a\nb", 3, None):
        with pytest.raises(ValueError, match="currency"):
            read_currency(value)


def test_each_way_pays_less_than_the_one_before() -> None:
    spared = [earlier.after({"node"}) - later.after({"node"}) for earlier, later in pairwise(WAYS.values())]
    assert spared == [{"requeue"}, {"replace"}, {"imports"}, {"relaunch"}]
    for earlier, later in pairwise(WAYS.values()):
        for kind in CLASSES:
            assert later.after({kind}) <= earlier.after({kind}), (earlier.name, later.name, kind)


@pytest.mark.parametrize("name", WAYS)
def test_what_is_lost_decides_what_is_paid(name: str) -> None:
    way = WAYS[name]
    assert way.after({"process"}) <= way.after({"node"}) == way.after({"group"})
    assert way.after({"system"}) == set(PIECES) - {"replace"}, "nothing is left, and all nodes come back"
    assert way.after({"process", "system"}) == way.after({"process"}) | way.after({"system"})
    assert "replace" not in way.after({"process"})
