"""What each level costs, and which failures need it."""

from __future__ import annotations

from deeppart_simulator.campaign.costs import survival
from deeppart_simulator.machine.record import Failures
from deeppart_simulator.timing.stages import Protection

from tests.simulator.campaign.jobs import DAY, planned


def test_which_level_a_class_of_failures_needs() -> None:
    failures = Failures(process=DAY, node=DAY, group=DAY, group_nodes=2, system=DAY)
    assert survival(planned(failures, ranks=8)).needs == {
        "process": "local", "node": "partner", "group": "partner", "system": "persistent",
    }  # fmt: skip
    alone = planned(failures, ranks=8, protection=Protection(partner=False))
    assert survival(alone).needs["node"] == "persistent"
    nothing = planned(failures, ranks=8, protection=Protection(persistent=False))
    assert survival(nothing).unprotected == ["system"]
