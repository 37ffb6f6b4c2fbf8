"""The space that checkpoints take, by hand and by the rule of ``keep``; and the life of drives."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from deeppart_simulator.budget import (
    drive_writes,
    drive_years,
    space_of,
    steps_kept,
)
from deeppart_simulator.campaign.background import retire
from deeppart_simulator.campaign.plan import Planned
from deeppart_simulator.campaign.survival import Stored

from tests.simulator.timing.jobs import MACHINE, job

EVERY = {"local": 1, "partner": 1, "persistent": 4}


def most_by_the_rule(every: dict[str, int]) -> dict[str, int]:
    """Calls one after the other, as a campaign keeps them: what is there when one is complete, and none removed."""
    stored: list[Stored] = []
    most = dict.fromkeys(every, 0)
    for sequence in range(8 * math.lcm(*every.values())):
        due = {level for level, count in every.items() if sequence % count == 0}
        if not due:
            continue
        stored.append(Stored(sequence, 0.0, (0,), due))
        most = {level: max(most[level], sum(level in each.levels for each in stored)) for level in every}
        stored = retire(stored)
    return most


def test_so_many_steps_are_kept_as_the_rule_of_keep_leaves() -> None:
    for partner, parity, persistent in itertools.product((1, 2, 4), (1, 2, 6), (1, 3, 12)):
        every = {"local": 1, "partner": partner, "parity": parity, "persistent": persistent}
        found, by_rule = steps_kept(every), most_by_the_rule(every)
        assert all(found[level] >= count for level, count in by_rule.items()), every
        assert all(found[level] == by_rule[level] for level in ("partner", "parity", "persistent")), every
        if partner == parity or 1 in (partner, parity):
            assert found == by_rule, every


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


def test_drives_are_worn_by_the_day() -> None:
    """A drive of 2 TB that may be written once a day for five years takes 1,826.25 times 2 TB."""
    local = replace(MACHINE.local, capacity=2e12, drive_writes_per_day=1.0)
    machine = replace(MACHINE, local=local)
    assert local.most_written == pytest.approx(1826.25 * 2e12)
    assert drive_years(machine, 2e12) == pytest.approx(5.0)
    assert drive_years(machine, 10e12) == pytest.approx(1.0) and drive_writes(machine, 10e12) == pytest.approx(5.0)
    assert drive_years(replace(machine, local=replace(local, endurance=365.25e12)), 1e12) == pytest.approx(1.0)
    three = replace(machine, local=replace(local, warranty=3 * 365.25 * 86400))
    assert drive_years(three, 2e12) == pytest.approx(3.0)
    assert math.isinf(drive_years(machine, 0.0)) and math.isinf(drive_years(MACHINE, 1e12))
    assert drive_writes(MACHINE, 1e12) is None
