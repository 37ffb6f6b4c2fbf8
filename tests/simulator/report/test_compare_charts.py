"""The charts of a comparison have all jobs, on one scale."""

from __future__ import annotations

from deeppart_simulator.advise.compare import side_of
from deeppart_simulator.report.compare_charts import comparison_charts, together

from tests.simulator.advise.test_sides import FAILING
from tests.simulator.timing.jobs import job


def test_where_nothing_fails_there_are_only_times() -> None:
    (chart,) = comparison_charts([side_of("one", job()), side_of("other", job(ranks=8))])
    (drawing,) = chart.svgs()
    assert ">one</text>" in drawing and ">other</text>" in drawing
    # Two jobs; of each how long training waits, and until each of three levels is complete.
    assert drawing.count("<use") >= 8 and chart.key[0].label == "training waits"
    assert together([chart]).key == chart.key


def test_what_is_lost_and_written_is_drawn_for_all() -> None:
    charts = comparison_charts([side_of("quiet", job()), side_of("failing", job(machine=FAILING))])
    drawings = [drawing for chart in charts for drawing in chart.svgs()]
    assert len(drawings) == 3 and all(">quiet</text>" in each and ">failing</text>" in each for each in drawings)
    assert "nothing fails there" in drawings[1] and ">every " in drawings[1]
    assert len(together(charts).panels) == 3
