"""A checkpoint of more parts than the soft limit of open files: every reader of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.unit.cli_support import forge

RANKS = 200
READS = """
import resource, sys, warnings
import deeppart
from deeppart.cli import main
from tests.unit.cli_support import invoke, live_for_forged
warnings.simplefilter("ignore")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 1024))
root = sys.argv[1]
assert deeppart.load(root)["a"].tolist() == list(range(900))
assert deeppart.load(root, keys="rng", rank=150)["rng"].tolist() == [150] * 16
assert invoke("verify", root).exit_code == 0
live = live_for_forged()
with deeppart.Checkpointer(persistent_dir=root) as checkpointer:
    assert checkpointer.restore(live, per_rank="rank0") == 2
assert live["a"].tolist() == list(range(900))
"""


def test_with_few_descriptors(tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """And it is the newest step that is restored."""
    forge(tmp_path, 1, ranks=1)
    forge(tmp_path, 2, ranks=RANKS)
    done = run_python(READS, str(tmp_path), timeout=200)
    assert done.returncode == 0, done.stderr
