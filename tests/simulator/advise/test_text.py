"""Advice as text: every level and every failure is told, and the configuration says what was chosen."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from deeppart_simulator.advise.choose import Advice, advise
from deeppart_simulator.advise.text import config_toml, reasons
from deeppart_simulator.machine.record import Failures
from deeppart_simulator.timing.stages import Job

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


def test_a_step_length_and_a_limit_are_told(advice: Advice) -> None:
    assert "steps of 2 s" in config_toml(advice, 2.0) and "steps of" not in config_toml(advice)
    limited = replace(advice, chosen=replace(advice.chosen, job=replace(advice.chosen.job, flush_bandwidth=1e9)))
    assert tomllib.loads(config_toml(limited))["flush_bandwidth"] == 1e9
    assert "files" not in tomllib.loads(config_toml(advice))
    gathered = replace(advice, chosen=replace(advice.chosen, job=replace(advice.chosen.job, files="node")))
    assert tomllib.loads(config_toml(gathered))["files"] == "node"
