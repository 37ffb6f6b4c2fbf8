"""What one rank does in one life of a job: open, restore, compare, checkpoint, close. Runs under mpirun.

Everything that happens is appended to a file of the rank's own, line by line, so that what is known survives a kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import deeppart
from deeppart.errors import DeeppartError, RestoreError
from tests.faults.campaign import contents, incidents, repeating, stages
from tests.faults.campaign.order import Order
from tests.faults.campaign.records import StorageFault
from tests.faults.campaign.training import Training, refuse
from tests.mpi.patience import patient_barrier
from tests.storage_faults import StorageFaults

#: Which restores of a life there are.
FIRST, FAULTY, AGAIN, EVERY = "first", "faulty", "again", "every"
_IDLE_S = 0.002
_ORPHAN_S = 2.0


class Record:
    """What has happened so far, in a file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()

    def __call__(self, event: str, **fields: Any) -> None:
        """Append one event."""
        with self._lock:
            stamped = {"event": event, **fields, "at": round(time.monotonic(), 3)} if fields else {"event": event}
            os.write(self._file, json.dumps(stamped).encode() + b"\n")

    def close(self) -> None:
        """Nothing more happens."""
        os.close(self._file)


class Rank:
    """One rank in one life.

    Args:
        comm: the job's communicator.
        order: what to do.
        record: takes down what happens.
    """

    def __init__(self, comm: Any, order: Order, record: Record) -> None:
        self.comm, self.order, self.record = comm, order, record
        self.life, self.leaves = order.life, order.scenario.leaves
        self.rank = comm.Get_rank()
        self.live = contents.blank(self.leaves)
        triggers = (incidents.killer(comm, order, record), incidents.incident(self.rank, order, record))
        self._triggers = [each for each in triggers if each]

    def play(self) -> None:
        """The whole life."""
        stages.set_clock(0.0)
        with contextlib.ExitStack() as stack:
            key = f"{self.order.scenario.name} {self.order.number} {self.rank}"
            stack.enter_context(repeating.names_from(key))
            if self.life.compression == "auto":
                stack.enter_context(repeating.encodings_from(key))
            ck = self._open()
            if ck is None:
                return
            self._go_on(ck)

    def _go_on(self, ck: Any) -> None:
        """From the first restore to the end, whichever it is."""
        with ck:
            restored = self._restore_first(ck)
            Training(self, ck).run(restored)
            if self.life.again:
                self._restore(ck, AGAIN)
            if self.life.compares:
                self._compare_all(ck)
            self._count_repairs(ck)
            if not self.life.checkpoints:  # nothing but the restore: what it heals is judged
                self._wait_for_healing(ck)
                self.record("healed", under_way=ck.repairing)
        self.record("closed")

    def armed(self, phase: str, at: int = 0) -> None:
        """This moment has come; something may be waiting for it."""
        for trigger in self._triggers:
            trigger.arm(phase, at)

    @contextlib.contextmanager
    def refusing(self, phase: str) -> Iterator[list[tuple[int, StorageFault, StorageFaults]]]:
        """This rank's storage faults of a phase, not refusing anything yet; afterwards it is recorded what they did."""
        planned = [
            (n, each) for n, each in enumerate(self.life.storage) if (each.phase, each.rank) == (phase, self.rank)
        ]
        with contextlib.ExitStack() as stack:
            roots = [self.order.root_of(each) for _, each in planned]
            watched = [stack.enter_context(StorageFaults(root)) for root in roots]
            active = [(*each, watching) for each, watching in zip(planned, watched, strict=True)]
            try:
                yield active
            finally:
                for number, each, watching in active:
                    met = watching.log[each.number] if watching.refused else None
                    self.record("storage", fault=number, refused=watching.refused, seen=len(watching.log), met=met)
                    watching.clear()

    # --- opening ---

    def _open(self) -> Any:
        """A checkpointer; a second try if storage faults made the first one fail, None if that fails too."""
        self.armed("open")
        os.chdir(self.order.seen_from(self.rank // self.life.node_size))
        config = self.order.config()
        planned = any(each.phase == "open" for each in self.life.storage)
        for phase in ("open", "") if planned else ("",):
            try:
                with self.refusing(phase) as active:
                    for _, each, watching in active:
                        refuse(watching, each)
                    ck = deeppart.Checkpointer(config, comm=self.comm)
            except DeeppartError as error:
                self.record("refused", faulty=bool(phase), type=type(error).__name__, text=str(error)[:2000])
                continue
            lock = json.loads((self.order.persistent / ".deeppart.lock").read_bytes())
            lineage = json.loads((self.order.persistent / "deeppart.json").read_bytes())["lineage"]
            self.record("opened", session=lock["session"], lineage=lineage)
            return ck
        return None

    # --- restoring ---

    def _restore_first(self, ck: Any) -> int | None:
        """What the job goes on from; if storage faults are planned, there is a restore under these before."""
        if any(each.phase == "restore" for each in self.life.storage):
            with self.refusing("restore") as active:
                for _, each, watching in active:
                    refuse(watching, each)
                self._restore(ck, FAULTY)
                self._wait_for_healing(ck)
        self.armed("restore")
        restored = self._restore(ck, FIRST)
        if self.life.alone or self.life.scrub:
            self._wait_for_healing(ck)
        return restored

    def _compare_all(self, ck: Any) -> None:
        """Restore every committed step."""
        committed = sorted(self.order.persistent.glob("step-*/manifest"))
        for step in self.comm.bcast(sorted({int(path.parent.name.split("-")[1]) for path in committed}), root=0):
            self._restore(ck, EVERY, step)

    def _restore(self, ck: Any, which: str, wanted: int | None = None) -> int | None:
        contents.overwrite(self.live, self.leaves, contents.JUNK)
        self.live |= {"step": -1, "life": -1, "world": -1}
        mapped: list[tuple[str, list[Any]]] = []

        def map_leaf(path: str, values: Any, rank: int, world: int) -> Any:
            mapped.append((path, [contents.view(value).copy() for value in values]))
            return values[rank % len(values)]

        self.record("restoring", which=which)
        began = time.monotonic()
        step: int | None = None
        error = ""
        try:
            per_rank = map_leaf if self.life.per_rank == "map" else self.life.per_rank
            step = ck.restore(self.live, wanted, per_rank=per_rank)
        except RestoreError as refusal:
            error = str(refusal)
        wrong = self._untouched() if step is None else self._compare(step, mapped)
        lines = [line[:500] for line in ck.explanation[-12:]] if step is not None else []
        fields = {"step": step, "wanted": wanted, "life": self.live["life"], "lines": lines, "wrong": wrong}
        self.record("restored", which=which, error=error[:3000], seconds=round(time.monotonic() - began, 4), **fields)
        return step

    def _untouched(self) -> dict[str, int]:
        """Bytes of the live state that changed although nothing was restored."""
        junk = {leaf.name: contents.view(self.live[leaf.name]) != contents.JUNK for leaf in self.leaves}
        wrong = {name: int(changed.sum()) for name, changed in junk.items()}
        wrong["step"] = int(self.live["step"] != -1)
        return {name: count for name, count in wrong.items() if count}

    def _compare(self, step: int, mapped: list[tuple[str, list[Any]]]) -> dict[str, int]:
        """Leaf -> bytes that are not those of the step that the state itself says it is."""
        world, seed = self.live["world"], self.order.scenario.name
        when = self.live["life"], step
        wrong = {"step": int(self.live["step"] != step)}
        same_world = world == self.comm.Get_size()
        for leaf in self.leaves:
            expected = contents.leaf_bytes(seed, when, self.rank, leaf)
            if not leaf.shared and world == 1:  # saved by one rank, nothing is its own: all get it
                expected = contents.leaf_bytes(seed, when, 0, leaf)
            elif not leaf.shared and not same_world:
                if self.life.per_rank == "map":
                    expected = contents.leaf_bytes(seed, when, self.rank % max(world, 1), leaf)
                elif self.life.per_rank == "rank0":
                    expected = contents.leaf_bytes(seed, when, 0, leaf)
                else:
                    expected[:] = contents.JUNK
            wrong[leaf.name] = contents.wrong_bytes(self.live[leaf.name], expected)
        by_name = {leaf.name: leaf for leaf in self.leaves}
        for path, values in mapped:
            leaf = by_name[path]
            for rank, value in enumerate(values):
                expected = contents.leaf_bytes(seed, when, rank, leaf)
                wrong[f"{path} of old rank {rank}"] = contents.wrong_bytes(value, expected)
        return {name: count for name, count in wrong.items() if count}

    def _wait_for_healing(self, ck: Any) -> None:
        deadline = time.monotonic() + self.life.timeout_s
        while ck.repairing and time.monotonic() < deadline:
            time.sleep(0.001)

    def _count_repairs(self, ck: Any) -> None:
        if self.life.scrub:
            scrubbed = ck.scrubbed
            self.record("scrubbed", cycles=scrubbed.cycles, damaged=scrubbed.damaged, repaired=scrubbed.repaired)


def _take_down(record: Record, message: Warning | str, category: type[Warning], *place: Any) -> None:
    """What the user would have been told."""
    record("warned", type=category.__name__, text=str(message)[:1000])


def play(comm: Any, order: Order) -> bool:
    """One life as this rank; whatever goes wrong is in the record. Returns whether nothing has."""
    record = Record(order.record_of(comm.Get_rank()))
    mend = stages.break_library(order.broken) if order.broken else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", deeppart.DeeppartWarning)
            warnings.showwarning = partial(_take_down, record)
            Rank(comm, order, record).play()
        return True
    except BaseException as error:
        typed = isinstance(error, DeeppartError)
        record("exception", type=type(error).__name__, typed=typed, text=traceback.format_exc()[-6000:])
        return False
    finally:
        if mend is not None:
            mend()
        record("end")
        record.close()


def play_alone(path: Path) -> None:
    """A job that plays one life, in which processes may end."""
    from mpi4py import MPI

    stages.hasten()
    order = Order.load(path)
    patient_barrier(MPI.COMM_WORLD)  # to start takes seconds, and the library's timeout may be short
    well = play(MPI.COMM_WORLD, order)
    if not well or (order.life.incident is not None and order.life.incident.kind == "zombie"):
        os._exit(1)  # MPI would wait for ranks that are gone


def serve(spool: Path, runner: int) -> None:
    """A job that plays one life after another, each on a communicator of as many of its ranks as it needs.

    Args:
        spool: where orders appear, numbered.
        runner: the process that gives them; without it there is nothing to live for.
    """
    from mpi4py import MPI

    stages.hasten()
    world, number = MPI.COMM_WORLD, 0
    (spool / f"ready-{world.rank}").touch()
    while True:
        path = spool / f"order-{number}.json"
        looked = time.monotonic()
        while not path.exists():
            if time.monotonic() - looked > _ORPHAN_S:
                looked = time.monotonic()
                if not Path(f"/proc/{runner}").exists():
                    return
            time.sleep(_IDLE_S)
        order = Order.load(path)
        if world.rank in order.members:
            group = world.Get_group().Incl(order.members)
            comm = world.Create_group(group, number % 30_000)
            play(comm, order)
            comm.Free()
            group.Free()
        number += 1
