"""A job that was overtaken wakes up late: whatever it was about to do, its successor's checkpoints stay as they are.

The first job stops itself (SIGSTOP) at a stage of its third checkpoint. A second one takes the directory over, as it
can where locks do not reach other nodes or the lock file was removed, restores, and commits steps with the same
numbers. Then the first one is woken up, and does all it can.
"""

from __future__ import annotations

import errno
import faulthandler
import fcntl
import multiprocessing
import os
import signal
import threading
import time
import warnings
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.offline.inspect.listing import list_directory
from deeppart.offline.inspect.verifying import choose_steps, verify
from deeppart.part import parse_step_name
from deeppart.storage import LOCK_NAME
from tests.faults.campaign import stages as campaign
from tests.faults.campaign.stages import Stage

#: How long the first job may take for anything.
PATIENCE_S = 120.0

#: Where the first job stops: as it may be killed in a campaign, and where only a directory with two owners matters.
STAGES: dict[str, Stage] = {
    name: stage
    for name, stage in campaign.STAGES.items()
    if name.startswith(("local part", "persistent part", "manifest", "retiring"))
} | {
    "a part: being named": Stage("deeppart.storage.files.rename_new"),
    "a spare taken": Stage("deeppart.storage.spares.Recycled.take", after=True),
    "commit: before the first check": Stage("deeppart.storage.owner.DirectoryOwner.check"),
    "commit: after the first check": Stage("deeppart.storage.owner.DirectoryOwner.check", after=True),
}


def state(step: int) -> dict[str, Any]:
    return {"x": torch.full((300_000,), 2000.0 + step), "step": step}


class Zombie:
    """The first job, in a process of its own, which is forked from one without threads.

    Args:
        root: where both jobs have their directories.
        stage: where it stops.
        locks: whether it finds any.
    """

    def __init__(self, root: Path, stage: str, locks: bool) -> None:
        self._said, self._stacks = root / "said", root / "stacks"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.faults.test_zombies"])
        self._process = context.Process(target=_be_overtaken, args=(root, stage, locks, self._said, self._stacks))
        self._process.start()
        status = Path(f"/proc/{self._process.pid}/stat")
        deadline = time.monotonic() + PATIENCE_S
        while status.read_text().rpartition(")")[2].split()[0] != "T":
            if not self._process.is_alive() or time.monotonic() > deadline:
                stacks = self._stacks.read_text()
                self.close()
                pytest.fail(f"it never came to {stage!r}: {stacks}")
            time.sleep(0.01)

    def wake(self) -> list[str]:
        """Let it do all it can; what it says of its checkpoints."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)
        self._process.join(PATIENCE_S)
        assert self._process.exitcode == 0, self._stacks.read_text()
        return self._said.read_text().splitlines()

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()


def _be_overtaken(root: Path, stage: str, locks: bool, said: Path, stacks: Path) -> None:
    warnings.simplefilter("ignore")
    faulthandler.dump_traceback_later(0.8 * PATIENCE_S, repeat=True, file=stacks.open("w"))
    if not locks:
        fcntl.flock = no_locks
    settings = deeppart.Config(
        persistent_dir=str(root / "persistent"),
        local_dir=str(root / "local"),
        keep={"persistent": 1},
        timeout=30.0,
        compression="none",
    )
    armed = threading.Event()
    checkpointer = deeppart.Checkpointer(settings)
    campaign.hook(STAGES[stage], partial(_stop, armed))
    lines = []
    for step in range(1, 6):
        if step == 3:
            armed.set()
        pending = checkpointer.checkpoint({"x": torch.full((300_000,), 1000.0 + step), "step": step}, step)
        while not pending.finished:
            time.sleep(0.002)
        checkpointer._pipeline.wait_until_idle(30)
        levels = pending.report.levels
        lines.append(f"{step} {levels['local'].state} {levels['persistent'].state} {levels['persistent'].error}")
    checkpointer.close()
    said.write_text("\n".join(line.replace("\n", " ") for line in lines))


def _stop(armed: threading.Event) -> None:
    if armed.is_set():
        armed.clear()
        os.kill(os.getpid(), signal.SIGSTOP)


def files_of(root: Path, session: str) -> dict[Path, tuple[int, bytes]]:
    """Inode and bytes of everything in the directories of a session."""
    found = {}
    for path in root.rglob("*"):
        key = parse_step_name(path.parent.name)
        if key is not None and path.is_file() and key.session == session:
            found[path] = (path.stat().st_ino, path.read_bytes())
    return found


def no_locks(*arguments: Any) -> None:
    raise OSError(errno.ENOLCK, "no locks here")


@pytest.fixture(params=["removed", "none"])
def locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "none":
        monkeypatch.setattr(fcntl, "flock", no_locks)
    return str(request.param)


@pytest.mark.timeout(300)
@pytest.mark.sweep(2)
@pytest.mark.parametrize("stage", STAGES)
def test_a_zombie_touches_nothing_of_its_successor(stage: str, locks: str, memory: Path) -> None:
    settings = deeppart.Config(
        persistent_dir=str(memory / "persistent"),
        local_dir=str(memory / "local"),
        keep={"persistent": 3, "local": 2},
        timeout=30.0,
        compression="none",
    )
    with closing(Zombie(memory, stage, locks != "none")) as job:
        if locks == "removed":
            (memory / "persistent" / LOCK_NAME).unlink()
        with deeppart.Checkpointer(settings) as checkpointer:
            live = state(0)
            first = checkpointer.restore(live)
            assert first in (2, 3) and live["x"].unique().tolist() == [1000.0 + first]
            for step in range(first + 1, 6):
                checkpointer.checkpoint(state(step), step).wait(timeout=200)
            checkpointer._pipeline.wait_until_idle(60)
            session = checkpointer._session.session
            before = files_of(memory, session)
            assert sum(path.name == "manifest" for path in before) == min(3, 5 - first)
            said = job.wake()
            assert not any(line.split()[2] == "done" for line in said if line[0] in "45"), said
            after = files_of(memory, session)
            assert after.keys() == before.keys(), "nothing of it is gone, and nothing came to it"
            assert after == before
            checkpointer.checkpoint(state(6), 6).wait(timeout=200)
    listing = list_directory(memory / "persistent")
    mine = [each for each in listing.steps if each.key.session == session]
    assert mine and {each.state for each in mine} == {"complete"}
    for number in range(first + 2 if first == 3 else 4, 7):
        of_it = [each for each in choose_steps(memory / "persistent", number) if each.key.session == session]
        assert {verify(each).state for each in of_it} == {"sound"}
    newest = deeppart.load(memory / "persistent")
    assert newest["step"] == 6 and torch.equal(newest["x"], state(6)["x"])
    with deeppart.Checkpointer(settings) as checkpointer:
        live = state(0)
        assert checkpointer.restore(live) == 6 and torch.equal(live["x"], state(6)["x"])
