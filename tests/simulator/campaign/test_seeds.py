"""Runs in processes of their own: the same results in the same order, and an end in good time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

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


#: Two processes simulate for minutes; this one says so as soon as they have begun to be.
_LONG = """
import multiprocessing, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process that is started in the background ignores it
from dataclasses import replace
from deeppart_simulator.campaign.seeds import run_seeds
from tests.simulator.campaign.jobs import DAY, busy
def tell():
    while len(multiprocessing.active_children()) < 2 or not progressed:
        time.sleep(0.01)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
progressed = []
if __name__ == "__main__":
    job, cadences = busy()
    threading.Thread(target=tell, daemon=True).start()
    try:
        cadences = replace(cadences, wall_s=100 * DAY)
        run_seeds(job, cadences, range(400), None, lambda runs: runs and progressed.append(runs), processes=2)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_processes_end_with_the_one_that_began_them(tmp_path: Path) -> None:
    """Else they would wait for work for ever, and whoever reads their output for its end."""
    with _begun(tmp_path) as job:
        job.kill()
        job.communicate(timeout=60)  # returns at the end of the output, which all of them hold open
    assert job.returncode == -signal.SIGKILL


@contextmanager
def _begun(folder: Path) -> Iterator[subprocess.Popen[str]]:
    script = folder / "long.py"
    script.write_text(_LONG)
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as job:  # fmt: skip
        try:
            assert job.stdout is not None and len(job.stdout.readline().split()) == 2
            yield job
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)  # whatever is left if this test fails
