"""Coming back, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.timing.restores import (
    _most_fetched,
    distribute_s,
    restore_s,
)
from deeppart_simulator.timing.stages import Protection
from deeppart_simulator.workload.states import State, read_state

from deeppart.model import Attempt
from deeppart.plan.restart import Candidate, Portion, Source, assign, reading
from tests.simulator.timing.jobs import MACHINE, STATE, job

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


def test_a_lost_node_is_rebuilt_after_the_others_have_loaded_their_parts() -> None:
    """4 GB in 4 parts: over one link, each computed at 0.5 GB/s; before that, each survivor loads its own for 1 s."""
    this = job(protection=Protection(partner=False, parity_group=4))
    this = replace(this, machine=replace(MACHINE, network=replace(MACHINE.network, rebuild=0.5e9, exchange=0.3)))
    shares, parts = STATE.shares(16, kappa=0), {"local": 3, "parity": 1}
    assert restore_s(this, shares, parts) == pytest.approx(1 + 2 + 0.3 + 16 / 5)
    slow = replace(this, machine=replace(this.machine, network=replace(this.machine.network, bandwidth=1e9)))
    assert restore_s(slow, shares, parts) - distribute_s(slow) == pytest.approx(1 + 4 + 0.3)


def test_over_the_network_goes_what_no_rank_of_the_node_has_read() -> None:
    """Of what all hold, three quarters are on other nodes, and come once. With tensor parallelism the four ranks of a
    node hold four different parts, or two of which two hold the same: then that comes once.
    """
    slow = replace(MACHINE, network=replace(MACHINE.network, bandwidth=1e9))
    assert distribute_s(job(machine=slow)) == pytest.approx(12 / 1)
    four = read_state("bert-large+adam@tp=4")
    nbytes = _held_by_one(four) * 4
    assert distribute_s(job(state=four, machine=slow)) == pytest.approx(nbytes * 3 / 4 / 1e9, rel=0.01)
    two = read_state("bert-large+adam@tp=2")
    assert distribute_s(job(state=two, machine=slow)) == pytest.approx(_held_by_one(two) * 2 * 3 / 4 / 1e9, rel=0.01)


def _held_by_one(state: State) -> float:
    """Bytes of what a rank of 16 holds, where it is divided; what all hold is next to nothing here."""
    return max(float(groups.leaves.nbytes.sum()) for groups in state.on(16))
