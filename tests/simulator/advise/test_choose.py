"""What is advised: the least waste of all candidates, and of equals the simplest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.advise.choose import FACTORS, advise, describe
from deeppart_simulator.machine.record import Failures
from deeppart_simulator.timing.stages import Job, Protection

from deeppart.errors import ConfigError
from tests.simulator.campaign.jobs import DAY
from tests.simulator.timing.jobs import MACHINE, STATE


def asked(failures: Failures, **machine: object) -> Job:
    return Job(STATE, replace(MACHINE, failures=failures, **machine), 16, 4)


def test_the_advice_wastes_least_or_little_more_and_is_simpler() -> None:
    advice = advise(asked(Failures(node=10 * DAY, system=100 * DAY)))
    wastes = [choice.cadence.waste.total for choice in advice.choices]
    assert wastes == sorted(wastes) and advice.chosen.cadence.waste.total <= 1.05 * wastes[0]
    simpler = [choice for choice in advice.choices if choice.simplicity < advice.chosen.simplicity]
    assert all(choice.cadence.waste.total > 1.05 * wastes[0] for choice in simpler)


def test_where_only_processes_die_no_node_is_protected() -> None:
    chosen = advise(asked(Failures(process=DAY))).chosen
    assert chosen.job.protection.local and not chosen.job.protection.partner
    assert not chosen.job.protection.parity_group and chosen.survival.needs["process"] == "local"


def test_nodes_that_are_often_lost_are_protected_from_it() -> None:
    slow = replace(MACHINE.persistent, write=1e8, read=1e8)
    chosen = advise(asked(Failures(node=DAY / 4), persistent=slow)).chosen
    assert chosen.job.protection.partner or chosen.job.protection.parity_group
    assert chosen.survival.needs["node"] in ("partner", "parity")


def test_without_a_codec_nothing_is_compressed_and_progress_is_told() -> None:
    told: list[str] = []
    advice = advise(asked(Failures(node=DAY), codecs={}), progress=told.append)
    assert {choice.job.compression for choice in advice.choices} == {"none"}
    assert len(told) == len(set(told)) >= len(advice.choices)


def test_what_is_adapted_is_never_worse_than_what_is_kept() -> None:
    advice = advise(asked(Failures(node=10 * DAY, system=100 * DAY)))
    assert tuple(each.factor for each in advice.sensitivity) == FACTORS
    for each in advice.sensitivity:
        assert each.adapted <= each.kept * (1 + 1e-9)
    periods = [each.period_s for each in advice.sensitivity]
    assert periods == sorted(periods), "the rarer failures are, the longer one may wait"


def test_a_machine_without_failures_needs_no_advice() -> None:
    with pytest.raises(ConfigError):
        advise(asked(Failures()))


@pytest.mark.parametrize(
    ("protection", "compression", "text"),
    [
        (Protection(), "none", "local + partner + persistent"),
        (Protection(local=False, partner=False), "none", "persistent"),
        (Protection(partner=False, parity_group=8, parity_tolerate=2), "tensor",
         "local + parity 8/2 + persistent, compressed"),
    ],
)  # fmt: skip
def test_described_in_a_few_words(protection: Protection, compression: str, text: str) -> None:
    assert describe(replace(asked(Failures()), protection=protection, compression=compression)) == text
