"""A short campaign finds nothing; a campaign against a library that is broken on purpose finds it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.campaign import __main__ as campaign
from tests.faults.campaign import judge, records, runner, special, sweep
from tests.faults.campaign.jobs import Jobs
from tests.faults.campaign.order import Order
from tests.faults.campaign.report import Tally
from tests.faults.campaign.runner import Play
from tests.faults.campaign.stages import ROOT, STAGES
from tests.mpi import launchers
from tests.sampling import sampled

#: One worker runs all of these, so that the ranks for their seed are made ready once.
pytestmark = pytest.mark.xdist_group("campaign")

REPOSITORY = Path(__file__).resolve().parents[2]
#: Everywhere the same: each other one would need ranks of its own, which see sets of names in another order.
SEED = 6
#: Jobs take longest to start: small ones, and one worker's. Number of scenarios: with kills and without.
SMALL = ("--seed", str(SEED), "--ranks", "3", "--workers", "1")
SHORT = ("--runs", "6", *SMALL, "--kills", "0.25", "--only", "files")

Played = tuple[int, dict[str, Any]]


@pytest.fixture
def play(capsys: pytest.CaptureFixture[str]) -> Callable[..., Played]:
    """Run a campaign; its exit code and what it counted."""
    if reason := launchers.unavailable():
        pytest.skip(reason)

    def run(*arguments: str) -> Played:
        code = campaign.main([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.mark.timeout(300)
def test_a_short_campaign(play: Callable[..., Played], monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn scenarios, and one that needs what an earlier step refers to."""
    drawn = campaign._chosen
    monkeypatch.setattr(campaign, "_chosen", lambda options: [*drawn(options), harmed_base()])
    code, result = play(*SHORT)
    assert code == 0, result["failed"]
    assert result["wrong_bytes"] == result["hangs"] == 0 and not result["problems"]
    assert result["faults"] > 20
    assert any(kind.startswith("kill: ") for kind in result["kinds"]) and "file: base" in result["kinds"]


@pytest.mark.timeout(300)
def test_a_short_campaign_of_each_special_kind(play: Callable[..., Played]) -> None:
    """One scenario of one of them; more are drawn by ``make faults``."""
    kinds = sampled(("hang", "clock", "signal"), 3)
    drawn = [str(next(n for n in range(1000) if special.kind_of(SEED, n) == kind)) for kind in kinds]
    code, result = play(*SMALL, "--repeat", *(f"{SEED}:{number}" for number in drawn))
    assert code == 0, result["failed"]
    assert result["faults"] >= len(kinds)


def killed_at(names: list[str]) -> records.Scenario:
    """A life for each stage, in which a rank is killed there."""
    quiet, lives = sweep.quiet_life("checkpoint"), [sweep.quiet_life("checkpoint")]
    lost = records.FileFault("remove", "node", 1, 0, 0)
    for name in names:
        stage = STAGES[name]
        victim, at = int(stage.who != ROOT), int(stage.phase == "checkpoint")
        kill = records.Kill("rank", victim, stage.phase, at, name, 1, 0.0, 0.0)
        lives.append(dataclasses.replace(quiet, kill=kill, before=(lost,) if stage.needs == "heal" else ()))
    return records.Scenario(SEED, 1002, True, sweep.LEAVES, (*lives, dataclasses.replace(quiet, checkpoints=0)))


@pytest.mark.timeout(300)
def test_killed_at_every_stage(play: Callable[..., Played], monkeypatch: pytest.MonkeyPatch) -> None:
    """The job comes back with a committed step's bytes."""
    names = sampled([name for name, stage in STAGES.items() if stage.needs != "rebuild"], 8)
    monkeypatch.setattr(campaign, "_chosen", lambda options: [killed_at(names)])
    code, result = play(*SMALL)
    assert code == 0, result["failed"]
    assert {f"kill: {name}" for name in names} <= result["kinds"].keys()


def left_behind_at(name: str) -> records.Scenario:
    """Rank 1 stops there, its job is killed, and it goes on when the next one has committed a step."""
    life = special.quiet_life(2, 2)
    stopped = records.Incident("zombie", 1, "checkpoint", 1, name, seconds=0.2)
    successor = dataclasses.replace(life, checkpoints=3, running=(records.RunningFault("wake", 2),))
    lives = (dataclasses.replace(life, incident=stopped, timeout_s=3.0), successor, special.comparing(life))
    return records.Scenario(SEED, 1003, True, sweep.LEAVES, lives)


@pytest.mark.skipif(not launchers.is_mpich(), reason="Open MPI ends a job's other ranks with the one that is killed")
@pytest.mark.timeout(300)
@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "stage",
    ["local part: before its name", "partner copies: before the name", "persistent part: before its name",
     "retiring: a node"],
)  # fmt: skip
def test_a_rank_that_outlives_its_job_harms_nothing_of_the_next_one(
    play: Callable[..., Played], monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setattr(campaign, "_chosen", lambda options: [left_behind_at(stage)])
    code, result = play(*SMALL)
    assert code == 0, result["failed"]
    assert "a rank that was left behind goes on" in result["kinds"]


def served_by_parity() -> records.Scenario:
    """A node is lost, and its parts lie nowhere else, whatever the order in which things happen."""
    fault = records.FileFault("remove", "node", 1, 0, 0)
    every = {name: int(name in ("local", "parity")) for name in records.LEVELS}
    saves = dataclasses.replace(sweep.quiet_life("checkpoint"), every=every)
    restores = dataclasses.replace(saves, checkpoints=0, before=(fault,))
    leaves = tuple(records.Leaf(name, "float32", 5000, name == "all0", True, False) for name in ("all0", "own1"))
    return records.Scenario(SEED, 1000, True, leaves, (saves, restores))


def harmed_base() -> records.Scenario:
    """What has not changed since the first checkpoint is referred to when that is gone, and lies in a damaged file.

    Leaves of one dtype share chunks, and whole chunks are what is referred to.
    """
    every = dict.fromkeys(records.LEVELS, 0) | {"local": 1, "persistent": 1}
    saves = dataclasses.replace(sweep.quiet_life("checkpoint"), checkpoints=5, every=every)
    restores = dataclasses.replace(saves, checkpoints=0, before=(records.FileFault("flip", "base", 1, 0, 0),))
    frozen = records.Leaf("own0", "float32", 30_000, False, True, False, frozen=True)
    changing = records.Leaf("own1", "int64", 5000, False, True, False)
    return records.Scenario(SEED, 1001, True, (frozen, changing), (saves, restores))


#: Scenarios that meet what is broken; for the rebuild, one is made. In that of the encoding, a part changes when its
#: parity begins to be encoded, and that parity is needed.
MEETING = {
    "digests": ("--repeat", "6:3", "--kills", "0"),
    "encoding": ("--repeat", "6:2300", "--kills", "0"),
    "hang": ("--repeat", "6:1", "--kills", "0"),
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("broken", "found"),
    [("digests", "wrong bytes"), ("rebuild", "too much lost"), ("encoding", "too much lost"), ("hang", "hang")],
)
@pytest.mark.timeout(300)
def test_a_broken_library_is_noticed(
    play: Callable[..., Played], monkeypatch: pytest.MonkeyPatch, broken: str, found: str
) -> None:
    if broken == "rebuild":
        monkeypatch.setattr(campaign, "_chosen", lambda options: [served_by_parity()])
    code, result = play(*MEETING.get(broken, ()), *SMALL, "--break", broken)
    assert code == 1 and len(result["failed"]) == 1
    assert result["problems"].get(found, 0) > 0, result["failed"]
    assert (result["wrong_bytes"] > 0) == (broken == "digests")
    assert result["failed"][0]["repeat"].endswith(f"--break {broken}")


def test_a_seed_decides_everything_in_every_process(capsys: pytest.CaptureFixture[str]) -> None:
    """Sets of names come in another order in every interpreter: nothing that is drawn may depend on that."""
    arguments = ["--seed", "77123456", "--runs", "40", "--list"]
    campaign.main(arguments)
    command = [sys.executable, "-m", "tests.faults.campaign", *arguments]
    env = os.environ | {"PYTHONHASHSEED": "1"}
    other = subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd=launchers.ROOT).stdout
    assert len(other.splitlines()) >= 40 and other == capsys.readouterr().out


@pytest.mark.now_and_then(2)
@pytest.mark.timeout(300)
def test_the_same_seed_does_the_same_harm(tmp_path: Path) -> None:
    """Lives that wait write the same files."""
    leaves = tuple(records.Leaf(name, "float32", 5000, name == "all0", True, False) for name in ("all0", "own1"))
    quiet = sweep.quiet_life("checkpoint")
    kinds = ("local", "partner", "parity", "persistent", "manifest", "spare", "temporary", "lock", "node")
    harm = tuple(
        records.FileFault(action, file, 2, -1, 11 * number)
        for number, (action, file) in enumerate(itertools.product(("flip", "truncate", "garbage", "swap"), kinds[:5]))
    ) + tuple(records.FileFault("remove", file, 1, -1, 5) for file in kinds)
    lives = (quiet, dataclasses.replace(quiet, before=harm[:10]), dataclasses.replace(quiet, before=harm[10:]))
    if reason := launchers.unavailable():
        pytest.skip(reason)
    scenario = records.Scenario(SEED, 1, True, leaves, lives)
    jobs = Jobs(3, 90.0, tmp_path, hash_seed=SEED)
    try:
        plays = [Play(scenario, tmp_path / name, jobs, Tally()) for name in ("first", "second")]
        for each in plays:
            each.run()
            assert not each.problems, each.problems
    finally:
        jobs.close()
    first, second = (each.harm for each in plays)
    assert len(first) > 20 and {each.how for each in first} >= {"flip", "truncate", "swap", "node"}
    assert first == second


@pytest.mark.timeout(300)
def test_the_sweep_reaches_the_last_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that comes too late meets nothing, and shows how many operations there are."""
    if reason := launchers.unavailable():
        pytest.skip(reason)
    seen: dict[tuple[str, str], int] = {}

    class Counting(judge.Outcome):
        def __init__(self, order: Order) -> None:
            super().__init__(order)
            for _, event in self.events("storage"):
                fault = self.life.storage[event["fault"]]
                seen[fault.phase, fault.root] = max(event["seen"], seen.get((fault.phase, fault.root), 0))

    lives = [sweep.quiet_life("checkpoint")]
    for number, (phase, root) in enumerate(records.OPERATIONS):
        fault = records.StorageFault(phase, root, 100_000, "EIO", False, 0)
        lost = records.FileFault("remove", "node", 1, 0, number)
        lives.append(sweep.quiet_life(phase, (fault,), (lost,) if phase == "restore" else ()))
    monkeypatch.setattr(runner, "Outcome", Counting)
    jobs = Jobs(3, 90.0, tmp_path, hash_seed=SEED)
    try:
        Play(records.Scenario(SEED, 1, True, sweep.LEAVES, tuple(lives)), tmp_path / "play", jobs, Tally()).run()
    finally:
        jobs.close()
    assert seen.keys() == records.OPERATIONS.keys()
    assert {place: count for place, count in seen.items() if count > records.OPERATIONS[place]} == {}
    assert all(seen.values()), seen


@pytest.mark.now_and_then(4)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_campaign_that_is_interrupted_says_what_it_has_done(number: signal.Signals) -> None:
    if reason := launchers.unavailable():
        pytest.skip(reason)
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.faults.campaign", *SMALL, "--runs", "500"]
    command += ["--json", "--verbose"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        try:
            assert job.stderr is not None
            assert any(line.startswith("scenario ") for line in job.stderr)  # one is over
            job.send_signal(number)
            output, errors = job.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            job.send_signal(signal.SIGABRT)  # it prints where its threads are
            pytest.fail(job.communicate(timeout=20)[1])
        finally:
            job.kill()
    result = json.loads(output)
    assert job.returncode == 130 and result["interrupted"] and not result["failed"], errors
    assert result["scenarios"] >= 1
    assert re.search(f"interrupted while it played ({SEED}:|nothing$)", errors, re.MULTILINE), "or between two"
