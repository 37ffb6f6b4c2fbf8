"""The colours of charts: told apart by everyone, and seen on their paper."""

from __future__ import annotations

from itertools import combinations

import pytest
from deeppart_simulator.report.chart import COLOURS, INKS, SERIES, as_variables, light, variables_css

from tests.simulator.report.colours import SIGHTS, apart, ciede2000, contrast

#: CIEDE2000 between any two; 2.3 is what can just be seen, side by side.
LEAST = 15.0
SCHEMES = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])


def test_the_measures_are_right() -> None:
    """Pairs of Sharma's test data, and what WCAG says of black, white and #777."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    for one, other, expected in (
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.5, 0), (50, 0, -2.5), 4.3065),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
    ):
        assert ciede2000(one, other) == pytest.approx(expected, abs=5e-5)
    assert apart("#ffffff", "#000000", "normal") == pytest.approx(100, abs=0.1)
    # Red and green: far apart, but not for those who lack one of the two.
    assert apart("#a05000", "#687000", "normal") > 25
    assert apart("#a05000", "#687000", "deuteranopia") < 10


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


def test_series_have_colours_of_their_own() -> None:
    assert sorted(SERIES) == sorted(COLOURS)


def test_a_drawing_follows_the_scheme_of_the_page() -> None:
    drawing = f'<path style="fill: {light("violet")}; stroke: #123456"/>'
    assert as_variables(drawing) == '<path style="fill: var(--violet); stroke: #123456"/>'
    css = variables_css()
    for name, (bright, dark) in {**COLOURS, **INKS}.items():
        assert f"--{name}:{bright}" in css and f"--{name}:{dark}" in css
