"""Sharded tensors on a device: two ranks share it, then one process reads what they have saved."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.launchers import environment
from tests.mpi.torchrun import LIMIT_S, torchrun

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]


def test_shards_on_a_device_come_back(tmp_path: Path) -> None:
    module = ["-m", "tests.sharded.gpu_job"]
    for found in torchrun(2, [*module, "ranks", str(tmp_path)], tmp_path, anew=True):
        assert found == {
            "step eager": 2, "eager": True, "fresh eager": True, "step lazy": 2, "lazy": True, "fresh lazy": True
        }  # fmt: skip
    command = [sys.executable, *module, "alone", str(tmp_path)]
    subprocess.run(command, check=True, env=environment({"RANK": None}, LIMIT_S), timeout=LIMIT_S)
    assert json.loads((tmp_path / "told-0.json").read_text()) == {"eager": True, "lazy": True}
