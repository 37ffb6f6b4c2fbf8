"""What a restart takes on a machine: saving, coming back, and restoring."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from deeppart_simulator.cluster.applications import Settings, restarts_s
from deeppart_simulator.machine.files import read_machine

from tests.simulator.cluster.toy import application


def test_pieces_of_a_machine_and_bytes_of_a_state(tmp_path: Path) -> None:
    small = application(tmp_path)
    large = replace(small, name="large", settings=Settings(5, state="tensors-100x300MB"))
    machine = read_machine("summit")
    slow = replace(machine, restart=replace(machine.restart, relaunch=machine.restart.relaunch + 100))
    found, slower = (restarts_s(each, 4, [small, large]) for each in (machine, slow))
    assert {name: slower[name] - found[name] for name in found} == pytest.approx({"scales": 100.0, "large": 100.0})
    assert found["large"] > found["scales"] + 2 * (30e9 - 0.21e9) / machine.persistent.read
    ready = replace(machine, restart=replace(machine.restart, mode="in-process"))
    assert restarts_s(ready, 4, [small])["scales"] < 5.0 < machine.restart.relaunch < found["scales"]
