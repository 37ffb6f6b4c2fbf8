"""Panels of charts: alone in a page, together in a picture."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from deeppart_simulator.report.chart import (
    COLOURS,
    INKS,
    Chart,
    Mark,
    Panel,
    as_variables,
    bars,
    light,
    linear_axis,
    linear_ticks,
    log_axis,
    log_ticks,
    log_time_axis,
    log_time_ticks,
    rows,
    show_count,
    show_part,
    show_time,
    show_times,
    time_axis,
    variables_css,
)
from matplotlib import image

from tests.simulator.report.colours import SIGHTS, apart, contrast

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


def test_marks_are_round_and_long_labels_are_shortened() -> None:
    first, second = (
        [str(each.text) for each in ElementTree.fromstring(drawing).iter() if each.tag.endswith("text")]
        for drawing in CHART.svgs()
    )
    assert {"0 %", "100 %", "200 %", "one"} <= {*first}
    assert any(text.endswith("...") and len(text) == 50 for text in first)
    assert {"1", "10", "100", "1,000", "10 ms", "10 s", "1 min"} <= {*second}


def test_a_picture_has_all_panels_and_their_key(tmp_path: Path) -> None:
    CHART.save(tmp_path / "a.png")
    Chart("one", CHART.panels[:1]).save(tmp_path / "b.png")
    both, alone = image.imread(tmp_path / "a.png"), image.imread(tmp_path / "b.png")
    assert both.shape[1] == pytest.approx(2 * alone.shape[1], abs=2)
    assert both[0, 0].tolist() == [1, 1, 1, 1]


def test_numbers_are_shown_as_people_write_them() -> None:
    assert [show_count(value) for value in (1, 0.5, 2000, 1e6, 20e6)] == ["1", "0.5", "2,000", "1 M", "20 M"]
    assert [show_time(value) for value in (0.02, 50, 60, 600, 86400 * 5)] == ["20 ms", "50 s", "1 min", "10 min", "5 d"]
    assert (show_part(0.002), show_times(1000)) == ("0.2 %", "1,000x")


def test_names_with_dollars_are_not_mathematics(tmp_path: Path) -> None:
    name = 'a$\\frac$ <b> "c"'
    chart = Chart("c", (Panel(name, lambda axes: rows(axes, [name])),), (), name)
    chart.save(tmp_path / "c.png")
    text = chart.svgs()[0]
    assert (
        "a$\\frac$ &lt;b&gt;" in text and "<b>" not in text and 'aria-label="a$\\frac$ &lt;b&gt; &quot;c&quot;"' in text
    )


def test_an_axis_of_times_has_round_marks() -> None:
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    time_axis(axes, "x", 250.0, 4)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "2 min", "4 min"] and axes.get_xlim()[1] == 250
    time_axis(axes, "x", 0.0011, 4)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "500 us", "1000 us"]


ROUND_S = {m * unit for unit, ms in ((60, (1, 2, 5, 10, 20, 30)), (3600, (1, 2, 4, 5, 6, 10, 12))) for m in ms}


def is_round(value: float) -> bool:
    """1, 2 or 5 with zeros."""
    return f"{value:.6e}"[:8] in ("1.000000", "2.000000", "5.000000")


def is_round_time(seconds: float) -> bool:
    return (is_round(seconds) and seconds <= 50) or seconds in ROUND_S | {30} or is_round(seconds / 86400)


@pytest.mark.parametrize("most", [3, 4, 5, 8])
def test_linear(most: int) -> None:
    for high in (10 ** (place / 7) for place in range(-40, 60)):
        ticks = linear_ticks(0, high, most)
        steps = {float(f"{later - earlier:.6g}") for earlier, later in pairwise(ticks)}
        assert ticks[0] == 0 and ticks[-1] <= high * 1.000001 and 2 <= len(ticks) <= most
        assert len(steps) == 1 and is_round(steps.pop()), ticks


@pytest.mark.parametrize("times", [1.3, 2, 7, 40, 3e3, 1e6, 1e12])
def test_logarithmic(times: float) -> None:
    for low in (10 ** (place / 3) for place in range(-20, 24)):
        for ticks, is_mark in (
            (log_ticks(low, low * times), is_round),
            (log_time_ticks(low, low * times), is_round_time),
        ):
            assert 2 <= len(ticks) <= 6 and ticks == sorted(set(ticks))
            assert low * 0.999999 <= ticks[0] and ticks[-1] <= low * times * 1.000001
            # On a short axis they are evenly apart instead.
            assert times < 40 or all(map(is_mark, ticks)), ticks


#: CIEDE2000 between any two; 2.3 is what can just be seen, side by side.
LEAST = 15.0
SCHEMES = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])


@SCHEMES
@pytest.mark.parametrize("sight", SIGHTS)
def test_any_two_colours_can_be_told_apart(sight: str, *, dark: bool) -> None:
    pairs = {pair: apart(COLOURS[pair[0]][dark], COLOURS[pair[1]][dark], sight) for pair in combinations(COLOURS, 2)}
    assert len(pairs) == 21 and min(pairs.values()) >= LEAST, min(pairs.items(), key=lambda each: each[1])


@SCHEMES
@pytest.mark.parametrize("paper", ["paper", "card"])
def test_text_and_marks_are_seen(paper: str, *, dark: bool) -> None:
    below = INKS[paper][dark]
    assert all(contrast(INKS[ink][dark], below) >= 4.5 for ink in ("ink", "soft"))
    assert all(contrast(each[dark], below) >= 3 for each in COLOURS.values())


def test_a_drawing_follows_the_scheme_of_the_page() -> None:
    drawing = f'<path style="fill: {light("violet")}; stroke: #123456"/>'
    assert as_variables(drawing) == '<path style="fill: var(--violet); stroke: #123456"/>'
    css = variables_css()
    for name, (bright, dark) in {**COLOURS, **INKS}.items():
        assert f"--{name}:{bright}" in css and f"--{name}:{dark}" in css
