"""Exchanges of the background are driven by every call that may do so, and by nobody else.

Run inside mpirun of ranks whose MPI has one thread.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.comm import Driver, Operation, SingleComm
from deeppart.errors import CheckpointError
from tests.mpi.comm.funneled import SETTINGS, config, state

LEVELS = ("local", "persistent")


def work(directory: Path) -> dict[str, Any]:
    """Every way in which a round may be driven to its end."""
    from mpi4py import MPI

    assert MPI.Query_thread() < MPI.THREAD_MULTIPLE
    seen: dict[str, Any] = {}
    with deeppart.Checkpointer(config(directory)) as ck:
        ck.checkpoint(state(1), 1).wait(timeout=200)
        deadline = time.monotonic() + 200
        polled = ck.checkpoint(state(2), 2)
        while not polled.finished and time.monotonic() < deadline:
            ck.poll()
        asked = ck.checkpoint(state(3), 3)
        while not all(asked.done(level) for level in LEVELS) and time.monotonic() < deadline:
            time.sleep(0.001)
        burst = [ck.checkpoint(state(step), step) for step in range(4, 9)]
        live = state(0)
        seen["restored"] = ck.restore(live)
        seen["value"] = live["x"][0].item()
        burst.append(ck.checkpoint(state(9), 9))
    seen["states"] = [[p.report.levels[level].state for level in LEVELS] for p in (polled, asked, *burst)]
    return seen


def test_every_call_that_may_drive_a_round_does(run_ranks: Any, tmp_path: Path) -> None:
    for seen in run_ranks(3, work, tmp_path, env=SETTINGS).values:
        assert seen == {"restored": 8, "value": 8.0, "states": [["done", "done"]] * 8}
    assert deeppart.load(tmp_path / "p")["step"] == 9


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize(
    ("error", "breaks"), [(CheckpointError, False), (MemoryError, True), (KeyboardInterrupt, True)]
)
def test_what_is_broken_off_in_the_middle_breaks_the_channel(
    threads: bool, error: type[BaseException], breaks: bool
) -> None:
    """But not what the ranks have agreed on. An interrupt of the thread that advances it ends both."""
    channel, driver, came = SingleComm(), Driver(20.0), list[BaseException]()
    channel.threads = threads

    def exchange() -> Operation[None]:
        yield False
        raise error("in the middle")

    def background() -> None:
        try:
            driver.drive(channel, exchange(), "an exchange")
        except BaseException as caught:
            came.append(caught)

    thread, interrupted = threading.Thread(target=background), False
    thread.start()
    deadline = time.monotonic() + 60
    while thread.is_alive() and time.monotonic() < deadline:
        try:
            driver.poll()
        except KeyboardInterrupt:
            interrupted = True
        thread.join(0.005)
    assert [type(each) for each in came] == [error] and (channel.broken is not None) == breaks
    assert interrupted == (not threads and error is KeyboardInterrupt)
