"""The page of what blocked time costs: its lines are those of the table, and names are shown as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from deeppart_simulator.budget.bill import Row, Way, rows_of
from deeppart_simulator.machine.files import read_machine
from deeppart_simulator.report.goodput_page import cost_rows, goodput_chart, goodput_page
from deeppart_simulator.timing.stages import Job
from deeppart_simulator.workload.states import read_state
from matplotlib.figure import Figure

P4D = read_machine("p4d")
JOB = Job(read_state("gpt2"), P4D, 64, 8)
WAYS = [Way("a <script>", 0.5), Way("b", 20.0)]


def rows(machine: str = "p4d") -> list[Row]:
    return [*rows_of(read_machine(machine), JOB.nodes, (60.0, 600.0), (1.0, 10.0), WAYS, 30.0)]


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


def test_columns_are_those_that_are_known() -> None:
    assert cost_rows(JOB, rows(), 30.0)[0][-2:] == ["money", "energy"]
    assert cost_rows(JOB, rows("azure-lustre"), 30.0)[0][-1] == "node-hours in 30 days"


def test_names_are_no_markup_and_the_same_rows_give_the_same_bytes() -> None:
    job = replace(JOB, machine=replace(P4D, name='"><script>x', source="<i>"))
    text = goodput_page(job, rows(), 30.0, "a <b>")
    assert "<script" not in text and "&lt;script&gt;x" in text and "<pre>a &lt;b&gt;</pre>" in text
    assert text == goodput_page(job, rows(), 30.0, "a <b>") and "http" not in text.replace("http://www.w3.org", "")


def test_more_periods_than_colours_are_in_the_table_alone() -> None:
    many = rows_of(P4D, 8, [60.0 * n for n in range(1, 12)], (1.0,), WAYS, 30.0)
    assert len(goodput_chart(many, 30.0).key) == 7 + 1 and goodput_page(JOB, many, 30.0).count("11 min") == 3
