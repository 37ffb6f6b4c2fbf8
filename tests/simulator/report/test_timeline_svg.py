"""The drawing of a timeline: one bar for each, in its place, and XML whatever the words."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from deeppart_simulator.report.html import legend
from deeppart_simulator.report.timeline import Bar, fold, legend_of, numbers_of, timeline, timeline_html
from deeppart_simulator.timing.stages import times_of

from tests.simulator.timing.jobs import STATE, job


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


def test_drawings_share_a_scale_if_they_are_told_its_end() -> None:
    assert rows([Bar(0, "store", "write", 0.0, 1.0)], 10.0)[0][2] == 10


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
    assert numbers_of(groups)[1:] == [["node 0", "write", "500 ms", "1.5 s", "3 kB"]]


def test_nothing_to_draw_is_a_drawing() -> None:
    assert rows([]) == []
