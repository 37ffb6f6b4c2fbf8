"""Published checkpoints of MLPerf Storage, and what the model makes of the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.timing.published import GIVEN, MLPERF, RESULTS, TARGET, compared, figures, load_s, machine_of, save_s
from deeppart_simulator.workload.shapes import WORKLOADS


def test_the_storage_is_as_it_is_sold() -> None:
    """125 MB/s for each TiB: 160, 1,280 and 4,096 TiB."""
    assert [result.storage for result in RESULTS] == [125e6 * size for size in (160, 1280, 4096, 4096)]
    assert [result.hosts * result.ranks_per_host for result in RESULTS] == [8, 64, 512, 1024]


def test_the_published_rates_are_the_sizes_by_the_times() -> None:
    """The results also have means of rates, in 2^30 bytes a second: means of quotients, and so a little higher."""
    rates = {"mlperf-8b": 13.34, "mlperf-70b": 105.5, "mlperf-405b": 456.97, "mlperf-1t": 642.2}
    for result in RESULTS:
        assert result.size / result.save_s == pytest.approx(rates[result.workload], rel=0.03)


def test_all_but_one_are_reproduced_and_the_table_says_so() -> None:
    found = {figure.case: figure for figure in figures() if figure.source == MLPERF}
    assert len(found) == 8 and [case for case, figure in found.items() if figure.given] == [
        "8B, write, 2 x 4", "8B, read, 2 x 4"
    ]  # fmt: skip
    free = [figure for figure in found.values() if not figure.given]
    assert [figure.case for figure in free if not figure.reproduced] == ["1T, write, 128 x 8"]
    assert "measured was more" in found["1T, write, 128 x 8"].why, "than the storage is sold with"
    assert all(abs(figure.difference) <= TARGET for figure in free if figure.reproduced)


def test_the_rate_of_a_rank_is_from_the_result_that_gives_it() -> None:
    given = {
        what: (published, simulated) for result, what, published, simulated in compared() if result.workload == GIVEN
    }
    for published, simulated in given.values():
        assert simulated == pytest.approx(published, rel=0.002)


def test_seconds_by_hand() -> None:
    """70B: equal ranks at their own rate. 405B: all that there is at the storage's."""
    eight, seventy, large = (WORKLOADS[name] for name in ("mlperf-8b", "mlperf-70b", "mlperf-405b"))
    by_name = {result.workload: machine_of(result) for result in RESULTS}
    assert save_s(by_name["mlperf-70b"], seventy) == pytest.approx(15.2876 / 1.79, rel=1e-4)
    assert load_s(by_name["mlperf-70b"], seventy) == pytest.approx(15.2876 / 1.98, rel=1e-4)
    total = int(large.rank_bytes().sum())
    assert save_s(by_name["mlperf-405b"], large) == pytest.approx(total / 512e9)
    slow = by_name["mlperf-8b"]
    slow = replace(slow, persistent=replace(slow.persistent, node_write=1e9, read=4e9))
    assert save_s(slow, eight) == pytest.approx(4 * 14.0532 / 1.0, rel=1e-4)
    assert load_s(slow, eight) == pytest.approx(8 * 14.0532 / 4.0, rel=1e-4)
