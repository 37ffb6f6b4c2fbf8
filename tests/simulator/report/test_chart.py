"""Panels of charts: alone in a page, together in a picture."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from deeppart_simulator.report.chart import (
    COLOURS,
    Chart,
    Mark,
    Panel,
    bars,
    linear_axis,
    log_axis,
    log_time_axis,
    rows,
    show_count,
    show_part,
    show_time,
    show_times,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHAPES = ("block", "line", "dotted", "dashed", "point", "square", "triangle", "hollow", "ring")


def draw(axes: Axes) -> None:
    bars(axes, [0.5, 2.5], "teal")
    rows(axes, ["one", "a label that is longer than there is room for in a panel, by far"], marked=1)
    linear_axis(axes, "x", 2.5, show_part)


def draw_logarithmic(axes: Axes) -> None:
    axes.plot([1, 5000], [1e-2, 100], "o-", color=COLOURS["pink"][0])
    log_axis(axes, "x", [1, 5000, 0], show_count)
    log_time_axis(axes, "y", [1e-2, 100])


CHART = Chart("some", (Panel("first", draw, 150), Panel("second", draw_logarithmic)),
              tuple(Mark(shape, "violet", shape) for shape in SHAPES), "heading")  # fmt: skip


def test_panels_have_the_pages_colours_and_identifiers_of_their_own() -> None:
    first, second = CHART.svgs()
    assert "var(--teal)" in first and "var(--pink)" in second
    assert not re.findall(r"#[0-9a-f]{6}\b", first + second)
    names = [re.findall(r'\bid="([^"]+)"', drawing) for drawing in (first, second)]
    assert not {*names[0]} & {*names[1]} and len({*names[1]}) == len(names[1])
    for drawing, mine in zip((first, second), names, strict=True):
        used = re.findall(r'(?:url\(#|href="#)([^")]+)', drawing)
        assert used and {*used} <= {*mine}


def test_numbers_are_shown_as_people_write_them() -> None:
    assert [show_count(value) for value in (1, 0.5, 2000, 1e6, 20e6)] == ["1", "0.5", "2,000", "1 M", "20 M"]
    assert [show_time(value) for value in (0.02, 50, 60, 600, 86400 * 5)] == ["20 ms", "50 s", "1 min", "10 min", "5 d"]
    assert (show_part(0.002), show_times(1000)) == ("0.2 %", "1,000x")
