"""Coming back, by hand."""

from __future__ import annotations

import pytest
from deeppart_simulator.timing.restores import (
    _most_fetched,
    distribute_s,
    restore_s,
)

from deeppart.model import Attempt
from deeppart.plan.restart import Candidate, Portion, Source, assign, reading
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
