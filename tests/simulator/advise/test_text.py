"""Advice as text: every level and every failure is told, and the configuration says what was chosen."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from deeppart_simulator.advise.choose import Advice, Wanted, advise
from deeppart_simulator.advise.text import bill_of, config_toml, in_a_sentence, reasons
from deeppart_simulator.machine.record import Failures, Price
from deeppart_simulator.timing.stages import Job

import deeppart
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


@pytest.mark.parametrize("step_s", [0.25, 3.0, 700.0])
@pytest.mark.parametrize("wanted", [Wanted(partner=True), Wanted(local=True, partner=False), Wanted(local=False)])
def test_a_script_that_calls_at_every_step_saves_as_often_as_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float, wanted: Wanted
) -> None:
    failures = Failures(process=5 * DAY, node=10 * DAY, system=100 * DAY)
    advice = advise(Job(STATE, replace(MACHINE, failures=failures), 16, 4), step_s, wanted=wanted)
    monkeypatch.chdir(tmp_path)
    Path("deeppart.toml").write_text(config_toml(advice))
    local_dir = None if wanted.local is False else str(tmp_path / "local")
    config = deeppart.Config(persistent_dir=str(tmp_path / "persistent"), local_dir=local_dir)
    assert isinstance(config.every, Mapping)
    cadence, costs = advice.chosen.cadence, {cost.name: cost.cost_s for cost in advice.chosen.costs}
    # Time passes with steps and with what calls cost: that is what an interval of the advice is made of.
    now, number, saved = 0.0, 0, {level: [0.0] for level in costs}
    while len(saved["persistent"]) < 3:
        now, number = now + step_s, number + 1
        due = [level for level, count in config.every.items() if count and number % count == 0]
        now += sum(costs[level] for level in due)
        for level in due:
            saved[level].append(now)
    assert set(saved) == set(costs)
    for level, times in saved.items():
        interval = (times[-1] - times[0]) / (len(times) - 1)
        assert abs(interval - cadence.interval_s(level)) <= step_s / 2, level
    assert config.every["persistent"] % max(1, config.every["local"]) == 0
    assert "at every training step" in config_toml(advice)


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


PRICED = replace(
    MACHINE,
    failures=Failures(node=10 * DAY, system=100 * DAY),
    price=Price(currency="USD", node_hour=2.0),
)


def test_thirty_days_by_where_the_time_goes() -> None:
    """4 nodes for 720 hours each."""
    chosen = advise(Job(STATE, PRICED, 16, 4)).chosen
    found = {item.what: item for item in bill_of(chosen).items}
    total, lost = bill_of(chosen).total, bill_of(chosen).lost
    assert total.node_hours == pytest.approx(2880) and total.money == pytest.approx(5760)
    assert lost.node_hours == pytest.approx(2880 * chosen.waste.total)
    writing = found["blocked by checkpoints"].node_hours + found["slowed by the background"].node_hours
    assert writing == pytest.approx(2880 * chosen.waste.cost)
    assert found["training lost"].node_hours == pytest.approx(2880 * chosen.waste.rework)
    assert found["coming back"].node_hours == pytest.approx(2880 * chosen.waste.restart)
    # A call blocks once a period; the period has what it costs in it.
    blocked = chosen.blocked_s / chosen.cadence.period_s * 2880
    assert found["blocked by checkpoints"].node_hours == pytest.approx(blocked, rel=0.05)
