"""The page of ``--report``: everything is in it, and it needs nothing."""

from __future__ import annotations

import html.parser
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from deeppart_simulator.advise.compare import side_of
from deeppart_simulator.budget.bill import Row, Way, costs_of_blocking
from deeppart_simulator.machine.files import read_machine
from deeppart_simulator.report.chart import COLOURS, INKS, Mark
from deeppart_simulator.report.charts import goodput_chart
from deeppart_simulator.report.html import STYLE, breakable, document, facts, legend, listed, section, table
from deeppart_simulator.report.page import comparison_sections, goodput_section, page, restart_sections
from deeppart_simulator.report.tables import Table, after_table, shares_table, sides_table
from deeppart_simulator.timing.stages import Job
from deeppart_simulator.workload.states import read_state
from matplotlib.figure import Figure

from tests.simulator.advise.test_compare import FAILING
from tests.simulator.commands import SMALL, sim
from tests.simulator.report.test_charts import some
from tests.simulator.timing.jobs import job

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
    # Time and speed-up, the timeline with its axis, loss and front, two bills, and what the campaign has.
    text = file.read_text()
    assert text.count("What 30 days take") == text.count("What the run takes") == 1
    assert text.count("<figure") in (7, 8) and text.count('class="lanes"') >= 2 and "<img" not in text


def test_the_same_page_has_the_same_bytes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("one", "two"):
        arguments = ("--ranks", "1,8", "--machine", "machine.toml", "--report", str(tmp_path / name))
        quiet = tmp_path / "machine.toml"
        quiet.write_text('base = "frontier"\n[failures]\nnode = "never"\ngroup = "never"\nsystem = "never"\n')
        assert sim(capsys, "scale", "--state", "bert-base", *arguments[:3], str(quiet), *arguments[4:])[0] == 0
    text = (tmp_path / "one").read_text()
    assert text == (tmp_path / "two").read_text() and "<h2>Advice</h2>" not in text


def test_jobs_are_lines_of_one_table() -> None:
    found = sides_table([side_of("quiet", job()), side_of("failing", job(machine=FAILING))])
    head, (quiet, failing) = list(found.head), found.rows
    assert len(head) == len(quiet) == len(failing) and head[0] == "job"
    assert (quiet[0], failing[0]) == ("quiet", "failing")
    assert [name for name, cell in zip(head, quiet, strict=True) if not cell] == head[head.index("call every") :]
    assert all(failing[head.index("call every") :])


def test_the_page_has_all_jobs_on_one_scale_and_is_the_same_again() -> None:
    sides = [side_of("slow <1>", job(ranks=4)), side_of("fast", job(ranks=16))]
    text, again = (page("jobs", comparison_sections(sides), "advise <2>") for _ in range(2))
    assert text == again and "<1>" not in text and "<2>" not in text and "slow &lt;1&gt;" in text
    assert "<script" not in text and "http" not in text.replace("http://www.w3.org", "")
    # The bars of the faster job end where they end on the scale of the slower one.
    slow, fast = (
        max(float(x) + float(width) for x, width in re.findall(r'<rect x="([\d.]+)%"[^>]* width="([\d.]+)%"', part))
        for part in text.split("<h2>One checkpoint</h2>")[1].split("<h3>")[1:3]
    )
    assert slow > 99.9 and fast < 60


P4D = read_machine("p4d")
JOB = Job(read_state("gpt2"), P4D, 64, 8)
WAYS = [Way("a <script>", 0.5), Way("b", 20.0)]


def rows(machine: str = "p4d") -> list[Row]:
    return [*costs_of_blocking(read_machine(machine), JOB.nodes, (60.0, 600.0), (1.0, 10.0), WAYS, 30.0)]


def test_lines_and_points_are_the_rows() -> None:
    axes = Figure().add_subplot()
    lost, hours = goodput_chart(rows(), 30.0).panels
    lost.draw(axes)
    line, points = axes.lines[:2]
    assert np.asarray(line.get_xdata()).tolist() == [0.5, 1.0, 10.0, 20.0] and np.asarray(
        points.get_xdata()
    ).tolist() == [0.5, 20.0]
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([b / (60 + b) for b in (0.5, 1.0, 10.0, 20.0)])
    axes = Figure().add_subplot()
    hours.draw(axes)
    assert np.asarray(axes.lines[1].get_xdata()).tolist() == pytest.approx(
        [8 * 720 * b / (600 + b) for b in (0.5, 20.0)]
    )
    assert np.asarray(axes.lines[1].get_ydata()).tolist() == [0, 1]


def test_names_are_no_markup_and_the_same_rows_give_the_same_bytes() -> None:
    job = replace(JOB, machine=replace(P4D, name='"><script>x', source="<i>"))
    text, again = (page(job.machine.name, [goodput_section(job, rows(), 30.0)], "a <b>", job) for _ in range(2))
    assert "<script" not in text and "&lt;script&gt;x" in text and "<pre>a &lt;b&gt;</pre>" in text
    assert text == again and "http" not in text.replace("http://www.w3.org", "")


def test_more_periods_than_colours_are_in_the_table_alone() -> None:
    many = costs_of_blocking(P4D, 8, [60.0 * n for n in range(1, 12)], (1.0,), WAYS, 30.0)
    assert len(goodput_chart(many, 30.0).key) == 7 + 1 and goodput_section(JOB, many, 30.0).count("11 min") == 3


def test_rows_are_all_ways_and_classes() -> None:
    found = some()[1]
    after, shares = after_table(found, "job"), shares_table(found, "job")
    assert len(after.rows) == 5 * 5 and list(after.head[:3]) == ["way", "failure", "one in"]
    assert list(after.head[-2:]) == ["back in", "replay"] and all(len(row) == len(after.head) for row in after.rows)
    assert [row[1] for row in shares.rows] == ["of the time", "saved by half"] * 5 and shares.head[-1] == "lost"


def test_the_machines_own_way_is_marked_and_names_are_no_markup() -> None:
    chosen, found = some()
    machine = chosen.job.machine
    own = replace(machine, name="<img src=x>", restart=replace(machine.restart, mode="spares"))
    text = page(own.name, restart_sections(replace(chosen, job=replace(chosen.job, machine=own)), found), "made")
    assert "<img" not in text and "&lt;img src=x&gt;" in text and "<pre>made</pre>" in text
    assert text.count("<tr class=marked>") == 5 + 2
    assert text.count('<tr class=marked><td class="text" data-name="way">spares</td>') == 5 + 1


EVIL = '<script>alert("1&2")</script>'
SAFE = "&lt;script&gt;alert(&quot;1&amp;2&quot;)&lt;/script&gt;"


def test_no_text_is_markup() -> None:
    for found in (
        document(EVIL, ""), section(EVIL, ""), listed([EVIL]), facts([(EVIL, EVIL)]),
        table(Table("", [EVIL], [[EVIL]])), legend([Mark(EVIL, "teal")]),
    ):  # fmt: skip
        assert EVIL not in found and SAFE in found


def test_long_names_can_be_broken() -> None:
    assert breakable("a+b@tp=8,pp=2") == "a+<wbr>b@<wbr>tp=8,<wbr>pp=2"
    assert breakable("2.5 GB/s") == "2.5 GB/s"


def test_words_are_on_the_left_and_numbers_on_the_right() -> None:
    rows = [["local", "1 %", ""], ["a text of more than twenty letters", "-2 %", ""]]
    found = table(Table("", ["levels", "lost", "nothing"], rows, marked={1}, stacked=True))
    assert "<th scope=col class=text>levels</th><th scope=col>lost</th>" in found
    assert '<td class="text" data-name="levels">local</td><td data-name="lost">1 %</td><td></td>' in found
    assert '<tr class=marked><td class="text long"' in found and '"wide stacked"' in found
    assert "<tbody></tbody>" in table(Table("", ["only", "a head"], []))


def test_every_rule_is_closed_and_every_colour_known() -> None:
    assert STYLE.count("{") == STYLE.count("}")
    assert {*re.findall(r"var\(--(\w+)\)", STYLE)} <= {*COLOURS, *INKS}


def test_nothing_is_fetched_and_no_text_is_small() -> None:
    assert "url(" not in STYLE and "@import" not in STYLE
    assert all(float(size) >= 11 for size in re.findall(r"font(?:-size)?:[\d ]*?([\d.]+)px", STYLE))
