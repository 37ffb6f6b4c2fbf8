"""What each level costs, and which failures need it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from deeppart_simulator.campaign.costs import is_left, level_costs, survival
from deeppart_simulator.campaign.plan import Planned
from deeppart_simulator.campaign.survival import Stored, recover
from deeppart_simulator.machine.record import Failures, Group
from deeppart_simulator.timing.stages import Job, Protection
from deeppart_simulator.workload.states import read_state

from deeppart.plan.interval import best
from deeppart.plan.restart import Inventory, Outlook, survey
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


@pytest.mark.parametrize("protection", [Protection(), Protection(False, False), Protection(True, False, 5, 2),
                                        Protection(True, True, 4, 1)])  # fmt: skip
@pytest.mark.parametrize("domain_nodes", [0, 2, 6])
def test_of_what_is_struck_alike_one_is_enough(protection: Protection, domain_nodes: int) -> None:
    """The planner says the same of all that is struck."""
    random, every, said = np.random.default_rng(7), tuple(range(24)), set()
    levels = ("local", *(["partner"] if protection.partner else []), *(["parity"] if protection.parity_group else []))
    for number in range(80):  # some next to each other, some anywhere
        count, first = int(random.integers(1, 9)), int(random.integers(16))
        struck = every[first : first + count] if number % 4 == 0 else random.permutation(24)[:count].tolist()
        lost = tuple(sorted(struck))
        whole = recover([Stored(0, 0.0, every, set(levels), set(lost))], every, protection, domain_nodes) is not None
        assert is_left(24, protection, domain_nodes, levels, lost) == whole
        said.add(whole)
    assert said == {True, False} or protection == Protection(False, False)


def test_the_planner_is_asked_about_few_parts_however_many_nodes_fail_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()

    def counted(files: Inventory) -> Outlook:
        asked.append(len(files.node_of))
        return survey(files)

    monkeypatch.setattr("deeppart_simulator.campaign.survival.survey", counted)
    failures = Failures(node=DAY, system=DAY, groups={"power": Group(nodes=240, mtbf=100 * DAY)})
    machine = replace(QUIET, nodes=2400, failures=failures)
    job = Job(read_state("tensors-2400x1MB"), machine, 2400, 1, protection=Protection(True, False, 8, 1))
    needs = survival(Planned(job)).needs
    assert (needs["node"], needs["power"], needs["system"]) == ("parity", "parity", "persistent")
    assert asked and max(asked) <= 32
