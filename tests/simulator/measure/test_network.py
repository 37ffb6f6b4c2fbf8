"""The network of a host, from checkpoints with copies and parity among its ranks, put together from known rates."""

from __future__ import annotations

import math
from typing import Any

import pytest
from deeppart_simulator.machine.record import Network
from deeppart_simulator.measure.fitting import Sample, between_ranks

PIECES: dict[str, Any] = {"parity": 2e9, "network": {"bandwidth": 6e9, "latency": 3e-6}}
SHARES = ((64 << 20, 16), (128 << 20, 64))


def samples(partner_s: float | None = None) -> list[Sample]:
    """Copies at 0.5 GB/s beside a file of 2 ms, parity at 0.4 GB/s beside 50 ms, a lost part at 0.25 GB/s."""
    return [
        Sample(
            4,
            nbytes,
            tensors,
            {
                "partner": 2e-3 + nbytes / 0.5e9 if partner_s is None else partner_s,
                "parity": 0.05 + nbytes / 0.4e9,
                "rebuild": 0.048 + nbytes / 0.25e9,
            },
        )
        for nbytes, tensors in SHARES
    ]


@pytest.mark.parametrize("crowding", [1.0, 2.0])
def test_rates_are_those_of_a_rank_with_a_core_of_its_own(crowding: float) -> None:
    found = between_ranks(PIECES, samples(), crowding, 2e-3)
    assert (found.bandwidth, found.latency) == (6e9, 3e-6)
    assert found.copies == pytest.approx(0.5e9 * crowding, rel=1e-3)
    assert found.parity == pytest.approx(0.4e9 * crowding, rel=1e-3)
    assert found.rebuild == pytest.approx(0.25e9 * crowding, rel=1e-3)
    assert found.exchange == pytest.approx(0.048, rel=1e-3)


@pytest.mark.parametrize("partner_s", [0.0, -1e-3])
def test_copies_that_took_no_time_were_not_measured(partner_s: float) -> None:
    assert math.isinf(between_ranks(PIECES, samples(partner_s), 1.0, 2e-3).copies)


def test_one_rank_alone_has_no_network() -> None:
    found = between_ranks({"parity": 1e8, "network": None}, (), 1.0, 2e-3)
    assert (found.copies, found.parity) == (math.inf, 1e8)
    assert between_ranks({"parity": 29e9, "network": None}, (), 1.0, 2e-3).parity == Network(bandwidth=1.0).parity
