"""Pictures in files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from deeppart_simulator.campaign.outcomes import Estimate, Summary
from deeppart_simulator.campaign.result import BUCKETS
from deeppart_simulator.report.charts import campaign_figure, svg

from tests.simulator.commands import SMALL, sim


def test_a_mean_beside_its_values_by_rounding_is_drawn() -> None:
    """matplotlib refuses lines of a length below 0."""
    off = Estimate(mean=0.1, low=0.1, high=0.1, least=math.nextafter(0.1, 1), most=math.nextafter(0.1, 0))
    shares = dict.fromkeys(("useful", "lost", "slowed", *BUCKETS[1:]), off)
    summary = Summary(3, off, shares, {}, {"local": off}, {}, {}, off)
    assert svg(campaign_figure(summary)).startswith("<svg")


@pytest.mark.parametrize("command", ["scale", "campaign", "advise"])
def test_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    file = tmp_path / "out.png"
    more = ("--days", "1", "--seeds", "1") if command == "campaign" else ()
    assert sim(capsys, command, *SMALL, "--ranks", "64", "--png", str(file), *more)[0] == 0
    assert file.read_bytes().startswith(b"\x89PNG")
