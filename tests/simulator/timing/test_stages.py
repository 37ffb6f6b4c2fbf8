"""Stages, restores and the study of both on more and more ranks, against arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.timing.restores import _most_fetched, distribute_s, restore_s
from deeppart_simulator.timing.scale import study
from deeppart_simulator.timing.stages import Protection, times_of

from deeppart.model import Attempt
from deeppart.plan.restart import Candidate, Portion, Source, assign, reading
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


# --- coming back ------------------------------------------------------------------------------------------------------


def test_restores_by_hand() -> None:
    """Each node has 4 GB of its own; every rank needs all 16 GB, copied at 5 GB/s while four copy."""
    this, shares = job(), STATE.shares(16, kappa=0)
    assert distribute_s(this) == pytest.approx(16 / 5)
    assert restore_s(this, shares, {"local": 4}) == pytest.approx(1 + 16 / 5)
    assert restore_s(this, shares, {"local": 3, "partner": 1}) == pytest.approx(2 + 16 / 5)
    assert restore_s(this, shares, {"persistent": 4}) == pytest.approx(4 + 16 / 5)
    assert restore_s(this, shares, {"local": 3, "persistent": 1}) == pytest.approx(4 + 16 / 5)


@pytest.mark.parametrize(
    ("nodes", "local", "lost"),
    [(4, 3, 1), (4, 4, 1), (3, 3, 2), (5, 3, 1), (6, 4, 1), (4, 1, 4), (4, 0, 4), (3, 0, 5), (5, 2, 2)],
)
def test_what_is_lost_is_read_by_whom_the_library_lets_read_it(nodes: int, local: int, lost: int) -> None:
    """One rank on each node; parts of 1 GiB, of which the library cuts off 16 MiB or more."""
    size, everyone = 1 << 30, tuple(range(nodes))
    own = [(Source("local", f"/own/{part}", (part,), size, ""),) for part in range(local)]
    gone = [(Source("persistent", f"/all/{part}", everyone, size, ""),) for part in range(lost)]
    reads = assign(Candidate(Attempt("0" * 32, "0" * 32, 1, 1, local + lost), (*own, *gone)), nodes)
    fetched = [0] * nodes
    for read in reads[local:]:
        for portion in read.portions or (Portion(read.reader, 0, size),):
            fetched[portion.reader] += portion.stop - portion.first
    found = _most_fetched(nodes - local, lost * size, size, (local + lost) * size / nodes)
    assert found == pytest.approx(max(fetched), abs=reading.LEAST_PORTION_BYTES)


# --- the study --------------------------------------------------------------------------------------------------------


def test_a_study_has_all_combinations() -> None:
    points = study(job(), [16, 1, 4], ["deeppart", "rank0"])
    assert [(p.ranks, p.strategy) for p in points] == [
        (ranks, strategy) for ranks in (1, 4, 16) for strategy in ("deeppart", "rank0")
    ]
    assert all(point.serial_speedup == pytest.approx(1) for point in points if point.strategy == "rank0")
    assert points[0].serial_efficiency == pytest.approx(1)
    many = points[-2]
    assert many.blocked_speedup == pytest.approx(16 / 0.2, rel=1e-3)  # all of torch.save's 16 GB at 1 GB/s, and a copy
    assert 1 <= many.imbalance < 1.02
