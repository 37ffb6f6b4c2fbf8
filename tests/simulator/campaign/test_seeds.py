"""Runs in processes of their own: the same results in the same order, and an end in good time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from typing import cast

import pytest
from deeppart_simulator.campaign import seeds
from deeppart_simulator.campaign.result import RunResult
from deeppart_simulator.campaign.run import run
from deeppart_simulator.campaign.seeds import cores, run_seeds

from deeppart.errors import DeeppartError
from tests.simulator.campaign.jobs import DAY, busy


def test_results_are_those_of_one_process_in_the_order_of_the_seeds() -> None:
    job, cadences = busy()
    cadences = replace(cadences, wall_s=2 * DAY)
    told = list[float]()
    alone = [run(job, cadences, seed) for seed in (7, 3, 5, 11, 2)]
    assert run_seeds(job, cadences, (7, 3, 5, 11, 2), progress=told.append) == alone
    assert told == sorted(told) and told[-1] == pytest.approx(5)
    told.clear()
    assert run_seeds(job, cadences, (7, 3, 5, 11, 2), progress=told.append, processes=2) == alone
    assert told and told == sorted(told) and told[-1] == pytest.approx(5)
    assert not multiprocessing.active_children()


def test_a_process_that_dies_is_told_and_an_interrupt_ends_all_of_them() -> None:
    job, cadences = busy()
    cadences = replace(cadences, wall_s=2000 * DAY)  # minutes, if nothing ended it

    def kill(runs: float) -> None:
        for child in multiprocessing.active_children() if runs else ():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(DeeppartError, match="a process that simulated died") as told:
        run_seeds(job, cadences, range(4), progress=kill, processes=2)
    assert "--jobs" in str(told.value)

    def interrupt(runs: float) -> None:
        if runs:
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_seeds(job, cadences, range(4), progress=interrupt, processes=2)
    assert not multiprocessing.active_children() and time.monotonic() - began < 60


def test_there_is_a_core() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)


def test_few_runs_are_handed_out_ahead_however_long_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all of a thousand runs would be waiting in the pool after the first look."""
    monkeypatch.setattr(seeds, "_LOOK_S", 0.0)
    handed_out: list[Future[RunResult]] = []
    ahead: list[int] = []

    class Pool:
        def submit(self, work: object, place: int, seed: int) -> Future[RunResult]:
            handed_out.append(Future())
            return handed_out[-1]

    def look() -> None:
        waiting = [future for future in handed_out if not future.done()]
        ahead.append(len(waiting))
        if len(ahead) > 3 and waiting:  # nothing happens between the first looks
            waiting[0].set_result(RunResult(handed_out.index(waiting[0]), 1.0))

    found = seeds._collect(cast("ProcessPoolExecutor", Pool()), range(9), 2, look)
    assert max(ahead) == 2 * seeds._AHEAD and ahead[:4] == [4, 4, 4, 4]
    assert [each.seed for each in found] == list(range(9))
