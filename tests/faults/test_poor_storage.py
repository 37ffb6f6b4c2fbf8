"""Real file systems that lack something: inodes, links, locks, O_DIRECT, an answer."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import BackgroundFailureWarning, CheckpointError
from tests.waiting import wait_until

Mount = Callable[..., Path]
pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.fixture
def poor(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A FUSE file system without links, locks and O_DIRECT, and the file that names an operation which hangs."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse is missing or closed")
    try:
        module = importlib.import_module("tests.faults.poor_file_system")
    except (ImportError, OSError) as error:  # OSError: there is no libfuse
        pytest.skip(f"mfusepy cannot be used: {error}")
    source, directory, control = tmp_path / "source", tmp_path / "poor", tmp_path / "control"
    source.mkdir(), directory.mkdir()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(
                module.mounted(module.__name__, *map(str, (source, directory, control)), directory=directory)
            )
        except OSError as error:
            pytest.skip(str(error))
        stack.callback(control.unlink, missing_ok=True)
        yield directory, control


def state(step: int) -> dict[str, Any]:
    return {"still": torch.arange(60_000), "fresh": torch.full((20_000,), float(step)), "step": step}


def config(persistent: Path, local: Path | None = None, **settings: Any) -> deeppart.Config:
    defaults: dict[str, Any] = {"timeout": 30.0, "compression": "none", "keep": {"local": 1, "persistent": 2}}
    return deeppart.Config(
        persistent_dir=str(persistent), local_dir=None if local is None else str(local), **(defaults | settings)
    )


def save(ck: deeppart.Checkpointer, step: int) -> dict[str, str]:
    """Level -> its state, when all is over; warnings about earlier failures are expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BackgroundFailureWarning)
        pending = ck.checkpoint(state(step), step)
    wait_until(lambda: pending.finished, 60)
    pending.failures()
    return {level: report.state for level, report in pending.report.levels.items() if report.state != "off"}


def restored(settings: deeppart.Config) -> int | None:
    """The step that comes back, every byte compared."""
    live: dict[str, Any] = {"still": torch.zeros(60_000, dtype=torch.int64), "fresh": torch.zeros(20_000), "step": -1}
    with deeppart.Checkpointer(settings) as ck:
        step = ck.restore(live)
    if step is not None:
        assert live["step"] == step
        assert torch.equal(live["still"], state(step)["still"]) and torch.equal(live["fresh"], state(step)["fresh"])
    return step


@pytest.mark.sweep(2, kinds=("level",))
@pytest.mark.parametrize("level", ["local", "persistent"])
@pytest.mark.parametrize("inodes", range(6, 16))
def test_no_inodes_left(mount: Mount, tmp_path: Path, level: str, inodes: int) -> None:
    """At whichever file they run out: the last good checkpoint stays, and it goes on when there are some again."""
    small = mount("small", f"size=64m,mode=755,nr_inodes={inodes + 20}")
    persistent, local = (small, tmp_path / "n") if level == "persistent" else (tmp_path / "p", small)
    settings = config(persistent, local, status="none")  # for which there would be no inode, on a slow machine
    with deeppart.Checkpointer(settings) as ck:
        assert save(ck, 1) == {"local": "done", "persistent": "done"}
        fillers = 0
        free = os.statvfs(small).f_ffree - (inodes - 6)
        for fillers in range(max(0, free)):
            (small / f"filler-{fillers}").touch()
        outcomes = [save(ck, step)[level] for step in (2, 3)]
        assert set(outcomes) <= {"done", "failed"}
        for filler in small.glob("filler-*"):
            filler.unlink()
        assert save(ck, 4) == {"local": "done", "persistent": "done"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BackgroundFailureWarning)
            ck.close()
    assert restored(settings) == 4


def test_a_file_system_of_dos(mount: Mount, tmp_path: Path) -> None:
    """No links, no permissions, time in steps of two seconds."""
    root = mount("dos", "rw", kind="vfat")
    settings = config(root / "p", root / "n")
    with deeppart.Checkpointer(settings) as ck:
        for step in (1, 2, 3):
            assert save(ck, step) == {"local": "done", "persistent": "done"}
    assert restored(settings) == 3


def test_no_links_no_locks_no_direct_writes(poor: tuple[Path, Path]) -> None:
    root, _ = poor
    with pytest.raises(OSError, match=r"Operation not permitted|not supported"):
        (root / "a").touch()
        os.link(root / "a", root / "b")
    settings = config(root / "p", root / "n")
    with deeppart.Checkpointer(settings) as ck:
        for step in (1, 2, 3):
            assert save(ck, step) == {"local": "done", "persistent": "done"}
    assert restored(settings) == 3
    with deeppart.Checkpointer(settings) as ck:
        assert save(ck, 4) == {"local": "done", "persistent": "done"}
    assert restored(settings) == 4


@pytest.mark.sweep(2)
@pytest.mark.parametrize("operation", ["fsync", "write", "rename", "open"])
def test_a_kernel_that_does_not_answer(poor: tuple[Path, Path], tmp_path: Path, operation: str) -> None:
    """The call hangs below Python: training goes on, the report says where, and the job can close."""
    root, control = poor
    settings = config(root / "p", timeout=3.0, on_busy="skip", every={"local": 0, "persistent": 1})
    ck = deeppart.Checkpointer(settings)
    assert save(ck, 1) == {"persistent": "done"}
    control.write_text(operation)
    pending = ck.checkpoint(state(2), 2)
    began, skipped = time.monotonic(), 0
    while not (skipped and any(str(root) in line for line in pending.report.hanging)):
        assert time.monotonic() - began < 60.0, pending.report
        skipped += ck.checkpoint(state(3), 3 + skipped).skipped
        time.sleep(0.05)
    with pytest.raises(CheckpointError, match="has not returned"):
        ck.close()
    control.unlink()
    wait_until(lambda: pending.finished, 60)  # what hung goes on: nothing of it may be in anybody's way
    assert restored(config(root / "p", every={"local": 0, "persistent": 1})) in (1, 2)


_JOB = """
import sys, torch, deeppart
from pathlib import Path
from tests.storage_faults import StorageFaults
root = Path(sys.argv[1])
ck = deeppart.Checkpointer(persistent_dir=str(root / "p"), timeout=1.0, every={"local": 0, "persistent": 1})
storage = StorageFaults(root / "p").__enter__()
storage.hang(0, 600.0, only=("fsync",))
ck.checkpoint({"x": torch.zeros(1000)}, 1)
try:
    ck.close()
except deeppart.errors.CheckpointError as error:
    print("fsync of" in str(error) and "has not returned" in str(error), flush=True)
"""


def test_no_thread_of_the_library_keeps_a_process_from_ending(
    tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Nor `close()` from returning, which says what hangs.

    What the kernel does with a thread that hangs in it is the kernel's: in FUSE it waits for the answer.
    """
    job = run_python(_JOB, str(tmp_path), timeout=100)
    assert (job.returncode, job.stdout) == (0, "True\n"), job.stderr
