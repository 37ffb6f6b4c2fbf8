"""The bars of a timeline are the checkpoint."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from deeppart_simulator.report.charts import timeline_chart
from deeppart_simulator.report.timeline import Bar, Group, bars_table, timeline
from deeppart_simulator.timing.stages import Job, Protection, times_of
from deeppart_simulator.workload.states import read_state
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.simulator.timing.jobs import MACHINE, STATE, job


def test_a_timeline_is_the_checkpoint() -> None:
    this = job(compression="tensor", protection=Protection(parity_group=4))
    times = times_of(this, STATE.shares(16, kappa=0))
    (group,) = timeline(this, times)
    assert group.words == "each node"
    done, ends = times.complete(), {bar.what: bar.end_s for bar in group.bars}
    assert ends["write"] == pytest.approx(done["local"]) and ends["exchange copies"] == pytest.approx(done["partner"])
    assert ends["exchange parity"] == pytest.approx(done["parity"])
    assert ends["flush"] == pytest.approx(done["persistent"]) and math.isclose(ends["copy"], times.blocked_s)


def test_a_lazy_call_ends_before_its_copies_begin() -> None:
    """A second for the guards of a rank's 4 tensors, then 0.2 s of copies, then 2 s until all is on the node."""
    machine = replace(MACHINE, memory=replace(MACHINE.memory, defer=0.25))
    this = job(capture="lazy", machine=machine)
    times = times_of(this, STATE.shares(16, kappa=0))
    (group,) = timeline(this, times)
    (copy,) = [bar for bar in group.bars if bar.what == "copy"]
    assert (copy.lane, copy.begin_s, copy.end_s) == ("store", times.blocked_s, pytest.approx(times.blocked_s + 0.2))
    assert max(bar.end_s for bar in group.bars if bar.what == "write") == pytest.approx(times.complete()["local"])


def test_where_nodes_differ_the_last_and_the_first_are_shown() -> None:
    """Five whole tensors on five ranks, four of them on the first node."""
    this = Job(read_state("tensors-5x1GB"), MACHINE, 5, 4, "whole", protection=Protection(partner=False))
    last, first = timeline(this, times_of(this, this.shares()))
    assert last.words == "node 0, which is done last" and first.words == "node 1, which is done first"
    assert max(bar.end_s for bar in first.bars if bar.what == "write") < max(
        bar.end_s for bar in last.bars if bar.what == "write"
    )


def test_bars_are_drawn_as_long_as_they_take_and_what_overlaps_is_narrower() -> None:
    group = Group(
        "n", (Bar("store", "encode", 0.0, 2.0), Bar("store", "write", 1.0, 4.0), Bar("flush", "flush", 2.0, 8.0))
    )
    axes = Figure().add_subplot()
    chart = timeline_chart([group])
    chart.panels[0].draw(axes)
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    assert [(bar.get_x(), bar.get_width()) for bar in bars] == [(0, 2), (1, 3), (2, 6)]
    assert bars[1].get_height() < 0.9 * bars[0].get_height() and bars[2].get_y() > bars[0].get_y()
    assert [mark.label for mark in chart.key] == ["encode", "write", "flush"]


def test_the_numbers_are_those_of_the_bars() -> None:
    group = Group("each node", (Bar("store", "write", 0.5, 2.0, 3000), Bar("training", "train", 0.0, 2.0)))
    assert bars_table([group]).rows == [["each node", "write", "500 ms", "1.5 s", "3 kB"]]
