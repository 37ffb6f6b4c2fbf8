"""Which rank is on which node, and what this one can encode with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.comm import SingleComm
from deeppart.save import Processors
from deeppart.session.topology import MOST_ENCODE_THREADS, MOST_WAITING_THREADS, Topology, compare_settings


def compared(**settings: Any) -> tuple[Topology, Processors]:
    return compare_settings(SingleComm(), deeppart.Config(**settings), None, "starting")


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SLURMD_NODENAME", "SLURM_TOPOLOGY_ADDR", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


def test_the_scheduler_names_nodes_and_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n17")
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR", "root.s3.n17")
    topology, _ = compared(local_dir="/scratch/{node}/{rank}")
    assert topology == Topology(("n17",), (0,), ("/scratch/n17/0",), ("root.s3",))


@pytest.mark.parametrize(
    ("usable", "threads", "spare", "waiting"),
    [
        (1, 1, False, 1),
        (2, 1, True, 2),
        (3, 2, True, 3),
        (5, 4, True, 5),
        (17, MOST_ENCODE_THREADS, True, MOST_WAITING_THREADS),
    ],
)
def test_of_the_processors_one_is_left_to_training(
    monkeypatch: pytest.MonkeyPatch, usable: int, threads: int, spare: bool, waiting: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(usable)))
    assert compared()[1] == Processors(threads, spare=spare, waiting=waiting)


def test_threads_as_configured_are_spare_where_there_are_processors_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    assert compared(encode_threads=2)[1] == Processors(2, spare=True, waiting=3)
    assert compared(encode_threads=8)[1] == Processors(8, spare=False, waiting=3)
