"""Charts of ways to come back: bars end where their pieces add up to."""

from __future__ import annotations

from functools import cache

import pytest
from deeppart_simulator.advise.choose import Choice, advise
from deeppart_simulator.advise.compare import Comparison, compare
from deeppart_simulator.machine.files import read_machine
from deeppart_simulator.machine.record import WAYS
from deeppart_simulator.report.restart_charts import after_chart, share_chart, words_of
from deeppart_simulator.timing.stages import Job
from deeppart_simulator.workload.states import read_state
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle


@cache
def some() -> tuple[Choice, list[Comparison]]:
    """What is advised for a small job, and all ways to come back."""
    chosen = advise(Job(read_state("gpt2"), read_machine("llama3"), 256, 8)).chosen
    return chosen, compare(chosen)


def ends_of(axes: Axes, rows: int) -> list[float]:
    """Where the bars of each row end, without the band of the machine's own way."""
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle) and bar.get_height() < 0.5]
    return [max(bar.get_x() + bar.get_width() for bar in bars[place::rows]) for place in range(rows)]


def test_a_panel_for_each_class_and_bars_that_end_where_training_goes_on() -> None:
    found = some()[1]
    chart = after_chart(found, "job")
    lost = ["a process", "a node", "a group of nodes (switch)", "a group of nodes (power)", "everything"]
    assert [panel.title for panel in chart.panels] == [f"After the loss of {each}" for each in lost]
    axes = Figure().add_subplot()
    chart.panels[1].draw(axes)
    bars = [
        bar for bar in axes.patches if isinstance(bar, Rectangle) and bar.get_height() < 0.5
    ]  # without the band of the machine's own way
    ends = [max(bar.get_x() + bar.get_width() for bar in bars[place :: len(found)]) for place in range(len(found))]
    assert ends == pytest.approx([each.after["node"].total_s + each.after["node"].replay_s for each in found])
    assert [text.get_text() for text in axes.texts[: len(found)]] == list(WAYS)


def test_shares_end_at_what_is_lost() -> None:
    found = some()[1]
    axes = Figure().add_subplot()
    chart = share_chart(found, "job")
    chart.panels[0].draw(axes)
    ends = ends_of(axes, len(found))
    assert ends == pytest.approx([each.waste.total for each in found])
    assert len({mark.colour for mark in chart.key}) == len(chart.key)


def test_pieces_in_words() -> None:
    assert words_of("first_step") == "first step"
