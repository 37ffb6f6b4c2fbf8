"""Which channels the ranks of a new session use again: two pools play two ranks, and numbers are combined by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from deeppart.comm.pool import MOST_LOST, Lease, Offer, Pool
from deeppart.errors import CommError


@dataclass(eq=False)
class Channel:
    """One rank's end."""

    lent: bool = False
    idle: bool = True
    calls: int = 0
    sent: int = 0
    received: int = 0


def combine(offers: Sequence[Offer]) -> None:
    most = np.maximum.reduce([offer.most for offer in offers])
    total = np.add.reduce([offer.total for offer in offers])
    for offer in offers:
        offer.most[:], offer.total[:] = most, total


def start(pools: Sequence[Pool[Channel]]) -> list[Lease[Channel]]:
    offers = [pool.offer() for pool in pools]
    combine(offers)
    return [pool.agreed(offer) for pool, offer in zip(pools, offers, strict=True)]


def session(pools: Sequence[Pool[Channel]], count: int) -> tuple[list[list[Channel]], int]:
    """What each rank has of a session of so many channels, and how many of them are not new."""
    leases = start(pools)
    mine: list[list[Channel]] = [[] for _ in pools]
    again = 0
    for _ in range(count):
        taken = [lease.take() for lease in leases]
        assert len({each is None for each in taken}) == 1, "all ranks take one, or all make one"
        for rank, (lease, channel) in enumerate(zip(leases, taken, strict=True)):
            if channel is None:
                channel = Channel()
                lease.add(channel)
            else:
                again += rank == 0
            assert isinstance(channel, Channel) and channel.lent
            mine[rank].append(channel)
    for lease in leases:
        lease.end()
    return mine, again


def release(mine: list[list[Channel]]) -> None:
    for channels in mine:
        for channel in channels:
            channel.lent = False


@pytest.fixture
def pools() -> list[Pool[Channel]]:
    return [Pool(), Pool()]


def test_one_rank_that_still_has_it_is_enough_to_leave_it_alone(pools: list[Pool[Channel]]) -> None:
    first, _ = session(pools, 1)
    first[0][0].lent = False
    assert session(pools, 1)[1] == 0
    assert not first[0][0].lent and first[1][0].lent
    first[1][0].lent = False
    third, again = session(pools, 1)
    assert again == 1 and third == first


@pytest.mark.parametrize("fault", ["busy on one", "a collective more on one", "a message not received"])
def test_what_may_still_be_on_its_way_is_never_used_again(pools: list[Pool[Channel]], fault: str) -> None:
    first, _ = session(pools, 2)
    release(first)
    channel = first[1][0]
    if fault == "busy on one":
        channel.idle = False
    elif fault == "a collective more on one":
        channel.calls += 1
    else:
        channel.sent += 1
    second, again = session(pools, 2)
    assert again == 1 and [channels[0] for channels in second] == [channels[1] for channels in first]
    assert [pool._lost for pool in pools] == [1, 1]
    release(second)
    assert session(pools, 2)[1] == 2, "the place of the lost one is taken"


def test_a_rank_that_does_not_know_the_outcome_keeps_what_it_has_offered(pools: list[Pool[Channel]]) -> None:
    first, _ = session(pools, 1)
    release(first)
    given_up = pools[0].offer()
    known = pools[1].offer()
    combine([given_up, known])
    lease = pools[1].agreed(known)
    assert lease.take() is first[1][0], "the other rank uses it"
    _, again = session(pools, 1)
    assert again == 0 and first[0][0].lent, "not given to another session meanwhile"


def test_a_channel_that_one_rank_has_no_end_of_is_dropped(pools: list[Pool[Channel]]) -> None:
    """It was given up while it was made."""
    leases = start(pools)
    leases[0].add(half := Channel())
    half.lent = False
    second, again = session(pools, 1)
    assert again == 0 and pools[0]._lost == 1
    release(second)
    assert session(pools, 1)[1] == 1


def test_too_many_lost_is_an_error_on_all_ranks(pools: list[Pool[Channel]]) -> None:
    first, _ = session(pools, 1)
    release(first)
    pools[1]._lost = MOST_LOST + 1
    offers = [pool.offer() for pool in pools]
    combine(offers)
    for pool, offer in zip(pools, offers, strict=True):
        with pytest.raises(CommError, match="were interrupted"):
            pool.agreed(offer)
