"""The charts of a scaling study, a campaign and a validation, and pictures in files."""

from __future__ import annotations

import re
from functools import cache
from xml.etree import ElementTree

import pytest
from deeppart_simulator.advise.choose import Advice, Choice, advise, least_restart, loss_of, shown
from deeppart_simulator.advise.comebacks import Comparison, compare
from deeppart_simulator.campaign.outcomes import BUCKETS, Estimate, Summary
from deeppart_simulator.machine.files import read_machine
from deeppart_simulator.machine.record import WAYS
from deeppart_simulator.report.charts import (
    advice_chart,
    after_chart,
)
from deeppart_simulator.timing.stages import Job
from deeppart_simulator.workload.states import read_state
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle


def texts(drawing: str) -> list[str]:
    return [str(each.text) for each in ElementTree.fromstring(drawing).iter() if each.tag.endswith("text")]


def summary(value: Estimate, recoveries: dict[str, Estimate]) -> Summary:
    shares = dict.fromkeys(("useful", "lost", "slowed", *BUCKETS[1:]), value)
    return Summary(3, value, shares, {}, recoveries, {}, {}, value)


@pytest.fixture(scope="module")
def advice() -> Advice:
    return advise(Job(read_state("llama3-8b+adam"), read_machine("llama3"), 256, 8))


def bars(drawing: str) -> dict[str, list[float]]:
    """Colour -> widths of bars from top to bottom, in pixels."""
    found: dict[str, list[tuple[float, float]]] = {}
    for path, colour in re.findall(r'<path d="(M[^"]*?z)[^"]*" [^>]*style="fill: var\(--(\w+)\)"', drawing):
        points = [tuple(map(float, each)) for each in re.findall(r"([\d.]+) ([\d.]+)", path)]
        xs, ys = zip(*points, strict=True)
        found.setdefault(colour, []).append((min(ys), max(xs) - min(xs)))
    return {colour: [width for _, width in sorted(each)] for colour, each in found.items()}


def test_bars_are_what_is_lost_and_not_the_time_to_come_back(advice: Advice) -> None:
    drawn, least, choices = bars(advice_chart(advice).svgs()[0]), least_restart(advice.front), shown(advice)
    lost = [loss_of(choice, least) for choice in choices]
    widths = [sum(each) for each in zip(drawn["violet"], drawn["pink"], drawn["brown"], strict=True)]
    scale = max(widths) / max(lost)
    assert max(widths) > 90 and len(widths) == len(choices)
    assert widths == pytest.approx([scale * each for each in lost], abs=0.5)
    assert drawn["violet"] == pytest.approx([scale * choice.waste.cost for choice in choices], abs=0.5)


@cache
def some() -> tuple[Choice, list[Comparison]]:
    """What is advised for a small job, and all ways to come back."""
    chosen = advise(Job(read_state("gpt2"), read_machine("llama3"), 256, 8)).chosen
    return chosen, compare(chosen)


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
    assert [text.get_text() for text in axes.texts[-len(found) :]] == list(WAYS)
