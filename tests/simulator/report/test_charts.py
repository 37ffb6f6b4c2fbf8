"""The charts of a scaling study, a campaign and a validation, and pictures in files."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
from deeppart_simulator.campaign.outcomes import BUCKETS, Estimate, Summary
from deeppart_simulator.measure.validate import Comparison, Validation
from deeppart_simulator.report.charts import campaign_chart, scaling_chart, validation_chart
from deeppart_simulator.timing.scale import study

from deeppart.model import LEVELS
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
    assert "done again after failures: 10.0 %" in texts(first)
    assert "local: the nodes' own storage: 0.1" in texts(second)


def test_a_campaign_without_failures_has_no_panel_of_them() -> None:
    none, some = Estimate(0, 0, 0, 0, 0), Estimate(1e-7, 1e-7, 1e-7, 1e-7, 1e-7)
    assert campaign_chart(summary(none, {})).svgs() == []
    (drawing,) = campaign_chart(summary(some, {})).svgs()
    assert "restoring: below 0.001 %" in texts(drawing)


def test_scaling_has_a_colour_for_each_strategy_and_round_numbers() -> None:
    chart = scaling_chart(study(job(), [1, 4, 16], ("deeppart", "rank0"), ("none", "tensor")), job())
    labels = [mark.label for mark in chart.key]
    assert labels[:2] == ["deeppart", "rank0 (torch.save on rank 0)"] and {"compressed", "not compressed"} <= {*labels}
    assert len({mark.colour for mark in chart.key[:2]}) == 2
    times, speedups = map(texts, chart.svgs())
    assert {"1", "2", "5", "10", "ranks"} <= {*times} and {"1x", "10x"} <= {*speedups}


def test_a_validation_shows_every_number() -> None:
    names = ("blocked", *LEVELS, "restore", "trained")
    each = [Comparison("plain", 1, 9, 9, None, what, 1.0, 1.0 + at, 1.0, 1.0) for at, what in enumerate(names)]
    (drawing,) = validation_chart(Validation(tuple(each))).svgs()
    assert drawing.count("<use") >= 7 and {"measured", "predicted"} <= {*texts(drawing)}


@pytest.mark.parametrize("command", ["scale", "campaign", "advise"])
def test_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    file = tmp_path / "out.png"
    more = ("--days", "1", "--seeds", "1") if command == "campaign" else ()
    assert sim(capsys, command, *SMALL, "--ranks", "64", "--png", str(file), *more)[0] == 0
    assert file.read_bytes().startswith(b"\x89PNG")
