"""Many ranks without MPI: they meet, and no rank is connected with more than a few."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.launchers import ROOT, environment


@pytest.mark.now_and_then(4)
@pytest.mark.timeout(100)
def test_sixty_four(tmp_path: Path) -> None:
    import json

    command = [sys.executable, "-m", "benchmarks.many_ranks", "--ranks", "64", "--json", str(tmp_path / "found")]
    done = subprocess.run(
        command, cwd=ROOT, env=environment({}, 100.0), capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads((tmp_path / "found").read_text())["64"]
    assert 0 < row["connections"] <= 2 * math.log2(64)
