"""Lease, pipeline and levels, driven through random interleavings of their threads, failures included.

A real checkpointer of one rank, with a local and a persistent level. Each write, commit and read-back of its background
threads stops at a gate, and the machine says which of them goes on, or is refused, next; meanwhile it makes further
checkpoints. Against it: staging memory that is written to while it is read, a committed step with other bytes than were
saved, a checkpoint that fails or never ends though nothing was refused, memory or threads that are never given back.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
import threading
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import deeppart
from deeppart.access import storage_error
from deeppart.pending import DONE, FAILED
from deeppart.save import StagingLease, write
from deeppart.save.growing_file import GrowingFile, SourceLostError
from deeppart.storage import DurableFile, PersistentLevel
from tests.sampling import examples
from tests.states import difference

PATIENCE_S = 60.0
#: What has not moved for so long stands at a gate, or has nothing to do.
STILL_S = 0.004


class Gates:
    """Where background threads wait for leave to go on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._verdicts: dict[threading.Thread, int | None] = {}  # those that wait; errno, or 0 to go on
        self._at: dict[threading.Thread, str] = {}  # where they wait
        self._open = False
        self.passed = 0
        self.refused = 0

    def through(self, point: str) -> int:
        """Wait for leave at a point; returns the error to fail with, or 0."""
        thread = threading.current_thread()
        if not thread.name.startswith("deeppart-"):
            return 0
        with self._changed:
            if self._open:
                return 0
            self._verdicts[thread], self._at[thread] = None, point
            self.passed += 1
            assert self._changed.wait_for(lambda: self._open or self._verdicts[thread] is not None, PATIENCE_S)
            verdict = self._verdicts.pop(thread) or 0
            self.refused += bool(verdict)
            return verdict

    def let(self, pick: int, verdict: int, point: str = "") -> bool:
        """Let one of those that wait (at a point) go on, or fail; returns whether there was any."""
        with self._changed:
            waiting = [each for each, given in self._verdicts.items() if given is None and point in self._at[each]]
            waiting.sort(key=lambda thread: thread.name)
            if waiting:
                self._verdicts[waiting[pick % len(waiting)]] = verdict
                self._changed.notify_all()
        self.settle()
        return bool(waiting)

    def settle(self) -> None:
        """Wait until nothing moves."""
        seen = -1
        while seen != (seen := self.passed):
            time.sleep(STILL_S)

    def open(self) -> None:
        """Nobody is stopped any more."""
        with self._changed:
            self._open = True
            self._changed.notify_all()


def gated(gates: Gates, owner: type, name: str, refuse: Callable[[OSError], Exception]) -> Callable[..., Any]:
    function = getattr(owner, name)

    def call(*args: Any, **settings: Any) -> Any:
        if number := gates.through(f"{owner.__name__}.{name}"):
            raise refuse(OSError(number, "refused by the machine"))
        return function(*args, **settings)

    return call


class PipelineMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="deeppart-machine-"))
        self.gates, self.patch = Gates(), pytest.MonkeyPatch()
        self.saved: dict[int, tuple[deeppart.Pending, int]] = {}  # step -> pending, and refusals before it
        self.leases: list[StagingLease] = []
        self.read: list[tuple[Any, int]] = []  # shares that are being read, with the digests of what was there
        self.step = 0
        self.others = set(threading.enumerate())  # of tests before, whose storage hangs for good

    @initialize(lazy=st.booleans(), levels=st.sampled_from([True, True, True, False]))
    def open(self, *, lazy: bool, levels: bool) -> None:
        refuse = lambda error: storage_error("refused", error, self.root)  # noqa: E731
        lost = lambda error: SourceLostError("refused", errno=error.errno)  # noqa: E731
        for owner, name, kind in (
            (DurableFile, "write", refuse),
            (DurableFile, "commit", refuse),
            (PersistentLevel, "commit", refuse),
            (GrowingFile, "read_into", lost),
        ):
            self.patch.setattr(owner, name, gated(self.gates, owner, name, kind))
        self.patch.setattr(write, "RETRY_PAUSES_S", (0.0, 0.0))
        self.patch.setattr(write, "write_part", self.reading(write.write_part))
        self.model = torch.nn.Linear(100, 100)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.ck = deeppart.Checkpointer(
            deeppart.Config(
                persistent_dir=str(self.root / "p"),
                local_dir=str(self.root / "l") if levels else None,
                keep={"persistent": 0},
                on_busy="skip",
                capture="lazy" if lazy else "eager",
                compression="none",
                timeout=PATIENCE_S,
            )
        )

    def reading(self, write_part: Callable[..., Any]) -> Callable[..., Any]:
        """Take down what is being read of the staging memory, and for how long."""

        def call(staged: Any, *args: Any) -> Any:
            entry = (staged, zlib.crc32(staged.data))
            self.read.append(entry)
            try:
                return write_part(staged, *args)
            finally:
                self.read.remove(entry)

        return call

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}

    def train(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, float(self.step + 1))
        self.optimizer.step()

    def let(self, pick: int, verdict: int, point: str = "") -> bool:
        moved = self.gates.let(pick, verdict, point)
        self.memory_is_not_written_to_while_it_is_read()
        return moved

    @rule()
    def checkpoint(self) -> None:
        """Train, save, and train on at once: what was saved is what was there in between."""
        self.step += 1
        torch.manual_seed(self.step)
        self.train()
        torch.save(self.state(), self.root / f"{self.step}.pt")
        refused = self.gates.refused
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", deeppart.DeeppartWarning)
            pending = self.ck.checkpoint(self.state(), self.step)
        self.train()
        if not pending.skipped:
            self.saved[self.step] = pending, refused
            self.leases.append(self.ck._pipeline._lease)
        self.gates.settle()

    @rule(picks=st.lists(st.integers(0, 9), min_size=1, max_size=4))
    def go_on(self, picks: list[int]) -> None:
        """More goes well than is refused, or refusals would hide what goes wrong without them."""
        for pick in picks:
            if not self.let(pick, 0):
                self.checkpoint()

    @rule(pick=st.integers(0, 9), number=st.sampled_from([errno.EIO, errno.ENOSPC]))
    def refuse(self, pick: int, number: int) -> None:
        self.let(pick, number)

    @rule()
    def lose_the_local_part(self) -> None:
        """The flush cannot read it back, and claims the memory if it is still there."""
        if not self.let(0, errno.EIO, "Relay.read_into"):
            self.checkpoint()

    @invariant()
    def memory_is_not_written_to_while_it_is_read(self) -> None:
        assert sum(lease.memory is not None for lease in self.leases) <= 1, "one checkpoint at a time has it"
        assert not (self.read and self.ck._pipeline.staging_is_free), "it is free while it is read"
        assert all(zlib.crc32(staged.data) == digest for staged, digest in self.read)

    @invariant()
    def what_is_committed_is_what_was_saved(self) -> None:
        for step in [step for step, (pending, _) in self.saved.items() if pending.settled("persistent")]:
            pending, refused = self.saved.pop(step)
            state = pending.report.levels["persistent"].state
            assert state in (DONE, FAILED)
            assert state == DONE or self.gates.refused > refused, "it failed though nothing was refused"
            if state == DONE:
                saved = torch.load(self.root / f"{step}.pt", weights_only=False)
                assert difference(saved, deeppart.load(self.root / "p", step=step)) is None

    def teardown(self) -> None:
        try:
            self.gates.open()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", deeppart.DeeppartWarning)
                self.ck.close()
            assert all(pending.finished for pending, _ in self.saved.values()), "it never ended"
            self.what_is_committed_is_what_was_saved()
            assert not self.saved
            assert all(lease.over and lease.memory is None for lease in self.leases) and not self.read
            own = [each.name for each in threading.enumerate() if each not in self.others]
            assert not {"deeppart-store", "deeppart-flush"} & set(own)
        finally:
            self.patch.undo()
            shutil.rmtree(self.root, ignore_errors=True)


TestPipelineMachine = PipelineMachine.TestCase
TestPipelineMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
