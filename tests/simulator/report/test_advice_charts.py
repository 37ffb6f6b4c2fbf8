"""The chart of the advice: the choice is in it, and what is chosen between."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from deeppart_simulator.advise.choose import Advice, advise, describe, least_restart, loss_of, shown
from deeppart_simulator.machine.files import read_machine
from deeppart_simulator.report.advice_charts import advice_chart
from deeppart_simulator.timing.stages import Job
from deeppart_simulator.workload.states import read_state


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
    words = [str(each.text) for each in ElementTree.fromstring(losses).iter() if each.tag.endswith("text")]
    number = [choice is advice.chosen for choice in shown(advice)].index(True) + 1
    assert [each for each in words if each.startswith("advised, ")] and len(bars(losses)["line"]) == 1
    assert f"{number}  {describe(advice.chosen.job)}" in words
    assert len(re.findall(r"fill: none|stroke: var\(--pink\)", front)) and "var(--pink)" in front
    assert f">{number}</text>" in front


def test_the_front_has_every_choice(advice: Advice) -> None:
    _, front = advice_chart(advice).svgs()
    assert front.count("<use") >= len(advice.front)
    assert "bytes a day to the file system" in front
