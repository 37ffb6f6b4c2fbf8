"""One channel for a process; between ranks: tests/mpi/comm/test_mpi.py."""

from __future__ import annotations

import os
from typing import Any

import pytest

from deeppart.comm import SingleComm, job


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The timeouts with which a channel was made."""
    made = list[float]()

    def connect(comm: Any, timeout: float) -> SingleComm:
        made.append(timeout)
        return SingleComm()

    monkeypatch.setattr(job, "connect", connect)
    monkeypatch.setattr(job, "_process", job._Process())
    return made


def test_another_launchers_data_make_another_one(connected: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    first = job.channel_of_job()
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    second = job.channel_of_job()
    assert second is not first and job.channel_of_job() is second
    monkeypatch.setenv("MASTER_PORT", "2")
    assert job.channel_of_job() is not second and len(connected) == 3


def test_a_child_that_is_forked_makes_its_own(connected: list[float]) -> None:
    """Also where another thread had the lock."""
    first = job.channel_of_job()
    with job._process._lock:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if job.channel_of_job() is not first else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert job.channel_of_job() is first and connected == [job.TIMEOUT_S]


def test_one_that_could_not_be_made_is_tried_again(connected: list[float], monkeypatch: pytest.MonkeyPatch) -> None:

    def refused(comm: Any, timeout: float) -> SingleComm:
        raise ConnectionError

    good = vars(job)["connect"]
    monkeypatch.setattr(job, "connect", refused)
    with pytest.raises(ConnectionError):
        job.channel_of_job()
    monkeypatch.setattr(job, "connect", good)
    assert job.channel_of_job().size == 1 and len(connected) == 1
