"""A bandwidth that transfers share while they come and go, against arithmetic by hand."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import simpy
from deeppart_simulator.campaign.background import SharedBandwidth, bursts


def ends(capacity: float, *transfers: tuple[float, float, float]) -> list[float]:
    """When each of (begin, bytes, own limit) is done."""
    env = simpy.Environment()
    shared, done = SharedBandwidth(env, capacity), [math.nan] * len(transfers)

    def one(place: int, begin: float, nbytes: float, most: float) -> Generator[Any, Any, None]:
        yield env.timeout(begin)
        yield shared.begin(nbytes, most).done
        done[place] = env.now

    for place, transfer in enumerate(transfers):
        env.process(one(place, *transfer))
    env.run()
    return done


@pytest.mark.parametrize(
    ("transfers", "expected"),
    [
        ([(0, 100, math.inf)], [10]),
        ([(0, 100, 5)], [20]),
        ([(0, 100, math.inf), (0, 100, math.inf)], [20, 20]),
        ([(0, 100, math.inf), (0, 50, math.inf)], [15, 10]),
        ([(0, 100, math.inf), (5, 25, math.inf)], [12.5, 10]),
        ([(0, 90, math.inf), (0, 20, 2)], [11, 10]),  # what one cannot use, the other has
        ([(0, 0, math.inf)], [0]),
    ],
)
def test_everyone_gets_an_equal_part_up_to_his_own_limit(
    transfers: list[tuple[float, float, float]], expected: list[float]
) -> None:
    assert ends(10.0, *transfers) == pytest.approx(expected)


def test_one_that_is_given_up_leaves_its_part_to_the_others() -> None:
    env = simpy.Environment()
    shared, done = SharedBandwidth(env, 10.0), []

    def stays() -> Generator[Any, Any, None]:
        yield shared.begin(100, math.inf).done
        done.append(env.now)

    def leaves() -> Generator[Any, Any, None]:
        transfer = shared.begin(1000, math.inf)
        yield env.timeout(10)
        shared.give_up(transfer)
        shared.give_up(transfer)  # a second time does nothing
        assert not transfer.done.triggered

    env.process(stays())
    env.process(leaves())
    env.run()
    assert done == pytest.approx([15])


def test_a_capacity_that_changes_counts_from_then_on() -> None:
    env = simpy.Environment()
    shared = SharedBandwidth(env, 10.0)
    transfer = shared.begin(100, math.inf)

    def change() -> Generator[Any, Any, None]:
        yield env.timeout(5)
        shared.set_capacity(5.0)
        yield transfer.done
        assert env.now == pytest.approx(15)

    env.run(env.process(change()))


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_other_jobs_take_their_share_on_average(share: float) -> None:
    env = simpy.Environment()
    shared, length = SharedBandwidth(env, 10.0), 1e6
    transfer = shared.begin(1e12, math.inf)
    env.process(bursts(env, shared, 10.0, share, 100.0, np.random.default_rng(1)))
    env.run(length)
    shared.set_capacity(10.0)
    assert (1e12 - transfer.left) / (10.0 * length) == pytest.approx(1 - share, abs=0.03)


def test_without_other_jobs_there_are_no_bursts() -> None:
    env = simpy.Environment()
    shared = SharedBandwidth(env, 10.0)
    for rate, share in ((10.0, 0.0), (math.inf, 0.5)):
        assert list(bursts(env, shared, rate, share, 100.0, np.random.default_rng(1))) == []
