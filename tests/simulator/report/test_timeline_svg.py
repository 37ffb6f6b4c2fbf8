"""The drawing of a timeline: one bar for each, in its place, and XML whatever the words."""

from __future__ import annotations

from xml.etree import ElementTree

from deeppart_simulator.report.timeline_svg import legend_html, timeline_svg
from deeppart_simulator.timing.stages import times_of
from deeppart_simulator.timing.timeline import Bar, timeline

from tests.simulator.timing.jobs import STATE, job


def rows(bars: list[Bar]) -> list[tuple[float, float, float, str]]:
    """x, y, width and title of each bar."""
    found = ElementTree.fromstring(timeline_svg(bars))
    return [
        (float(bar.get("x", "")), float(bar.get("y", "")), float(bar.get("width", "")), str(bar[0].text))
        for bar in found.iter("rect")
    ]


def test_bars_lie_where_their_times_are() -> None:
    first, second = rows([Bar(0, "store", "write", 0.0, 1.0, 5), Bar(0, "store", "encode", 1.0, 4.0)])
    assert second[0] == first[0] + first[2] and second[2] == 3 * first[2] and first[1] == second[1]
    assert "write: 1 s" in first[3] and "5 B" in first[3] and "encode: 3 s, from 1 s on" in second[3]


def test_nodes_and_lanes_have_rows_of_their_own() -> None:
    bars = [Bar(node, lane, "write", 0.0, 1.0) for node in (0, 3) for lane in ("store", "flush")]
    assert len({y for _, y, _, _ in rows(bars)}) == 4


def test_what_overlaps_is_narrower() -> None:
    first, second = rows([Bar(0, "protect", "write", 0.0, 2.0), Bar(0, "protect", "flush", 1.0, 3.0)])
    assert second[1] > first[1]


def test_a_checkpoint_is_drawn_and_every_colour_explained() -> None:
    times = times_of(job(), STATE.shares(16, kappa=0))
    bars = timeline(job(), times)
    assert len(rows(bars)) == len(bars) > 8
    legend = legend_html()
    assert all(bar.what in legend for bar in bars)
    ElementTree.fromstring(legend)


def test_nothing_to_draw_is_a_drawing() -> None:
    assert rows([]) == []
