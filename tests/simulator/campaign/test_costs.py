"""What each level costs, and which failures need it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.campaign.costs import level_costs, survival
from deeppart_simulator.campaign.plan import Planned
from deeppart_simulator.machine.record import Failures
from deeppart_simulator.timing.stages import Job, Protection
from deeppart_simulator.workload.states import read_state

from deeppart.plan.interval import best
from tests.simulator.campaign.jobs import DAY, QUIET, planned


def test_which_level_a_class_of_failures_needs() -> None:
    failures = Failures(process=DAY, node=DAY, group=DAY, group_nodes=2, system=DAY)
    assert survival(planned(failures, ranks=8)).needs == {
        "process": "local", "node": "partner", "group": "partner", "system": "persistent",
    }  # fmt: skip
    alone = planned(failures, ranks=8, protection=Protection(partner=False))
    assert survival(alone).needs["node"] == "persistent"
    nothing = planned(failures, ranks=8, protection=Protection(persistent=False))
    assert survival(nothing).unprotected == ["system"]


@pytest.mark.parametrize("network", [1e8, 1e9, 1e15])
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_a_flush_keeps_its_share_of_the_time_also_where_copies_hide_it(network: float, share: float) -> None:
    """With a slow network copies are complete after the flush, which adds nothing to when all is done."""
    machine = replace(
        QUIET,
        failures=Failures(node=DAY, system=DAY),
        network=replace(QUIET.network, bandwidth=network),
        persistent=replace(QUIET.persistent, write=2e9, node_write=1e9),
    )
    job = Job(read_state("tensors-8x10GB"), machine, 8, 1, flush_share=share)
    this = Planned(job)
    times = this.on(this.nodes).times
    hidden = times.complete()["persistent"] < times.complete()["partner"]
    assert hidden == (network == 1e8)
    cadence = best(level_costs(this))
    assert times.stages()["persistent"] == pytest.approx(40.0, rel=0.01)
    assert times.stages()["persistent"] <= share * cadence.interval_s("persistent") * 1.001
