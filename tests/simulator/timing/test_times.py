"""What overlaps, and what has to wait for a core."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.timing.stages import STAGES, Protection, Times, times_of

from tests.simulator.timing.jobs import MACHINE, STATE, job

#: A rank's 1 GB takes this long to encode on one core at 1 GB/s, with digests of it before and after.
ENCODE_S = 1 + 1.8 / 16
EVERYWHERE = Protection()
#: Writing does not hold anything up, but takes a second of a core for each GB at each level. At the first one digests
#: are in that, of raw chunks; of those that are encoded, the threads take them that encode.
WRITE_S, FLUSH_S = 0.8 * (1 - 1 / 16), 0.8
QUICK = replace(
    MACHINE,
    encode_threads=1,
    local=replace(MACHINE.local, write=1e12, rank_write=1e12, work=1e9),
    persistent=replace(MACHINE.persistent, write=1e13, node_write=1e12, work=1e9),
)


def times(cores: int, compression: str = "tensor", protection: Protection = EVERYWHERE) -> Times:
    this = job(machine=replace(QUICK, cores=cores), compression=compression)
    return times_of(replace(this, protection=protection), STATE.shares(16, kappa=0))


def test_what_four_ranks_do_on_two_cores_takes_its_sum() -> None:
    """Encoding, writing and reading back are done at the same time only as far as there are cores for it."""
    found = times(2)
    work_s = 4 * (ENCODE_S + WRITE_S + FLUSH_S) / 2
    assert found.encode.max() == pytest.approx(2 * ENCODE_S)  # half a core each
    assert found.complete()["local"] - found.blocked_s == pytest.approx(work_s, rel=1e-3)
    assert found.complete()["persistent"] - found.blocked_s == pytest.approx(work_s, rel=1e-3)


def test_what_has_cores_of_its_own_takes_the_longest_of_it() -> None:
    found = times(64)
    assert found.complete()["local"] - found.blocked_s == pytest.approx(ENCODE_S, rel=0.01)
    assert found.complete()["persistent"] - found.blocked_s == pytest.approx(ENCODE_S, rel=0.01)


def test_without_a_level_nobody_works_for_it() -> None:
    found = times(2, protection=Protection(partner=False, persistent=False))
    assert found.complete()["local"] - found.blocked_s == pytest.approx(4 * (ENCODE_S + WRITE_S) / 2, rel=0.01)
    found = times(2, protection=Protection(local=False, partner=False))
    assert found.complete() == pytest.approx({"persistent": found.blocked_s + 4 * (ENCODE_S + FLUSH_S) / 2}, rel=0.01)


def test_raw_chunks_are_written_at_the_rates_that_were_measured() -> None:
    """With as many ranks on the node: they contain what the ranks took from each other."""
    found = times(1, "none")
    assert not found.cores.any()
    assert found.complete()["local"] - found.blocked_s == pytest.approx(4e9 / 1e12)


def test_the_end_of_a_file_follows_its_last_chunk() -> None:
    """However long encoding took: tables, sync, rename and the round in which ranks agree."""
    slow = replace(QUICK, local=replace(QUICK.local, file=0.5), persistent=replace(QUICK.persistent, file=0.25))
    this = job(machine=slow, compression="tensor")
    found = times_of(this, STATE.shares(16, kappa=0))
    assert found.complete()["local"] - found.blocked_s == pytest.approx(ENCODE_S + 0.5, rel=0.01)
    only_there = times_of(replace(this, protection=Protection(local=False)), STATE.shares(16, kappa=0))
    assert only_there.complete()["persistent"] - only_there.blocked_s == pytest.approx(ENCODE_S + 0.25, rel=0.01)


def test_one_after_the_other_everything_is_added_up() -> None:
    found = times(64)
    stages = found.stages()
    assert set(stages) == set(STAGES)
    assert found.complete(overlapped=False)["local"] == pytest.approx(sum(stages[name] for name in STAGES[:4]))


def test_copies_parity_and_the_flush_share_the_limit_of_the_job() -> None:
    """A node's 4 GB twice at 0.5 GB/s: 16 s for both, as the library has one limit for all that leaves a node, less a
    tenth that passes at once; a call without a flush is done with its copies after 2 s on the node and 8 s for them.
    """
    shares = STATE.shares(16, kappa=0)
    both = times_of(job(flush_bandwidth=0.5e9), shares)
    assert both.complete() == pytest.approx({"local": 2.2, "partner": 16.1, "persistent": 16.1})
    assert both.complete(flushed=False) == pytest.approx({"local": 2.2, "partner": 10.1, "persistent": 16.1})
    assert both.complete(overlapped=False) == pytest.approx({"local": 2.2, "partner": 10.1, "persistent": 18.0})
    parity = times_of(job(flush_bandwidth=0.5e9, protection=Protection(partner=False, parity_group=4)), shares)
    assert parity.complete() == pytest.approx({"local": 2.2, "parity": 16.1, "persistent": 16.1})
    for protection, last_s in ((Protection(partner=False), 8.1), (Protection(persistent=False), 10.1)):
        alone = times_of(job(flush_bandwidth=0.5e9, protection=protection), shares)
        assert max(alone.complete().values()) == pytest.approx(last_s) and not alone.limited
    assert not times_of(job(), shares).limited
