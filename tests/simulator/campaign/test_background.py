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
from deeppart_simulator.machine.record import Codec
from deeppart_simulator.timing.stages import Protection

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


def test_a_step_that_was_restored_is_at_home_on_its_new_nodes() -> None:
    env, background, world = _begun(("local", "partner"))
    env.run()
    stored = background.stored[0]
    stored.lost = {3}
    background.heal(world, stored, [0, 1, 2, 8, 4, 5, 6, 7])
    assert not background.is_idle and not background.is_busy
    env.run()
    assert stored.nodes == (0, 1, 2, 8, 4, 5, 6, 7) and not stored.lost and "partner" in stored.levels


def test_without_copies_and_parity_nothing_is_rebuilt() -> None:
    """As in the library: what the nodes have lost stays lost until the next call, and is read from the file system."""
    job, _ = busy()
    cadences = replace(busy()[1], every={"local": 1, "persistent": 1})
    env = simpy.Environment()
    background = Background(env, cadences, RunResult(1, cadences.wall_s), 1e9)
    stored = Stored(0, 0.0, tuple(range(8)), {"local", "persistent"}, {3})
    background.heal(job.on(8), stored, [0, 1, 2, 8, 4, 5, 6, 7])
    env.run()
    assert background.is_idle and stored.lost == {3} and stored.nodes == tuple(range(8))


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


@pytest.mark.parametrize("encode", [0.4e9, 5e9])
@pytest.mark.parametrize("levels", [("persistent",), ("local", "persistent")])
def test_a_compressed_flush_ends_when_the_model_says(levels: tuple[str, ...], encode: float) -> None:
    """Chunks are encoded while others are written, without a local level, too; what ends the file follows the last."""
    usual, cadences = busy()
    persistent = replace(usual.job.machine.persistent, others=0.0, file=2.0)
    machine = replace(
        usual.job.machine, persistent=persistent, codecs={"float32": Codec(ratio=0.6, encode=encode, decode=1e9)}
    )
    protection = Protection(local="local" in levels, partner=False)
    job = Planned(replace(usual.job, machine=machine, compression="tensor", protection=protection))
    assert flushed_s(job, cadences, levels) == pytest.approx(model_s(job), rel=1e-6)


def test_a_flush_that_waited_for_an_earlier_one_does_not_wait_for_a_file_that_is_there() -> None:
    """Two calls at once: local files take 10 s and more, the copy of each to the file system 5 s."""
    usual, cadences = busy()
    machine = replace(
        usual.job.machine,
        local=replace(usual.job.machine.local, write=1e9),
        persistent=replace(usual.job.machine.persistent, others=0.0, write=16e9, node_write=2e9),
    )
    job = Planned(replace(usual.job, machine=machine, protection=Protection(partner=False)))
    env, world = simpy.Environment(), job.on(8)
    background = Background(env, cadences, RunResult(1, cadences.wall_s), machine.persistent.write)
    for number in range(2):
        background.begin(world, Stored(number, 0.0, tuple(range(8))), ("local", "persistent"))
    env.run(until=background.over())
    assert env.now == pytest.approx(10.0 + 5.0, rel=1e-3)


def test_copies_and_a_flush_share_the_limit_of_the_job() -> None:
    """10 GB of each node go to another one and to the file system, at 0.1 GB/s in all."""
    usual, cadences = busy()
    job = Planned(replace(usual.job, flush_bandwidth=1e8))
    env, world = simpy.Environment(), job.on(8)
    background = Background(env, cadences, RunResult(1, cadences.wall_s), job.job.machine.persistent.write)
    stored = Stored(0, 0.0, tuple(range(8)))
    background.begin(world, stored, ("local", "partner", "persistent"))
    env.run(until=199.0)
    assert stored.levels == {"local"}
    env.run(until=201.0)
    assert stored.levels == {"local", "partner", "persistent"}
    again = Stored(1, 0.0, tuple(range(8)))
    background.begin(world, again, ("local", "partner"))
    env.run(until=201.0 + 107.0)
    assert "partner" in again.levels, "without a flush it takes half as long"


def test_what_was_complete_meanwhile_is_counted_and_retired() -> None:
    job, cadences = busy()
    result = RunResult(1, cadences.wall_s)
    background = Background(simpy.Environment(), cadences, result, 1e9)
    background.add(job.on(8), [Stored(n, float(n), (0,), {"local"} if n % 2 else set()) for n in range(20)])
    assert result.checkpoints == {"local": 10} and result.nbytes["local"] == 10 * job.on(8).level_bytes["local"]
    kept = [each.sequence for each in background.stored]
    assert kept == [19]
    background.forget_after(kept[0])
    assert [each.sequence for each in background.stored] == kept[:1]


ALL = {"local": 2, "partner": 1, "parity": 1, "persistent": 1}


def stored(*levels: Iterable[str]) -> list[Stored]:
    return [Stored(number, float(number), (0,), set(each)) for number, each in enumerate(levels)]


def left(found: list[Stored], keep: dict[str, int]) -> list[tuple[int, list[str]]]:
    return [(each.sequence, sorted(each.levels)) for each in retire(found, keep)]


def test_each_level_keeps_its_newest() -> None:
    found = stored(["persistent"], ["local", "persistent"], ["local"], ["local"])
    assert left(found, ALL) == [(1, ["persistent"]), (2, ["local"]), (3, ["local"])]


def test_what_a_redundant_level_keeps_stays_on_the_nodes_too() -> None:
    found = stored(["local", "partner"], ["local"], ["local"], ["local"])
    assert left(found, ALL) == [(0, ["local", "partner"]), (2, ["local"]), (3, ["local"])]
    found = stored(["local", "partner"], ["local", "partner"], ["local"], ["local"])
    assert left(found, ALL) == [(1, ["local", "partner"]), (2, ["local"]), (3, ["local"])]


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


def test_one_that_is_given_up_never_ends() -> None:
    env = simpy.Environment()
    shared = FileSystem(env, 10.0)
    done = shared.begin(100, math.inf)
    shared.give_up()
    shared.give_up()  # a second time does nothing
    shared.set_capacity(5.0)
    env.run()
    assert not done.triggered


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_other_jobs_take_their_share_on_average(share: float) -> None:
    env = simpy.Environment()
    shared = FileSystem(env, 10.0)
    env.process(bursts(env, shared, 10.0, share, 100.0, np.random.default_rng(1)))
    env.run(until=shared.begin(1e7, math.inf))
    assert 1e6 / env.now == pytest.approx(1 - share, abs=0.03)
