"""Many ranks without MPI: what a session sends grows with the logarithm of their number, and so do connections."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.launchers import ROOT, environment

PHASES = "start", "checkpoint", "restore", "close"


@pytest.mark.now_and_then(4)
@pytest.mark.timeout(200)
def test_on_eight_and_on_thirty_two(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.many_ranks", "--ranks", "8,32", "--json", str(tmp_path / "found")]
    done = subprocess.run(
        command, cwd=ROOT, env=environment({}, 180.0), capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {int(ranks): row for ranks, row in json.loads((tmp_path / "found").read_text()).items()}
    for ranks, row in rows.items():
        assert 0 < row["connections"] <= 2 * math.log2(ranks)
    for phase in PHASES:
        # So many collectives, of which each takes as many messages of a rank as the number of ranks has bits.
        few, many = (row[f"{phase}_messages"] / math.log2(ranks) for ranks, row in rows.items())
        assert few == many == int(few), phase
        # By linear growth four times as much, and numbers with more digits.
        assert rows[32][f"{phase}_kb"] <= 5 * rows[8][f"{phase}_kb"], phase
    assert rows[32]["checkpoint_messages"] == 2 * 5, "one reduction, and reports or results of the commit"
