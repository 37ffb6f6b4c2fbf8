"""Policies by name."""

from __future__ import annotations

from deeppart_simulator.cluster.policies import POLICIES, policy_of
from deeppart_simulator.cluster.pollux import Pollux


def test_each_name_is_a_policy_of_its_own() -> None:
    found = [policy_of(name, 4, 2, 12.0) for name in POLICIES]
    assert [type(each).__name__.lower() for each in found] == list(POLICIES)
    assert isinstance(found[-1], Pollux) and found[-1]._restart_s == 12.0
