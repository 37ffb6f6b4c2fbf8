"""How often which level is needed: a guess first, then what has been seen."""

from __future__ import annotations

import pytest

from deeppart.cadence import Run, failure_rates

ALL = ("local", "partner", "persistent")
DAY_S = 86_400.0


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


def test_quiet_months_make_failures_rarer_and_never_impossible() -> None:
    runs = [Run(60 * DAY_S, 10)]
    rates = failure_rates(10, ALL, runs)
    assert 0 < sum(rates.values()) < sum(failure_rates(10, ALL).values()) / 20
    assert rates["local"] / rates["persistent"] == pytest.approx(
        failure_rates(10, ALL)["local"] / failure_rates(10, ALL)["persistent"]
    )


def test_a_failure_of_which_nothing_is_known_counts_for_the_highest_level() -> None:
    before, after = failure_rates(1, ALL), failure_rates(1, ALL, [Run(60.0, 1, failed=True)])
    assert after["persistent"] > 1.9 * before["persistent"] and after["local"] == pytest.approx(
        before["local"], rel=1e-3
    )
