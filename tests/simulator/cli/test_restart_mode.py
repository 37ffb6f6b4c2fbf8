"""``--restart-mode``: instead of what the machine file has."""

from __future__ import annotations

import pytest
from deeppart_simulator.cli.restart_mode import coming_back
from deeppart_simulator.machine.files import read_machine

from tests.simulator.commands import sim, sim_json


def test_the_option_comes_before_the_file_and_changes_nothing_else() -> None:
    machine = read_machine("byterobust")
    assert coming_back(machine, None) is machine
    other = coming_back(machine, "in-process")
    assert other.restart.mode == "in-process" and other.restart.requeue == machine.restart.requeue
    assert other.memory == machine.memory


def test_advice_and_campaigns_tell_which_way_they_took(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("--state", "tensors-64x4MB", "--ranks", "32", "--machine", "byterobust")
    own, other = (sim_json(capsys, "advise", *job, *way) for way in ((), ("--restart-mode", "job")))
    assert (own["restart_mode"], other["restart_mode"]) == ("spares", "job")
    assert own["advised"]["waste_restart"] < other["advised"]["waste_restart"]
    course = sim_json(capsys, "campaign", *job, "--days", "0.1", "--seeds", "1", "--restart-mode", "standby")
    assert course["restart_mode"] == "standby"


def test_a_misspelt_way_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = sim(capsys, "advise", "--restart-mode", "in-proces")
    assert code == 2 and "Did you mean 'in-process'?" in err
