"""Which rank is on which node, and what this one can encode with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.comm import SingleComm
from deeppart.save import Processors
from deeppart.session.topology import Topology, compare_settings


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
