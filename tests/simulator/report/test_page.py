"""The page of ``--report``: everything is in it, and it needs nothing."""

from __future__ import annotations

import html.parser
from pathlib import Path

import pytest
from deeppart_simulator.budget import Row, Way, costs_of_blocking
from deeppart_simulator.machine.files import read_machine
from deeppart_simulator.report.blocks import Code, Items, Result, Section, Table
from deeppart_simulator.report.chart import Chart, Mark
from deeppart_simulator.report.page import render
from deeppart_simulator.timing.stages import Job
from deeppart_simulator.workload.states import read_state

from tests.simulator.commands import SMALL, sim

# --- pictures and pages -----------------------------------------------------------------------------------------------


class _Reader(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []
        self.headings: list[str] = []
        self._in_heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in_heading = tag == "h2"
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data") and value and not value.startswith("#"):
                self.outside.append(value)

    def handle_data(self, data: str) -> None:
        if self._in_heading:
            self.headings.append(data)
            self._in_heading = False


@pytest.mark.sweep(3)
@pytest.mark.parametrize("command", ["scale", "campaign", "advise"])
def test_a_page_has_everything_and_needs_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    file = tmp_path / "out.html"
    more = ("--days", "1", "--seeds", "1", "--advised") if command == "campaign" else ()
    code, _, err = sim(capsys, command, *SMALL, "--ranks", "64", "--report", str(file), *more)
    assert code == 0, err
    reader = _Reader()
    reader.feed(file.read_text())
    assert reader.headings == ["How it scales", "One checkpoint", "Advice", "A campaign"]
    assert reader.outside == [] and "script" not in reader.tags
    # Time and speed-up, the timeline, loss and front, and what the campaign has.
    text = file.read_text()
    assert text.count("in 30 days of this, as advised") == text.count("what the run takes") == 1
    assert text.count("<figure") in (6, 7) and "<img" not in text


def test_the_same_page_has_the_same_bytes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    quiet, page, found = tmp_path / "machine.toml", tmp_path / "page.html", []
    quiet.write_text('base = "frontier"\n[failures]\nnode = "never"\ngroup = "never"\nsystem = "never"\n')
    for _ in range(2):
        some = ("--state", "bert-base", "--ranks", "1,8", "--machine", str(quiet), "--report", str(page))
        assert sim(capsys, "scale", *some)[0] == 0
        found.append(page.read_text())
    assert found[0] == found[1] and "<h2>Advice</h2>" not in found[0]


P4D = read_machine("p4d")
JOB = Job(read_state("gpt2"), P4D, 64, 8)
WAYS = [Way("a <script>", 0.5), Way("b", 20.0)]


def rows(machine: str = "p4d") -> list[Row]:
    return [*costs_of_blocking(read_machine(machine), JOB.nodes, (60.0, 600.0), (1.0, 10.0), WAYS, 30.0)]


EVIL = '<script>alert("1&2")</script>'
SAFE = "&lt;script&gt;alert(&quot;1&amp;2&quot;)&lt;/script&gt;"


def test_no_text_is_markup() -> None:
    blocks = [
        EVIL,
        Items([EVIL]),
        Table(EVIL, [EVIL], [[EVIL]]),
        Code(EVIL, EVIL),
        Chart("a", (), (Mark(EVIL, "teal"),)),
    ]
    result = Result(EVIL, {}, [Section(EVIL, blocks)], facts=[(EVIL, EVIL)], notes=[EVIL])
    text = render(result, EVIL)
    assert EVIL not in text and text.count(SAFE) >= 12
