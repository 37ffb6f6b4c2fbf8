"""Checkpoints in the background of a simulated job."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import simpy
from deeppart_simulator.campaign.filesystem import SharedBandwidth
from deeppart_simulator.campaign.pipeline import Pipeline
from deeppart_simulator.campaign.plan import SizedJob
from deeppart_simulator.campaign.result import RunResult
from deeppart_simulator.campaign.survival import Stored

from tests.simulator.campaign.jobs import busy

LEVELS = ("local", "partner", "persistent")


def _pipeline(tell: Callable[[], None] = lambda: None) -> tuple[simpy.Environment, Pipeline, SizedJob, RunResult]:
    this, cadences = busy()
    env, result = simpy.Environment(), RunResult(1, cadences.wall_s)
    file_system = SharedBandwidth(env, this.job.machine.persistent.write)
    return env, Pipeline(env, file_system, cadences, result, tell), this.on(this.nodes), result


def _stored(sequence: int) -> Stored:
    return Stored(sequence, 10.0 * sequence, tuple(range(8)))


def test_levels_complete_in_order_and_are_counted() -> None:
    told: list[float] = []
    env, pipeline, world, result = _pipeline(lambda: told.append(env.now))
    pipeline.begin(world, _stored(0), LEVELS)
    assert not pipeline.has_room and pipeline.in_flight == 1
    env.run(until=world.local_s * 1.001)
    assert pipeline.has_room and pipeline.stored[0].levels == {"local"}  # staging memory is free again
    env.run(until=world.local_s + world.stages["partner"] * 1.001)
    assert pipeline.stored[0].levels == {"local", "partner"}
    env.run()
    assert pipeline.stored[0].levels == set(LEVELS) and pipeline.in_flight == 0
    assert result.checkpoints == dict.fromkeys(LEVELS, 1) and result.nbytes["local"] == world.level_bytes["local"]
    assert told[0] == pytest.approx(world.local_s) and told[-1] == pytest.approx(env.now)


def test_no_more_than_two_are_under_way() -> None:
    env, pipeline, world, _ = _pipeline()
    for sequence in range(2):
        pipeline.begin(world, _stored(sequence), LEVELS)
        env.run(until=env.now + world.local_s * 1.001)
    assert pipeline.in_flight == 2 and not pipeline.has_room


def test_a_failure_leaves_what_is_complete() -> None:
    env, pipeline, world, result = _pipeline()
    pipeline.begin(world, _stored(0), LEVELS)
    env.run(until=world.local_s * 1.001)
    pipeline.stop()
    env.run()
    assert pipeline.stored[0].levels == {"local"} and "persistent" not in result.checkpoints
    assert pipeline.has_room and pipeline.in_flight == 0
    pipeline.begin(world, _stored(1), ("persistent",))  # nothing of the other is left on the file system's links
    began = env.now
    env.run()
    assert env.now - began < 1.2 * (world.flushed_bytes / 1e9 + world.flush_latency_s) + world.stages["encode"] + 1


def test_what_was_lost_is_rebuilt_unless_the_job_ends_before() -> None:
    env, pipeline, world, _ = _pipeline()
    stored = _stored(0)
    stored.levels, stored.lost = {"persistent"}, {3}
    pipeline.rebuild(world, stored, tuple(range(1, 9)))
    env.run(until=world.heal_s / 2)
    pipeline.stop()
    env.run()
    assert stored.lost == {3}
    pipeline.rebuild(world, stored, tuple(range(1, 9)))
    env.run()
    assert (
        not stored.lost and stored.nodes == tuple(range(1, 9)) and stored.levels == {"local", "partner", "persistent"}
    )


def test_only_those_that_are_kept_stay() -> None:
    env, pipeline, world, _ = _pipeline()

    for sequence in range(12):
        pipeline.begin(world, _stored(sequence), ("local",))
        env.run()
    assert [each.sequence for each in pipeline.stored][-1] == 11 and len(pipeline.stored) < 12
