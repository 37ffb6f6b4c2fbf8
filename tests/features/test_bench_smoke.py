"""The benchmark runs, measures everything, and notices when a restore brings back other bytes."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mpi import launchers

ROOT = Path(__file__).resolve().parents[2]
BENCH = [sys.executable, str(ROOT / "benchmarks" / "bench.py")]

#: who -> what the result must hold of it.
METRICS = {
    "limits": {
        *("visit_s", "fresh_s", "copy_s", "torch_copy_s", "bare_copy_s", "long_copy_s", "xxh3_s"),
        *("disk_write_s", "tmpfs_write_s", "cache_read_s", "bcast_s"),
    },
    "deeppart": {
        *("blocked_s", "planning_s", "flatten_s", "agree_s", "capture_s", "local_s", "persistent_s"),
        *("first_blocked_s", "first_local_s", "second_blocked_s"),
        *("restore_local_s", "restore_persistent_s", "bytes", "memory_bytes", "mapped_bytes"),
        *("memory_over_share_bytes", "steady_memory_bytes", "restore_persistent_memory_bytes"),
    },
    "torch.save": {"save_s", "load_s", "restore_s", "bytes", "memory_bytes", "restore_memory_bytes"},
    "dcp": {"save_s", "restore_s", "bytes", "memory_bytes", "restore_memory_bytes"},
    "dcp.async_save": {"blocked_s", "done_s", "memory_bytes", "staging_staged_s", "process_blocked_s"},
}


def run(arguments: list[str], timeout: float = 600.0) -> subprocess.CompletedProcess[str]:
    """Run the benchmark as a user would."""
    return subprocess.run([*BENCH, *arguments], capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.now_and_then(8)
@pytest.mark.skipif(launchers.unavailable() is not None, reason=str(launchers.unavailable()))
def test_measures_everything_and_compares_what_it_restores(tmp_path: Path) -> None:
    options = ["--scale", "0.01", "--layers", "2", "--repeat", "1", "--only", ",".join(METRICS)]
    options += ["--disk", str(tmp_path / "disk"), "--tmpfs", str(tmp_path / "local"), "--timeout", "600"]
    options += ["--json", str(tmp_path / "result.json")]
    if importlib.util.find_spec("matplotlib") is not None:
        options += ["--png", str(tmp_path / "result.png")]
    done = run(options)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())

    found: dict[str, set[str]] = {}
    for entry in result["measurements"]:
        found.setdefault(entry["who"], set()).add(entry["metric"])
        assert len(entry["values"]) == 1 and entry["min"] <= entry["median"] <= entry["max"], entry
        assert entry["median"] > 0 or entry["metric"].endswith("bytes"), entry
    assert {who: METRICS[who] - found.get(who, set()) for who in METRICS} == {who: set() for who in METRICS}

    with_target = [entry for entry in result["targets"] if entry["target"] is not None]
    assert len(with_target) == 8
    for entry in with_target:
        assert math.isfinite(entry["measured"]) and entry["met"] in (True, False), entry
    # in the warm-up round and in the other: deeppart twice, torch.load, dcp.load, and dcp.load after four async_saves
    assert result["restores_compared"] == 16
    assert result["state"]["leaves"] == 4 * (5 + 2 * 16 + 2)
    assert {"cpu", "cores", "memory_bytes", "kernel", "file_systems", "versions"} <= set(result["machine"])
    assert {"torch", "mpi", "deeppart"} <= set(result["machine"]["versions"])
    assert os.listdir(tmp_path / "disk") == os.listdir(tmp_path / "local") == []
    assert ("--png" in options) == (tmp_path / "result.png").exists()


SABOTAGE = """
import sys
from mpi4py import MPI
from benchmarks.rig import MalfunctionError, Rig
from benchmarks.settings import Settings

rig = Rig(Settings(1, "bert-large+adam", 0.01, 1, 1, sys.argv[1], sys.argv[1], ()), MPI.COMM_SELF)
rig.next_state()
saved = [leaf.clone() for leaf in rig.workload.leaves]


def restore(flip):
    for leaf, value in zip(rig.workload.leaves, saved, strict=True):
        leaf.copy_(value)
    if flip:
        rig.workload.leaves[7].reshape(-1)[-1] += 1e-3


rig.restored("a good restore", lambda: restore(False))
for name, work in {"one element": lambda: restore(True), "nothing restored": lambda: None}.items():
    try:
        rig.restored(name, work)
    except MalfunctionError as error:
        print(error)
assert rig.restores_compared == 1
"""


@pytest.mark.skipif(launchers.unavailable() is not None, reason=str(launchers.unavailable()))
def test_a_restore_of_other_bytes_is_a_malfunction(
    tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = run_python(SABOTAGE, str(tmp_path), timeout=110, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [line.split(":")[0] for line in said] == ["one element", "nothing restored"]
    assert all("not those saved" in line for line in said)
