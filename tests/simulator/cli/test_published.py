"""``deeppart-sim published``."""

from __future__ import annotations

import re

import pytest

from tests.simulator.commands import sim, sim_json


def test_published(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = sim(capsys, "published")
    assert code == 0 and "within 25%" in out
    row = next(line for line in out.splitlines() if "torch.save, local" in line)
    assert re.search(r"32 s .* 30\.4 s .* -5% .* yes", row)
    assert out.count("(given)") == 4 and len(re.findall(r"UPC 2023.* no ", out)) == 3


def test_published_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    document = sim_json(capsys, "published")
    assert (document["format"], document["version"]) == ("deeppart-sim-published", 1)
    first = document["figures"][0]
    assert first["case"] == "torch.save, local" and first["published"] == 32.0 and first["reproduced"] is True
    assert first["difference"] == pytest.approx(first["simulated"] / 32 - 1)
