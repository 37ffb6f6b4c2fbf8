"""The checkpoints of one life, as one rank takes them, with storage that fails meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import posix  # these faults are not to be refused by StorageFaults, which replaces functions of os
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from deeppart.errors import CheckpointError, LevelNotRunError, StepExistsError
from tests.faults.campaign import contents, stages
from tests.faults.campaign.records import HANG, RunningFault, StorageFault
from tests.storage_faults import StorageFaults

if TYPE_CHECKING:
    from tests.faults.campaign.life import Rank

#: A checkpoint that is not over by then hangs.
PATIENCE_S = 40.0
#: A kill that is to come after the last checkpoint has this long.
_GRACE_S = 0.15
#: A rank that was left behind has this long for what it was about to do, when it is woken.
_AWAKE_S = 0.3
_FINAL = ("done", "failed", "skipped")


class Training:
    """The training loop of one life.

    Args:
        rank: who trains.
        ck: the checkpointer.
    """

    def __init__(self, rank: Rank, ck: Any) -> None:
        self._rank, self._ck = rank, ck
        self._told: list[str] = []
        self._pending: list[tuple[int, Any, set[str]]] = []
        self._first = rank.rank % rank.life.node_size == 0
        live = rank.live
        tensors = [live[leaf.name] for leaf in rank.leaves if isinstance(live[leaf.name], torch.Tensor)]
        self._optimizer = torch.optim.SGD(tensors) if tensors and rank.life.capture == "lazy" else None
        self._step()

    def run(self, restored: int | None) -> None:
        """All checkpoints."""
        life, record = self._rank.life, self._rank.record
        step = restored if life.reuse and restored is not None else self._rank.order.next_step - 1
        with self._rank.refusing("checkpoint") as active:
            if life.prepares:
                self._ck.prepare(self._rank.live)
            for at in range(life.checkpoints):
                self._go_wrong(at)
                for _, fault, watching in active:
                    if fault.at == at:
                        refuse(watching, fault)
                self._rank.armed("checkpoint", at)
                step = self._checkpoint(step + 1)
                self._look()
                if life.wait:
                    self._settle()
            self._settle()
            self._go_wrong(life.checkpoints)
            if life.alone:
                time.sleep(_GRACE_S)
        record("trained", failures=self._ck.failures)

    def _checkpoint(self, step: int) -> int:
        """Save the next step that is free; returns which one that was."""
        rank, size = self._rank, self._rank.comm.Get_size()
        order, live, leaves = rank.order, rank.live, rank.leaves
        while True:
            contents.fill(live, order.scenario.name, (order.number, step), rank.rank, size, leaves)
            rank.record("started", step=step)
            began = time.monotonic()
            try:
                pending = self._ck.checkpoint(live, step)
                break
            except StepExistsError:
                rank.record("exists", step=step)
                step += 1
            except CheckpointError as error:
                if not self._may_be_busy:
                    raise
                rank.record("busy", step=step, seconds=time.monotonic() - began, text=str(error)[:2000])
                return step
        due = {level for level, report in pending.report.levels.items() if report.state != "off"}
        rank.record("returned", step=step, due=sorted(due), seconds=round(time.monotonic() - began, 4))
        self._step()
        contents.overwrite(live, leaves, contents.SCRIBBLE)  # the state may change from here on
        live |= {"step": -2}
        self._pending.append((step, pending, due))
        return step

    @property
    def _may_be_busy(self) -> bool:
        """Whether storage hangs in this life, for longer than room is waited for."""
        return any(fault.error == HANG for fault in self._rank.life.storage)

    def _step(self) -> None:
        """What makes the tensors an optimizer's, for a lazy capture, and waits for it. Without gradients, no more."""
        if self._optimizer is not None:
            self._optimizer.step()

    def _look(self) -> bool:
        """Record what has been settled since the last look; whether all is."""
        for step, pending, due in self._pending:
            lines = [line for line in pending.report.hanging if line not in self._told] if self._may_be_busy else []
            if lines and not self._told:
                self._told += lines
                self._rank.record("hanging", step=step, lines=lines)
            for level in sorted(due):
                report = pending.report.levels[level]
                if report.state in _FINAL:
                    due.discard(level)
                    error = (report.error or "")[:1500]
                    self._rank.record("level", step=step, level=level, state=report.state, error=error)
                    self._check_wait(step, pending, level, report.state)
        self._pending = [each for each in self._pending if each[2]]
        return not self._pending

    def _check_wait(self, step: int, pending: Any, level: str, state: str) -> None:
        """``wait`` tells the same as the report."""
        told = "done"
        try:
            pending.wait(level, timeout=1.0)
        except LevelNotRunError:
            told = "skipped"
        except CheckpointError:
            told = "failed"
        if told != state:
            self._rank.record("problem", text=f"step {step}, {level}: the report says {state}, wait() {told}")

    def _settle(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self._look():
            if time.monotonic() > deadline:
                levels = [(step, sorted(due)) for step, _, due in self._pending]
                raise TimeoutError(f"not settled after {PATIENCE_S:g} s: {levels}")
            time.sleep(0.0005)

    def _go_wrong(self, at: int) -> None:
        """What happens to storage in the middle of things, or is mended again."""
        rank = self._rank
        for number, fault in enumerate(rank.life.running):
            if fault.at == at:
                self._harm(number, fault)
            elif fault.kind == "away" and fault.until == at:
                self._settle()
                rank.comm.Barrier()
                if rank.rank == 0:
                    self._come_back()
            else:
                continue
            rank.comm.Barrier()

    def _harm(self, number: int, fault: RunningFault) -> None:
        rank, order = self._rank, self._rank.order
        if fault.kind == "clock":
            stages.set_clock(fault.seconds)
        if fault.kind == "node":
            if not self._first or rank.rank // rank.life.node_size != fault.node:
                return
            _remove_tree(order.node(fault.node), order.base / f"trash-{number}")
        elif rank.rank != 0:
            return
        elif fault.kind == "lock":
            posix.unlink(order.persistent / ".deeppart.lock")
        elif fault.kind == "away":
            posix.rename(order.persistent, order.away)
        elif fault.kind == "wake":
            self._wake(number)
            return
        rank.record("running", fault=number)

    def _wake(self, number: int) -> None:
        """Ranks of earlier lives go on."""
        for pid in self._rank.order.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            self._rank.record("running", fault=number)
        time.sleep(_AWAKE_S)

    def _come_back(self) -> None:
        order = self._rank.order
        if order.persistent.exists():
            found = [str(path.relative_to(order.base)) for path in order.persistent.rglob("*")]
            self._rank.record("problem", text=f"something was put where persistent_dir had been: {found or 'itself'}")
            _remove_tree(order.persistent, order.base / "trash")
        posix.rename(order.away, order.persistent)


def refuse(watching: StorageFaults, fault: StorageFault) -> None:
    """Begin to refuse what a fault says."""
    if fault.error == HANG:
        watching.hang(fault.number, fault.seconds, count=None if fault.lasting else 1, only=fault.only)
        return
    watching.refuse(fault.number, getattr(errno, fault.error), count=None if fault.lasting else 1, only=fault.only)


def _remove_tree(path: Path, trash: Path) -> None:
    """Remove a directory into which others may be writing, all at once. StorageFaults sees neither path."""
    posix.rename(path, trash)
    shutil.rmtree(trash, ignore_errors=True)
