"""Storage that hangs gives no error: training goes on, and the report says where it hangs."""

from __future__ import annotations

import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.access import hanging
from deeppart.errors import PeerTimeoutError
from tests.storage_faults import StorageFaults
from tests.waiting import wait_until

STATE = {"x": torch.arange(50_000, dtype=torch.float32)}


def checkpointer(tmp_path: Path, **settings: Any) -> deeppart.Checkpointer:
    defaults: dict[str, Any] = {"timeout": 5.0, "compression": "none", "every": {"local": 0, "persistent": 1}}
    defaults["status"] = "none"  # what hangs is to be an operation of the checkpoint
    return deeppart.Checkpointer(persistent_dir=str(tmp_path / "persistent"), **(defaults | settings))


def report_of_hanging(pending: deeppart.Pending, start: str) -> list[str]:
    """Lines that begin so: the report names operations of the whole process, earlier tests' and slow ones too."""
    deadline = time.monotonic() + 20
    while True:
        lines = [line for line in pending.report.hanging if line.startswith(start)]
        if lines or time.monotonic() > deadline:
            return lines
        time.sleep(0.01)


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "rename"])
def test_the_report_says_where_storage_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    monkeypatch.setattr(hanging, "LONG_S", 0.05)
    with checkpointer(tmp_path) as ck, StorageFaults(tmp_path / "persistent") as storage:
        only = ("rename", "rename_noreplace", "link") if operation == "rename" else (operation,)
        storage.hang(0, 60.0, only=only)
        pending = ck.checkpoint(STATE, 1)
        wait_until(lambda: storage.refused == 1)  # another one may be slow
        lines = report_of_hanging(pending, f"{operation} of {tmp_path / 'persistent'}")
        assert lines and all("has not returned for" in line for line in lines)
        with pytest.raises(PeerTimeoutError, match=f"{operation} of {tmp_path}.* has not returned"):
            pending.wait(timeout=0.1)
        storage.clear()
        pending.wait()
        what, _, _ = lines[0].partition(" has not")
        assert not [line for line in pending.report.hanging if line.startswith(what)]


class Untold(StorageFaults):
    """Storage on which every operation is looked at: were it to hang, would a report say so?"""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.untold: set[str] = set()
        self.told = 0

    def _refuses(self, name: str, path: str) -> bool:
        if threading.get_ident() in hanging._under_way:
            self.told += 1
        elif name not in ("fstat", "lseek", "close"):  # of what is open already, and not written to
            self.untold.add(f"{name} of {path}: " + " ".join(each.name for each in traceback.extract_stack()[-9:-2]))
        return False


@pytest.mark.parametrize("incremental", [True, False])
def test_no_operation_could_hang_untold(tmp_path: Path, incremental: bool) -> None:
    levels = {"every": {"local": 1, "persistent": 2}, "keep": {"local": 1, "persistent": 1}}
    settings = {"local_dir": str(tmp_path / "local"), "timeout": 60.0, "incremental": incremental, **levels}
    storage = Untold(tmp_path)
    with storage:
        for first in (1, 7):
            with checkpointer(tmp_path, **settings) as ck:
                ck.restore(dict(STATE))
                for step in range(first, first + 6):
                    ck.checkpoint({**STATE, "step": step}, step).wait("local")
    assert storage.told > 500
    assert not storage.untold, "\n".join(sorted(storage.untold))


def test_training_goes_on_while_storage_hangs(tmp_path: Path) -> None:
    with checkpointer(tmp_path, on_busy="skip") as ck, StorageFaults(tmp_path / "persistent") as storage:
        storage.hang(0, 2.0, only=("fsync",))
        first = ck.checkpoint(STATE, 1)
        skipped, step = False, 2
        while not first.finished:
            skipped = ck.checkpoint(STATE, step).skipped or skipped
            step += 1
            time.sleep(0.02)
        first.wait()
        assert skipped, "a call came back while the first hung"
