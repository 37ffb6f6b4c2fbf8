"""The clocks of one turn."""

from __future__ import annotations

import numpy as np
import pytest
import simpy
from deeppart_simulator.campaign.failures import Failure, Scheduling
from deeppart_simulator.campaign.run import Turn


def _turn(scheduling: Scheduling) -> tuple[simpy.Environment, Turn, list[float], list[Failure]]:
    env, told, ended = simpy.Environment(), list[float](), list[Failure]()
    turn = Turn(env, scheduling, np.random.default_rng(1), (0, 1), lambda: told.append(env.now), ended.append)
    return env, turn, told, ended


def test_told_and_ended() -> None:
    env, turn, told, ended = _turn(Scheduling(100.0, notice_s=30.0))
    assert not turn.running
    turn.begin()
    env.run(until=80.0)
    assert told == [70.0] and turn.told == "time limit" and turn.running and not ended
    env.run()
    assert ended == [Failure(100.0, "time limit", (0, 1))]


def test_who_has_left_is_not_ended() -> None:
    env, turn, told, ended = _turn(Scheduling(100.0, preemption_s=1e9, notice_s=30.0))
    turn.begin()
    env.run(until=80.0)
    turn.over()
    env.run()
    assert not ended and turn.told is None and not turn.running
    turn.preempt(0.0)  # it waits in the queue
    env.run()
    assert not ended and told == [70.0]


def test_a_turn_begins_its_clock_anew() -> None:
    env, turn, _, ended = _turn(Scheduling(100.0))
    turn.begin()
    env.run(until=50.0)
    turn.over()
    turn.begin()
    env.run(until=149.0)
    assert not ended
    env.run()
    assert [end.at_s for end in ended] == [150.0]


def test_a_preemption_within_the_notice_of_the_limit_ends_first() -> None:
    env, turn, told, ended = _turn(Scheduling(100.0, notice_s=30.0))
    turn.begin()
    env.run(until=60.0)
    turn.preempt(90.0)
    env.run(until=95.0)
    assert told == [60.0, 70.0] and turn.told == "preemption"
    assert [(end.at_s, end.kind) for end in ended] == [(90.0, "preemption")]


def test_a_notice_longer_than_the_turn_is_all_of_it() -> None:
    env, turn, told, _ = _turn(Scheduling(10.0, notice_s=30.0))
    turn.begin()
    env.run(until=1.0)
    assert told == [0.0]


def test_a_preemption_that_is_drawn_leaves_the_time_of_its_notice() -> None:
    env, turn, told, ended = _turn(Scheduling(preemption_s=5.0, notice_s=30.0))
    turn.begin()
    env.run()
    assert ended[0].at_s == pytest.approx(told[0] + 30.0) and told[0] > 0


def test_told_late_by_a_trace_it_has_what_is_left_of_the_notice() -> None:
    """Another failure came before the notice was due in the order of the trace; the end stays where it was."""
    env, turn, told, ended = _turn(Scheduling(notice_s=30.0))
    turn.begin()
    env.run(until=80.0)
    turn.preempt(90.0)
    env.run()
    assert told == [80.0] and [end.at_s for end in ended] == [90.0]
