"""Published figures: what the model says of them, by hand, and which of them it reproduces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.machine.files import read_machine
from deeppart_simulator.timing.published import (
    FTI_CORE,
    GIVEN,
    MLPERF,
    RESULTS,
    TAKE_ENTRY_S,
    TAKE_S,
    TARGET,
    THESIS,
    TORCHSNAPSHOT,
    compared,
    figures,
    load_s,
    machine_of,
    prototype_s,
    save_s,
    take_s,
    torch_save_s,
)
from deeppart_simulator.workload.shapes import WORKLOADS
from deeppart_simulator.workload.states import read_state

from tests.simulator.timing.jobs import MACHINE

P4D, PARAMETERS = read_machine("p4d"), read_state("tensors-200x100MB")


def test_torchsnapshots_table_is_reproduced() -> None:
    """All that the machine file does not itself have from that table, which is one number for each storage."""
    found = [figure for figure in figures() if figure.source == TORCHSNAPSHOT]
    assert len(found) == 10 and {figure.published for figure in found} >= {32.0, 38.0, 3.38, 2.02, 1.29}
    given = [figure.case for figure in found if figure.given]
    assert given == ["take, local, 1 x 8", "take, FSx for Lustre, 1 x 8"]
    for figure in found:
        assert abs(figure.difference) <= TARGET, figure
        assert figure.reproduced is not figure.given


def test_the_thesis_is_not_reproduced_and_the_table_says_so() -> None:
    """When a number with a source changes this, the documents have to say something else."""
    found = {figure.published: figure for figure in figures() if figure.source == THESIS}
    assert list(found) == [5.6, 2.1, 2.7]
    assert not any(figure.reproduced for figure in found.values())
    assert all(figure.simulated > figure.published for figure in found.values())
    assert "on 24 ranks" in found[5.6].why and "on 9 ranks" in found[2.1].why


def test_torch_save_by_hand() -> None:
    """20 GB: from an A100 at 1.4 GB/s, then serialized at 1.24; on more ranks it takes the same and a meeting."""
    alone = torch_save_s(P4D, PARAMETERS, 1, 8, persistent=False)
    assert alone == pytest.approx(20 / 1.4 + 20 / 1.24 + 200 * 24.3e-6)
    assert torch_save_s(P4D, PARAMETERS, 32, 8, persistent=False) == pytest.approx(alone + 2 * 20e-6 * 5)


def test_a_take_ends_with_the_node_that_has_most_whole_tensors() -> None:
    """200 tensors on 16 ranks: 8 ranks have 13 of them, which are on one node and copied at 6.06 GB/s."""
    calls = TAKE_S + TAKE_ENTRY_S * 200 * 16
    assert take_s(P4D, PARAMETERS, 16, 8, persistent=False) == pytest.approx(calls + 8 * 1.3 / 6.06)
    lustre = replace(P4D, persistent=replace(P4D.persistent, node_write=1e9))
    assert take_s(lustre, PARAMETERS, 16, 8, persistent=True) == pytest.approx(calls + 8 * 1.3)
    lustre = replace(lustre, persistent=replace(lustre.persistent, write=2e9, others=0.5))
    assert take_s(lustre, PARAMETERS, 16, 8, persistent=True) == pytest.approx(calls + 20)


def test_the_prototype_serializes_digests_and_writes_in_turn() -> None:
    """1 GB on each of 16 ranks, 4 on a node that writes 1 GB/s; the codec leaves 0.8 of it."""
    state = read_state("tensors-64x250MB")
    serialized, digested = 1 / 1.24 + 4 * 24.3e-6, 1e9 / FTI_CORE
    raw = prototype_s(MACHINE, state, 16, 4, compressed=False)
    assert raw == pytest.approx(serialized + digested + 4.0)
    encoded = prototype_s(MACHINE, state, 16, 4, compressed=True)
    assert encoded == pytest.approx(serialized + 1.0 + 0.8 * digested + 3.2)


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
