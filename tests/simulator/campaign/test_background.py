"""What checkpoints do in the background: room for the next one, levels in order, and what a failure ends."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import simpy
from deeppart_simulator.campaign.background import Background, FileSystem, bursts, retire
from deeppart_simulator.campaign.costs import level_costs
from deeppart_simulator.campaign.outcomes import RunResult
from deeppart_simulator.campaign.plan import Cadences, Planned, SizedJob
from deeppart_simulator.campaign.survival import Stored

from tests.simulator.campaign.jobs import busy


def _begun(due: tuple[str, ...] = ("local", "partner", "persistent")) -> tuple[simpy.Environment, Background, SizedJob]:
    job, cadences = busy()
    env = simpy.Environment()
    background = Background(env, cadences, RunResult(1, cadences.wall_s), job.job.machine.persistent.write)
    background.begin(job.on(8), Stored(0, 0.0, tuple(range(8))), due)
    return env, background, job.on(8)


def test_levels_are_complete_when_the_model_says() -> None:
    env, background, world = _begun()
    complete = world.times.complete()
    expected = {level: complete[level] - world.blocked_s for level in complete}
    for level in ("local", "partner"):
        env.run(until=expected[level] - 1e-6)
        assert not background.stored or level not in background.stored[0].levels
        env.run(until=expected[level] + 1e-6)
        assert level in background.stored[0].levels
    env.run()
    assert background.stored[0].levels == {"local", "partner", "persistent"} and background.is_idle


def test_the_next_one_waits_for_memory_and_for_one_of_two() -> None:
    env, background, world = _begun()
    assert background.is_busy and not background.has_room, "its memory is not free yet"
    env.run(until=background.change())
    assert env.now == world.local_s and background.has_room
    background.begin(world, Stored(1, 1.0, tuple(range(8))), ("local",))
    assert not background.has_room, "its memory is not free"
    env.run(until=2.1 * world.local_s)
    assert background.has_room and background.is_busy, "one of two is still flushed"
    assert {each.sequence: each.levels for each in background.stored} == {0: {"partner"}, 1: {"local"}}, "one is kept"
    env.run(until=background.over())
    assert background.is_idle and env.now > 10 * world.local_s


def test_a_failure_ends_what_is_under_way() -> None:
    env, background, world = _begun()
    env.run(until=world.local_s + 1e-6)
    background.end()
    assert background.has_room and background.is_idle
    env.run()
    assert background.stored[0].levels == {"local"}, "neither copied nor flushed afterwards"


def flushed_s(job: Planned, cadences: Cadences, levels: tuple[str, ...] = ("local", "persistent")) -> float:
    """Seconds from the end of a call until a campaign has flushed it."""
    env = simpy.Environment()
    background = Background(env, cadences, RunResult(1, cadences.wall_s), job.job.machine.persistent.write)
    background.begin(job.on(8), Stored(0, 0.0, tuple(range(8))), levels)
    env.run(until=background.over())
    return float(env.now)


def model_s(job: Planned) -> float:
    """The same, as the model has it."""
    world = job.on(8)
    return float(world.times.complete()["persistent"] - world.blocked_s)


def test_a_flush_that_keeps_up_ends_with_its_commit() -> None:
    """The file system takes everything in next to no time, and the commit follows the local level by 20 s."""
    usual, cadences = busy()
    persistent = replace(usual.job.machine.persistent, others=0.0, write=1e13, node_write=1e12, commit=20.0)
    job = Planned(replace(usual.job, machine=replace(usual.job.machine, persistent=persistent)))
    complete = job.on(8).times.complete()
    assert complete["persistent"] == pytest.approx(complete["local"] + 20.0)
    assert flushed_s(job, cadences) == pytest.approx(model_s(job), rel=1e-6)
    at_once = Planned(replace(job.job, machine=replace(job.job.machine, persistent=replace(persistent, commit=0.0))))
    flush, flush_at_once = (level_costs(each)[-1] for each in (job, at_once))
    assert flush.latency_s > flush_at_once.latency_s + 15.0
    assert (flush.cost_s, flush.busy_s) == (flush_at_once.cost_s, flush_at_once.busy_s), "nothing is written meanwhile"


ALL = {"local": 2, "partner": 1, "parity": 1, "persistent": 1}


def stored(*levels: Iterable[str]) -> list[Stored]:
    return [Stored(number, float(number), (0,), set(each)) for number, each in enumerate(levels)]


def left(found: list[Stored], keep: dict[str, int]) -> list[tuple[int, list[str]]]:
    return [(each.sequence, sorted(each.levels)) for each in retire(found, keep)]


def test_each_level_keeps_its_newest() -> None:
    found = stored(["persistent"], ["local", "persistent"], ["local"], ["local"])
    assert left(found, ALL) == [(1, ["persistent"]), (2, ["local"]), (3, ["local"])]


@pytest.mark.parametrize(
    ("nbytes", "most", "quarter_at", "expected"),
    [(100, math.inf, None, 10), (100, 5, None, 20), (0, math.inf, None, 0), (100, math.inf, 6, 22), (100, 2, 6, 50)],
)
def test_a_transfer_is_as_fast_as_its_job_and_the_file_system(
    nbytes: float, most: float, quarter_at: float | None, expected: float
) -> None:
    env = simpy.Environment()
    shared = FileSystem(env, 10.0)
    done = shared.begin(nbytes, most)
    if quarter_at is not None:
        env.run(until=quarter_at)
        shared.set_capacity(2.5)
    env.run(until=done)
    assert env.now == pytest.approx(expected)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_other_jobs_take_their_share_on_average(share: float) -> None:
    env = simpy.Environment()
    shared = FileSystem(env, 10.0)
    env.process(bursts(env, shared, 10.0, share, 100.0, np.random.default_rng(1)))
    env.run(until=shared.begin(1e7, math.inf))
    assert 1e6 / env.now == pytest.approx(1 - share, abs=0.03)
