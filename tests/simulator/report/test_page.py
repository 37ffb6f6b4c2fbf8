"""The page of ``--report``: everything is in it, and it needs nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from deeppart_simulator.report.blocks import Code, Items, Result, Section, Table
from deeppart_simulator.report.charts import Chart, Panel
from deeppart_simulator.report.page import render

from tests.simulator.commands import QUIET, SMALL, sim


@pytest.mark.sweep(3)
@pytest.mark.parametrize("command", ["scale", "campaign", "advise"])
def test_a_page_has_everything_and_needs_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    file = tmp_path / "out.html"
    more = ("--days", "1", "--seeds", "1", "--advised") if command == "campaign" else ()
    code, _, err = sim(capsys, command, *SMALL, "--ranks", "64", "--report", str(file), *more)
    assert code == 0, err
    text = file.read_text()
    assert re.findall("<h2[^>]*>(.*?)</h2>", text) == ["How it scales", "One checkpoint", "Advice", "A campaign"]
    outside = re.findall(r"""\b(?:src|href|data)\s*=\s*["']?([^#"'\s>]+)""", text)
    assert outside and all(each.startswith("data:image/svg+xml;") for each in outside) and "<script" not in text
    assert text.count("in 30 days of this, as advised") == text.count("what the run takes") == 1
    assert text.count("<figure") == 4


def test_no_advice_is_given_where_nothing_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    quiet, page = tmp_path / "machine.toml", tmp_path / "page.html"
    quiet.write_text(QUIET)
    some = ("--state", "bert-base", "--ranks", "1,8", "--machine", str(quiet), "--report", str(page))
    assert sim(capsys, "scale", *some)[0] == 0 and "<h2>Advice</h2>" not in page.read_text()


EVIL = '<script>alert("1&2")</script>'
SAFE = "&lt;script&gt;alert(&quot;1&amp;2&quot;)&lt;/script&gt;"


def test_no_text_is_markup() -> None:
    blocks = [
        EVIL,
        Items([EVIL]),
        Table(EVIL, [EVIL], [[EVIL]]),
        Code(EVIL, EVIL),
        Chart((Panel(EVIL, lambda axes: None),)),
    ]
    result = Result(EVIL, {}, [Section(EVIL, blocks)], facts=[(EVIL, EVIL)], notes=[EVIL])
    text = render(result, EVIL)
    assert EVIL not in text and text.count(SAFE) >= 12
