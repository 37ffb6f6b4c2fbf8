"""``deeppart-sim fit``."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.simulator.commands import sim, sim_json
from tests.simulator.traces.logs import SACCT, written


def test_what_a_log_of_jobs_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = written(tmp_path, SACCT)
    code, out, _ = sim(capsys, "fit", str(file))
    assert code == 0
    for words in (
        "4 nodes",
        "of a node",
        "preemption of a job",
        "had had their time: 1",
        "in the queue",
        "--ranks-per-node",
    ):
        assert words in out
    assert tomllib.loads(out[out.index("[failures]") :])["failures"]["system"] == "never"
    found = sim_json(capsys, "fit", str(file))
    assert found["rates"]["system"]["mtbf_s"] is None and found["rates"]["node"]["events"] == 1
    assert found["waits_s"]["median"] == 0.5 and found["watched"]["nodes"] == 4


def test_a_machine_begins_with_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace, table = written(tmp_path, SACCT), tmp_path / "machine.toml"
    assert sim(capsys, "fit", str(trace), "--toml", str(table), "--json")[0] == 0
    table.write_text('base = "llama3"\n' + table.read_text())
    found = sim_json(capsys, "scale", "--machine", f"list:{table}")
    rates = sim_json(capsys, "fit", str(trace))["rates"]
    assert found["failures"]["node"] == pytest.approx(rates["node"]["mtbf_s"], rel=1e-5)
    assert found["failures"]["system"] is None
