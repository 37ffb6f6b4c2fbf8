"""The page's style is whole: what it looks like is tested in a browser (test_page_in_browser.py)."""

from __future__ import annotations

import re

from deeppart_simulator.report.chart import COLOURS, INKS
from deeppart_simulator.report.html import STYLE


def test_every_rule_is_closed_and_every_colour_known() -> None:
    assert STYLE.count("{") == STYLE.count("}")
    assert {*re.findall(r"var\(--(\w+)\)", STYLE)} <= {*COLOURS, *INKS}


def test_nothing_is_fetched_and_no_text_is_small() -> None:
    assert "url(" not in STYLE and "@import" not in STYLE
    assert all(float(size) >= 11 for size in re.findall(r"font(?:-size)?:[\d ]*?([\d.]+)px", STYLE))


def test_paper_is_light() -> None:
    assert "@media print" in STYLE and "@media screen and (prefers-color-scheme:dark)" in STYLE
