"""``deeppart-sim machines``: what it prints is a machine file that it reads again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from deeppart_simulator.machine.files import preset_names, read_machine

from tests.simulator.commands import sim, sim_json


def test_every_preset_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = sim(capsys, "machines")
    assert code == 0 and all(name in out for name in preset_names())
    assert [machine["name"] for machine in sim_json(capsys, "machines")] == [*preset_names()]


def test_one_is_printed_as_a_file_that_says_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = sim(capsys, "machines", "frontier")
    (tmp_path / "mine.toml").write_text(out)
    assert code == 0 and sim(capsys, "machines", str(tmp_path / "mine.toml"))[1] == out
    mine, preset = read_machine(str(tmp_path / "mine.toml")), read_machine("frontier")
    assert replace(mine, failures=preset.failures) == preset
    assert mine.failures.node == pytest.approx(preset.failures.node, rel=1e-3), "times are rounded for people"


def test_what_never_happens_is_null_in_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "safe.toml").write_text('base = "frontier"\n[failures]\nnode = "never"\n')
    assert sim_json(capsys, "machines", str(tmp_path / "safe.toml"))["failures"]["node"] is None


def test_a_machine_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = sim(capsys, "machines", "fronteer")
    assert code == 2 and "fronteer" in err


def test_groups_of_nodes_are_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = sim_json(capsys, "machines", "llama3")
    assert found["groups"]["switch"] == {"nodes": 2, "mtbf": pytest.approx(12.4 * 365.25 * 86400), "repair": None}
    assert "groups" not in found["failures"]
