"""Advice as text: every level and every failure is told, and the configuration says what was chosen."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from deeppart_simulator.advise.choose import Advice, advise
from deeppart_simulator.advise.text import config_toml, in_a_sentence, reasons
from deeppart_simulator.machine.record import Failures
from deeppart_simulator.timing.stages import Job

from deeppart.model import show_seconds, show_share
from tests.simulator.campaign.jobs import DAY
from tests.simulator.timing.jobs import MACHINE, STATE


@pytest.fixture(scope="module")
def advice() -> Advice:
    failures = Failures(process=5 * DAY, node=10 * DAY, system=100 * DAY)
    return advise(Job(STATE, replace(MACHINE, failures=failures), 16, 4))


def test_every_failure_that_happens_and_every_level_has_a_line(advice: Advice) -> None:
    lines = reasons(advice)
    for words in ("a process dies every", "a node is lost every", "everything stops every", "compression: "):
        assert sum(line.startswith(words) for line in lines) == 1, words
    assert not any("a group of nodes" in line for line in lines), "which never happens here"
    for cost in advice.chosen.costs:
        assert sum(line.startswith(f"{cost.name}: every") for line in lines) == 1
    assert all(lines) and len(lines) == len(set(lines))


def test_the_configuration_is_what_was_chosen(advice: Advice) -> None:
    said = tomllib.loads(config_toml(advice))
    job = advice.chosen.job
    assert (said["compression"], said["capture"]) == (job.compression, job.capture)
    assert said["kappa"] == round(job.machine.memory.kappa_bytes)
    assert {level for level, count in said["every"].items() if count} >= {cost.name for cost in advice.chosen.costs}
    assert ("parity_group" in said) == bool(job.protection.parity_group) and "flush_bandwidth" not in said


def test_the_sentence_has_the_figures_of_the_choice(advice: Advice) -> None:
    chosen = advice.chosen
    said = in_a_sentence(chosen)
    assert said.startswith(f"Call checkpoint() every {show_seconds(chosen.cadence.period_s)}: each blocks ")
    assert f"blocks {show_seconds(chosen.blocked_s)}, a failure costs {show_seconds(chosen.work_s)} of work" in said
    assert said.endswith(f"{show_share(chosen.waste.total)} of the time in all.")
    # A failure finds training half a period after the last call, and what all of them cost is what is lost.
    assert 0.4 < chosen.work_s / chosen.cadence.period_s < 0.7
    rate = sum(cost.failures_per_s for cost in chosen.costs)
    lost = chosen.waste.cost + rate * (chosen.work_s + chosen.back_s)
    assert lost == pytest.approx(chosen.waste.total)
