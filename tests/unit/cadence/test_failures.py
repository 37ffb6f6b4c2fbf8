"""How often which level is needed: a guess first, then what has been seen."""

from __future__ import annotations

import pytest

from deeppart.cadence import Run, failure_rates

ALL = ("local", "partner", "persistent")


# --- failures ---------------------------------------------------------------------------------------------------------


def test_what_a_level_that_is_off_would_meet_the_next_one_has_to() -> None:
    rates = failure_rates(100, ALL)
    assert failure_rates(100, ("persistent",)) == {"persistent": pytest.approx(sum(rates.values()))}
    without = failure_rates(100, ("local", "persistent"))
    assert without["local"] == rates["local"] and without["persistent"] == pytest.approx(
        rates["partner"] + rates["persistent"]
    )
    assert failure_rates(100, ("local", "parity", "persistent"))["parity"] == rates["partner"]


def test_many_failures_seen_outweigh_the_guess() -> None:
    """A job of 10 nodes that fails every hour, three times of four so that local parts are enough."""
    runs = [Run(3600.0, 10, failed=True, needed="persistent" if n % 4 == 0 else "local") for n in range(400)]
    rates = failure_rates(10, ALL, runs)
    assert sum(rates.values()) == pytest.approx(1 / 3600, rel=0.15)
    assert rates["local"] / sum(rates.values()) == pytest.approx(0.75, abs=0.01)
