"""The space that checkpoints take, by hand and by the rule of ``keep``; bills: tests/simulator/cli/test_advise.py."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from deeppart_simulator.budget import USEFUL, bill, missing, space_of
from deeppart_simulator.campaign.plan import Planned

from tests.simulator.timing.jobs import MACHINE, job

EVERY = {"local": 1, "partner": 1, "persistent": 4}


def test_bytes_on_each_node_and_on_the_file_system_by_hand() -> None:
    """16 GB on 4 nodes: 4 GB on each, as much in copies, two steps of both; four steps on the file system."""
    world = Planned(job()).on(4)
    space = space_of(world, EVERY)
    assert space.node_bytes == {"local": pytest.approx(8e9), "partner": pytest.approx(8e9)}
    assert (space.on_node, space.file_system_bytes) == (pytest.approx(16e9), pytest.approx(64e9))
    assert space.too_large == [], "nobody knows"
    rarer = space_of(world, EVERY | {"partner": 2})
    assert rarer.node_bytes == {"local": pytest.approx(12e9), "partner": pytest.approx(8e9)}
    compressed = space_of(Planned(job(compression="tensor")).on(4), EVERY)
    assert compressed.on_node == pytest.approx(0.8 * 16e9)


@pytest.mark.parametrize(
    ("capacity", "file_system", "quota", "said"),
    [
        (16.1e9, 65e9, 65e9, []),
        (15.9e9, 65e9, 65e9, ["[local] capacity"]),
        (16.1e9, 63e9, math.inf, ["[persistent] capacity"]),
        (16.1e9, 65e9, 63e9, ["[persistent] quota"]),
        (15.9e9, 63e9, 65e9, ["[local] capacity", "[persistent] capacity"]),
    ],
)
def test_what_does_not_fit_is_said(capacity: float, file_system: float, quota: float, said: list[str]) -> None:
    machine = replace(
        MACHINE,
        local=replace(MACHINE.local, capacity=capacity),
        persistent=replace(MACHINE.persistent, capacity=file_system, quota=quota),
    )
    found = space_of(Planned(job(machine=machine)).on(4), EVERY).too_large
    assert len(found) == len(said) and all(key in line for key, line in zip(said, found, strict=True))


def test_what_a_machine_does_not_say_is_left_out_of_its_bill_and_its_key_said() -> None:
    found = bill(MACHINE, 10, 3600.0, {USEFUL: 0.9, "blocked": 0.1})
    assert found.total.node_hours == pytest.approx(10) and found.lost.node_hours == pytest.approx(1)
    assert found.total.money is None and found.lost.money is None and all(each.money is None for each in found.items)
    (line,) = missing(MACHINE)
    assert line.startswith("no money") and "[price] node_hour" in line
