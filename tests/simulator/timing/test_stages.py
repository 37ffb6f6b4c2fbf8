"""Stage times against arithmetic by hand, and the scaling study."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.timing.stages import (
    Protection,
    times_of,
)

from tests.simulator.timing.jobs import MACHINE, STATE, job

# --- one checkpoint ---------------------------------------------------------------------------------------------------


def test_stages_by_hand() -> None:
    """1 GB a rank, four ranks a node: copied at 5 GB/s each, written at 0.5, sent at 10 GB/s a node, flushed at 1."""
    this = job()
    shares = STATE.shares(16, kappa=0)
    assert shares.nbytes.tolist() == [10**9] * 16
    stages = times_of(this, shares).stages()
    assert stages["capture"] == pytest.approx(0.2)
    assert stages["encode"] == 0
    assert stages["local"] == pytest.approx(2.0)
    assert stages["partner"] == pytest.approx(2.0)  # storing 4 GB takes longer than receiving them
    assert stages["persistent"] == pytest.approx(4.0)


def test_the_file_system_limits_all_nodes_together() -> None:
    machine = replace(MACHINE, persistent=replace(MACHINE.persistent, write=2e9))
    assert times_of(job(machine=machine), STATE.shares(16, kappa=0)).stages()["persistent"] == pytest.approx(8.0)
    busy = replace(machine, persistent=replace(machine.persistent, others=0.5))
    assert times_of(job(machine=busy), STATE.shares(16, kappa=0)).stages()["persistent"] == pytest.approx(16.0)


def test_auto_encodes_where_that_pays() -> None:
    shares = STATE.shares(16, kappa=0)
    assert times_of(job(compression="auto"), shares).stages()["encode"] > 0
    fast = replace(MACHINE, local=replace(MACHINE.local, write=100e9, rank_write=50e9))
    no_flush = Protection(persistent=False)
    assert times_of(job(compression="auto", machine=fast, protection=no_flush), shares).stages()["encode"] == 0


def test_parity_moves_encodes_and_stores() -> None:
    """Groups of 4 of which 1 may be lost: a node stores a third of its 4 GB, and sends all of it: it encodes none."""
    this = job(protection=Protection(partner=False, parity_group=4))
    parity = times_of(this, STATE.shares(16, kappa=0)).stages()["parity"]
    assert parity == pytest.approx(4e9 / 3 / 2e9, rel=0.01)  # storing takes longest
    quick = replace(MACHINE, local=replace(MACHINE.local, write=1e12, rank_write=1e12))
    sent = times_of(replace(this, machine=quick), STATE.shares(16, kappa=0)).stages()["parity"]
    assert sent == pytest.approx(max(4e9 / 10e9, 1e9 / 2e9), rel=0.01)
    slow_network = replace(quick, network=replace(MACHINE.network, bandwidth=1e9, exchange=0.5))
    moved = times_of(replace(this, machine=slow_network), STATE.shares(16, kappa=0)).stages()["parity"]
    assert moved == pytest.approx(4 + 0.5, rel=0.01)
