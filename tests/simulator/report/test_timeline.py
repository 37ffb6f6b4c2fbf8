"""The bars of a timeline are the checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from deeppart_simulator.report.html import legend
from deeppart_simulator.report.timeline import Bar, bars_table, fold, legend_of, timeline, timeline_html
from deeppart_simulator.timing.stages import Protection, times_of

from tests.simulator.timing.jobs import MACHINE, STATE, job


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


def drawn(bars: Sequence[Bar], end_s: float | None = None) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{timeline_html(fold(bars), end_s)}</div>")


def rows(bars: Sequence[Bar], end_s: float | None = None) -> list[tuple[float, float, float, str]]:
    """x and width in percent, y, and title of each bar."""
    return [
        (
            float(bar.get("x", "").rstrip("%")), float(bar.get("y", "")), float(bar.get("width", "").rstrip("%")),
            str(bar[0].text),
        )
        for bar in drawn(bars, end_s).iter("rect")
    ]  # fmt: skip


def test_bars_lie_where_their_times_are() -> None:
    first, second = rows([Bar(0, "store", "write", 0.0, 1.0, 5), Bar(0, "store", "encode", 1.0, 4.0)])
    assert (first[0], first[2], second[0], second[2]) == (0, 25, 25, 75) and first[1] == second[1]
    assert "write: 1 s" in first[3] and "5 B" in first[3] and "encode: 3 s, from 1 s on" in second[3]


def test_nodes_and_lanes_have_rows_of_their_own() -> None:
    bars = [Bar(node, lane, "write", 0.0, 1.0 + node) for node in (0, 3) for lane in ("store", "flush")]
    found = drawn(bars)
    assert [each.text for each in found.iter("p")] == ["node 0", "node 3"]
    assert [len({each.get("y") for each in svg.iter("rect")}) for svg in found.iter("svg")] == [2, 2, 0]


def test_nodes_that_do_the_same_are_one_line() -> None:
    found = drawn([Bar(node, "store", "write", 0.0, 1.0) for node in range(8)])
    assert [each.text for each in found.iter("p")] == ["nodes 0 to 7: the same"]
    assert len(list(found.iter("rect"))) == 1


def test_the_axis_has_round_times() -> None:
    found = drawn([Bar(0, "store", "write", 0.0, 7.3)])
    assert [each.text for each in found.iter("text")] == ["0", "2 s", "4 s", "6 s"]


def test_what_overlaps_is_narrower() -> None:
    first, second = rows([Bar(0, "protect", "write", 0.0, 2.0), Bar(0, "protect", "flush", 1.0, 3.0)])
    assert second[1] > first[1]


def test_a_checkpoint_is_drawn_and_every_colour_explained() -> None:
    bars = timeline(job(), times_of(job(), STATE.shares(16, kappa=0)))
    groups = fold(bars)
    assert len(rows(bars)) == sum(len(group.bars) for group in groups) > 4
    marks = legend_of(groups)
    found = drawn(bars)
    assert {mark.colour for mark in marks} == {
        str(bar.get("fill")).removeprefix("var(--").rstrip(")") for bar in found.iter("rect")
    }
    assert all(mark.label in legend(marks) for mark in marks)


def test_the_numbers_are_those_of_the_bars() -> None:
    groups = fold([Bar(0, "store", "write", 0.5, 2.0, 3000), Bar(0, "training", "train", 0.0, 2.0)])
    assert bars_table(groups).rows == [["node 0", "write", "500 ms", "1.5 s", "3 kB"]]
