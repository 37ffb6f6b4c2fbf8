"""How much memory a restore takes beside the live state: what cannot be used in place is read when it is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

import deeppart

STATE_BYTES, MOST_BYTES = 160 << 20, 64 << 20
RESTORE = """
import sys
import torch

import deeppart


def status(name):
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))

live = {str(n): torch.ones(int(sys.argv[2])) for n in range(8)}
small = {"0": torch.zeros(1)}
with deeppart.Checkpointer(persistent_dir=sys.argv[1] + "/warm") as warming:  # what is imported and allocated once
    warming.checkpoint(small, 1).wait()
    warming.restore(small)
with deeppart.Checkpointer(persistent_dir=sys.argv[1] + "/large") as checkpointer:
    before = status("VmRSS")
    checkpointer.restore(live)
    print(status("VmHWM") - before)
assert all(bool((tensor == torch.arange(tensor.numel())).all()) for tensor in live.values())
"""


def test_a_restore_does_not_hold_what_it_has_to_read(tmp_path: Path) -> None:
    numel = STATE_BYTES // 4 // 8
    state = {str(n): torch.arange(numel, dtype=torch.float32) for n in range(8)}
    with deeppart.Checkpointer(persistent_dir=str(tmp_path / "large"), compression="zstd:1") as checkpointer:
        checkpointer.checkpoint(state, 1).wait()
    found = subprocess.run(
        [sys.executable, "-c", RESTORE, str(tmp_path), str(numel)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "MALLOC_TRIM_THRESHOLD_": "1000000"},
    )
    assert int(found.stdout) < MOST_BYTES
