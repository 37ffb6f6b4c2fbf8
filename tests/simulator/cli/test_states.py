"""``deeppart-sim states``: sizes and counts of the states that are named."""

from __future__ import annotations

import pytest
from deeppart_simulator.workload.shapes import PRESETS
from deeppart_simulator.workload.states import read_state

from tests.simulator.commands import sim, sim_json


def test_all_models_with_adam_if_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = sim_json(capsys, "states")
    assert [state["name"] for state in found] == [f"{name}+adam" for name in PRESETS]


def test_the_numbers_are_those_of_the_state(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = sim_json(capsys, "states", "tensors-3x1GB")
    state = read_state("tensors-3x1GB")
    assert (found["bytes"], found["leaves"], found["parameters"]) == (3 * 10**9, 3, state.parameters)
    code, out, _ = sim(capsys, "states", "bert-base", "tensors-3x1GB")
    assert code == 0 and "bert-base" in out and "3 GB" in out and "families: " in out and "+adam" in out
    assert "mlperf-8b on 8 ranks" in out and "mlperf-1t on 1,024 ranks" in out


def test_a_state_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = sim(capsys, "states", "bert-bass")
    assert code == 2 and out == "" and "bert-bass" in err
