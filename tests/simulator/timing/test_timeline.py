"""The bars of a timeline are the checkpoint."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from deeppart_simulator.report.timeline import MOST_NODES, Bar, fold, timeline
from deeppart_simulator.timing.stages import Protection, by_node, finish_times, times_of

from tests.simulator.timing.jobs import MACHINE, STATE, job


def test_rows_do_not_touch_each_other() -> None:
    found = finish_times(np.array([[10.0, 0.0], [10.0, 10.0]]), 10.0, 10.0)
    assert found.tolist() == [[1.0, 0.0], [2.0, 2.0]]
    assert by_node(np.arange(5), 2).tolist() == [[0, 1], [2, 3], [4, 0]]


def test_a_timeline_is_the_checkpoint() -> None:
    this = job(compression="tensor", protection=Protection(parity_group=4))
    times = times_of(this, STATE.shares(16, kappa=0))
    bars = timeline(this, times)
    assert {bar.node for bar in bars} == set(range(4))
    done = times.complete()
    assert max(bar.end_s for bar in bars if bar.what == "write") == pytest.approx(done["local"])
    assert max(bar.end_s for bar in bars if bar.what == "exchange copies") == pytest.approx(done["partner"])
    assert max(bar.end_s for bar in bars if bar.what == "exchange parity") == pytest.approx(done["parity"])
    assert max(bar.end_s for bar in bars if bar.what == "flush") == pytest.approx(done["persistent"])
    assert math.isclose(max(bar.end_s for bar in bars if bar.what == "copy"), times.blocked_s)


def test_a_lazy_call_ends_before_its_copies_begin() -> None:
    """A second for the guards of a rank's 4 tensors, then 0.2 s of copies, then 2 s until all is on the node."""
    machine = replace(MACHINE, memory=replace(MACHINE.memory, defer=0.25))
    this = job(capture="lazy", machine=machine)
    times = times_of(this, STATE.shares(16, kappa=0))
    bars = timeline(this, times)
    (copy,) = {(bar.lane, bar.begin_s, bar.end_s) for bar in bars if bar.what == "copy"}
    assert copy == ("store", times.blocked_s, pytest.approx(times.blocked_s + 0.2))
    assert times.blocked_s == pytest.approx(1.0)
    assert max(bar.end_s for bar in bars if bar.what == "write") == pytest.approx(times.complete()["local"])


def bar(node: int, end_s: float = 1.0, nbytes: int = 1000) -> Bar:
    return Bar(node, "store", "write", 0.0, end_s, nbytes)


def test_nodes_that_do_the_same_are_one() -> None:
    one, other = fold([bar(0), bar(1, 2.0), bar(2, 1.01), bar(3, nbytes=1020), bar(9)])
    assert one.nodes == (0, 2, 3, 9) and other.nodes == (1,)
    assert one.words == "nodes 0, 2 to 3, 9: the same" and other.words == "node 1"
    assert one.bars == (bar(0),)


def test_nodes_that_do_something_else_are_not() -> None:
    for other in (bar(1, 1.1), bar(1, nbytes=1100), Bar(1, "store", "encode", 0.0, 1.0, 1000)):
        assert len(fold([bar(0), other])) == 2
    assert len(fold([bar(0), bar(1), Bar(1, "flush", "flush", 0.0, 1.0)])) == 2
    assert fold([]) == []


def test_many_runs_of_numbers_are_not_all_named() -> None:
    (found,) = fold([bar(node) for node in range(0, 2000, 2)])
    assert found.words == "nodes 0, 2, 4 and others, 1,000 in all: the same"


def test_all_nodes_of_a_large_job_are_looked_at() -> None:
    this = job(ranks=1024)
    groups = fold(timeline(this, times_of(this, STATE.shares(1024, kappa=0))))
    assert sorted(node for group in groups for node in group.nodes) == list(range(256)) and 256 < MOST_NODES
    assert len(groups) <= 4
