"""Runs in processes of their own: the same results in the same order, and an end in good time."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace

import pytest
from deeppart_simulator.campaign.run import run
from deeppart_simulator.campaign.seeds import run_seeds

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
    cadences = replace(cadences, wall_s=100 * DAY)
    seeds = range(400)  # minutes, if nothing ended it

    def kill(runs: float) -> None:
        for child in multiprocessing.active_children() if runs else ():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(DeeppartError, match="a process that simulated died") as told:
        run_seeds(job, cadences, seeds, progress=kill, processes=2)
    assert "taskset" in str(told.value)

    def interrupt(runs: float) -> None:
        if runs:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_seeds(job, cadences, seeds, progress=interrupt, processes=2)
    assert not multiprocessing.active_children()
