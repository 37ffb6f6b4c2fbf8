"""The examples in the docstrings of what is about goodput, and of the simulator's clusters, say what happens."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

MODULES = (
    *(f"deeppart.plan.goodput.{name}" for name in ("throughput", "noise", "goodput", "optimum", "fitting", "advice")),
    "deeppart.elastic.profile",
    *(f"deeppart_simulator.cluster.{name}" for name in ("applications", "workloads", "restarting", "traces.archive")),
    *(f"deeppart_simulator.cluster.policies.{name}" for name in ("worth", "dividing", "packing")),
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_say_what_happens(name: str) -> None:
    found = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0 and not found.failed
