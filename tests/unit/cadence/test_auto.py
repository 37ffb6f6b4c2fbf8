"""``every="auto"``: when a checkpoint is due, and the checkpointer that goes by it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.cadence import Run, failure_rates
from deeppart.cadence.auto import Decider
from deeppart.model import RunsFile
from deeppart.pending import DONE, FAILED, RUNNING, Pending
from deeppart.plan.interval import LevelCost, best, waste

ALL = ("local", "partner", "persistent")


SLOWDOWN = 0.04


BLOCKED_S, BUSY_S = 0.2, {"local": 0.5, "partner": 1.0, "persistent": 8.0}


def train(
    decider: Decider, seconds: float, step_s: float = 0.25, fails: str | None = None
) -> tuple[list[tuple[float, frozenset[str]]], int]:
    """(time and levels of every checkpoint, how often rank 0 was asked) of a training with a clock of its own.

    The level that fails does so after 20 checkpoints.
    """
    clock, calls, looks, busy_until = 0.0, 0, 0, 0.0
    made: list[tuple[float, frozenset[str]]] = []
    open_until: list[tuple[float, Pending, frozenset[str]]] = []
    jitter = random.Random(1)
    while clock < seconds:
        for done, pending, due in list(open_until):
            if clock >= done:
                for level in due:
                    pending.note_stage(level, BUSY_S[level])
                    pending.note_level(level, FAILED if level == fails and len(made) > 20 else DONE)
                open_until.remove((done, pending, due))
        working = bool(open_until)
        decider.meter.entered(clock, working=working)
        calls -= 1
        due = frozenset[str]()
        if calls <= 0:
            looks += 1
            due, calls = decider.decide(clock, room=not working)
        if due:
            pending = Pending(len(made), due)
            pending.note(blocked_s=BLOCKED_S)
            made.append((clock, due))
            clock += BLOCKED_S
            decider.made(clock, pending)
            busy_until = clock + max(BUSY_S[level] for level in due)
            open_until.append((busy_until, pending, due))
        else:
            decider.meter.left(clock, working=working)
        clock += step_s * jitter.uniform(0.95, 1.05) * (1 + SLOWDOWN * bool(open_until))
    return made, looks


def test_checkpoints_come_as_often_as_the_model_says() -> None:
    runs = [Run(1800.0, 8, failed=True, needed=ALL[number % 3]) for number in range(100)]  # a failure each half hour
    decider = Decider(ALL, 8, runs)
    made, looks = train(decider, 2 * 3600)
    assert decider.report is not None
    settled = [time for time, _ in made if time > 600]
    found = (settled[-1] - settled[0]) / (len(settled) - 1)
    costs = [
        LevelCost(level, SLOWDOWN * BUSY_S[level] + BLOCKED_S * (level == "local"), BLOCKED_S, failures_per_s=rate)
        for level, rate in failure_rates(8, ALL, runs).items()
    ]
    assert found == pytest.approx(best(costs).period_s + 0.125, rel=0.1), "the next call after the time is up"
    every = [round(len(made) / sum(level in due for _, due in made)) for level in ALL]
    assert waste(costs, found, every).total <= 1.05 * best(costs).waste.total, "the optimum is flat: several are good"
    assert made[0][1] == frozenset(ALL), "the first tells what they cost"
    assert looks < 12 * len(made), "most calls ask nobody"
    assert "failure every" in str(decider.report)


def test_the_file_system_is_left_to_others_most_of_the_time() -> None:
    """Failures every minute would have it written to all the time: it takes 8 s."""
    runs = [Run(60.0, 8, failed=True, needed="persistent") for _ in range(1500)]
    made, _ = train(Decider(("persistent",), 8, runs, flush_share=0.1), 1800)
    assert 79 < made[-1][0] / (len(made) - 1) < 90
    made, _ = train(Decider(("persistent",), 8, runs), 600)
    assert 600 / len(made) < 20


def test_nothing_is_decided_before_the_first_checkpoint_is_complete() -> None:
    decider = Decider(("persistent",), 1)
    pending = Pending(0, frozenset({"persistent"}))
    pending.note_level("persistent", RUNNING)
    decider.made(0.0, pending)
    assert decider.decide(1e9, room=True)[0] == frozenset() and decider.report is None
    pending.note_level("persistent", DONE)
    assert decider.decide(1e9, room=True)[0] == {"persistent"}


def test_most_calls_go_to_no_level_and_the_last_is_forced(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": torch.zeros(1000), "step": 0}
    with deeppart.Checkpointer(persistent_dir=tmp_path / "p", local_dir=tmp_path / "l", every="auto") as checkpointer:
        assert checkpointer.cadence is None
        first = checkpointer.checkpoint(state, 0)
        assert first.levels == {"local", "persistent"}
        for level in first.levels:  # the forced call is to find both complete
            first.wait(level, timeout=200)
        calls = [checkpointer.checkpoint(state, step) for step in range(1, 200)]
        assert not any(call.levels for call in calls)
        assert all(call.finished and not call.skipped for call in calls)
        with pytest.raises(deeppart.errors.LevelNotRunError):
            calls[0].wait()
        state["step"] = 200
        last = checkpointer.checkpoint(state, 200, force=True)
        assert last.levels == {"local", "persistent"}
        last.wait(timeout=200)
        assert checkpointer.cadence is not None and checkpointer.cadence.failures == 0
    assert deeppart.load(tmp_path / "p")["step"] == 200


def test_force_goes_to_all_levels_with_counted_ones_too(tmp_path: Path) -> None:
    every = {"local": 2, "persistent": 4}
    with deeppart.Checkpointer(persistent_dir=tmp_path / "p", local_dir=tmp_path / "l", every=every) as checkpointer:
        assert checkpointer.cadence is None
        levels = [checkpointer.checkpoint({"x": 1}, step, force=step == 3).levels for step in range(4)]
    assert levels == [{"local", "persistent"}, frozenset(), {"local"}, {"local", "persistent"}]
    assert not (tmp_path / "p" / RunsFile.NAME).exists()
