"""What ranks find out of earlier checkpoints is on record before anybody is told."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.suspect_training import Training, checkpointer

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.filterwarnings("ignore::deeppart.errors.DeeppartWarning"),
]


def told_of_it(comm: Any, directory: Path) -> list[int]:
    """How many records there are when a call returns that has found something; syncing them takes its time."""
    training, found, sync = Training(comm.rank), list[int](), os.fsync

    def slowly(descriptor: int) -> None:
        if threading.current_thread().name == "deeppart-suspect":
            time.sleep(0.5)
        sync(descriptor)

    with checkpointer(comm, directory) as ck, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", slowly)
        for step in range(1, 4):
            training.step()
            if step == 3:
                training.harm()
            pending = ck.checkpoint({"weight": training.weight}, step)
            if pending.report.diverged:
                found.append(len(list(directory.glob("suspect-*"))))
            pending.wait(timeout=200)
    return found


def test_it_is_on_record_before_any_rank_is_told(run_on: Any, shared_path: Path) -> None:
    """Whoever is told may end the job at once."""
    assert run_on(2, told_of_it, shared_path) == [[1], [1]]
