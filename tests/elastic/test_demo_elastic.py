"""``deeppart run`` with 2, 4, 1 and 3 ranks, a kill among the changes: the example's own checks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.launchers import ROOT, environment

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("torchrun")]


@pytest.mark.now_and_then(2)
def test_a_training_whose_size_changes_by_a_file_and_a_kill(tmp_path: Path) -> None:
    demo = [sys.executable, str(ROOT / "examples" / "demo_elastic.py"), "--quick"]
    env = environment({}, 250.0)
    done = subprocess.run(demo, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=250)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "every sample once in each epoch, and the same losses" in done.stdout, said
    for line in ("change: ranks 4", "killed by SIGKILL", "started: epoch 3, ranks 1", "change: ranks 3"):
        assert line in said
