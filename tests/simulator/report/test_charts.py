"""The charts of a scaling study, a campaign and a validation, and pictures in files."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
from deeppart_simulator.advise.choose import Advice, Choice, advise, describe, least_restart, loss_of, shown
from deeppart_simulator.advise.comebacks import Comparison, compare
from deeppart_simulator.campaign.outcomes import BUCKETS, Estimate, Summary
from deeppart_simulator.machine.files import read_machine
from deeppart_simulator.machine.record import WAYS
from deeppart_simulator.report.charts import (
    advice_chart,
    after_chart,
    campaign_chart,
    scaling_chart,
    share_chart,
)
from deeppart_simulator.timing.scale import study
from deeppart_simulator.timing.stages import Job
from deeppart_simulator.workload.states import read_state
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.simulator.commands import SMALL, sim
from tests.simulator.timing.jobs import job


def texts(drawing: str) -> list[str]:
    return [str(each.text) for each in ElementTree.fromstring(drawing).iter() if each.tag.endswith("text")]


def summary(value: Estimate, recoveries: dict[str, Estimate]) -> Summary:
    shares = dict.fromkeys(("useful", "lost", "slowed", *BUCKETS[1:]), value)
    return Summary(3, value, shares, {}, recoveries, {}, {}, value)


def test_a_mean_beside_its_values_by_rounding_is_drawn() -> None:
    """matplotlib refuses lines of a length below 0."""
    off = Estimate(mean=0.1, low=0.1, high=0.1, least=math.nextafter(0.1, 1), most=math.nextafter(0.1, 0))
    first, second = campaign_chart(summary(off, {"local": off})).svgs()
    assert "training lost: 10.0 %" in texts(first)
    assert "local: 0.1" in texts(second)


def test_a_campaign_without_failures_has_no_panel_of_them() -> None:
    none, some = Estimate(0, 0, 0, 0, 0), Estimate(1e-7, 1e-7, 1e-7, 1e-7, 1e-7)
    assert campaign_chart(summary(none, {})).svgs() == []
    (drawing,) = campaign_chart(summary(some, {})).svgs()
    assert "restoring: below 0.001 %" in texts(drawing)


def test_scaling_has_a_colour_for_each_strategy_and_round_numbers() -> None:
    chart = scaling_chart(study(job(), [1, 4, 16], ("deeppart", "rank0")), job())
    labels = [mark.label for mark in chart.key]
    assert labels[:2] == ["deeppart", "rank0 (torch.save on rank 0)"]
    assert len({mark.colour for mark in chart.key[:2]}) == 2
    times, speedups = map(texts, chart.svgs())
    assert {"1", "2", "5", "10", "ranks"} <= {*times} and {"1x", "10x"} <= {*speedups}


@pytest.mark.parametrize("command", ["scale", "campaign", "advise"])
def test_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    file = tmp_path / "out.png"
    more = ("--days", "1", "--seeds", "1") if command == "campaign" else ()
    assert sim(capsys, command, *SMALL, "--ranks", "64", "--png", str(file), *more)[0] == 0
    assert file.read_bytes().startswith(b"\x89PNG")


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


def test_the_choice_is_seen(advice: Advice) -> None:
    """Once among the bars, with a band of its own; once by a ring around its place on the front."""
    losses, front = advice_chart(advice).svgs()
    assert len(bars(losses)["line"]) == 1 and f"1  {describe(advice.chosen.job)}" in texts(losses)
    assert re.findall(r"fill: none|stroke: var\(--pink\)", front) and "var(--pink)" in front


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
    assert [text.get_text() for text in axes.texts[-len(found) :]] == list(WAYS)


def test_shares_end_at_what_is_lost() -> None:
    found = some()[1]
    axes = Figure().add_subplot()
    chart = share_chart(found, "job")
    chart.panels[0].draw(axes)
    ends = ends_of(axes, len(found))
    assert ends == pytest.approx([each.waste.total for each in found])
    assert len({mark.colour for mark in chart.key}) == len(chart.key)
