"""Coming back, by hand."""

from __future__ import annotations

import pytest
from deeppart_simulator.timing.restores import distribute_s, restore_s
from deeppart_simulator.workload.states import read_state

from tests.simulator.timing.jobs import STATE, job

# --- coming back ------------------------------------------------------------------------------------------------------


def test_restores_by_hand() -> None:
    """Each node has 4 GB of its own; every rank needs all 16 GB, copied at 5 GB/s while four copy."""
    this, shares = job(), STATE.shares(16, kappa=0)
    assert distribute_s(this) == pytest.approx(16 / 5)
    assert restore_s(this, shares, {"local": 4}) == pytest.approx(1 + 16 / 5)
    assert restore_s(this, shares, {"local": 3, "partner": 1}) == pytest.approx(2 + 16 / 5)
    assert restore_s(this, shares, {"persistent": 4}) == pytest.approx(4 + 16 / 5)
    assert restore_s(this, shares, {"local": 3, "persistent": 1}) == pytest.approx(4 + 16 / 5)


def test_sharded_states_have_nothing_to_hand_round() -> None:
    state = read_state("tensors-64x250MB@fsdp")
    assert distribute_s(job(state=state)) == pytest.approx(1 / 5)
