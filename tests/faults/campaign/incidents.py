"""What happens to the process of a rank when its moment has come: it is killed, stopped or signalled."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from tests.faults.campaign import stages
from tests.faults.campaign.files import index_offset, stamp_of
from tests.faults.campaign.records import Incident, Kill

if TYPE_CHECKING:
    from tests.faults.campaign.life import Record
    from tests.faults.campaign.order import Order


class Trigger:
    """Strikes once, when its moment has come.

    Args:
        moment: when.
        strike: does it; called in whichever thread comes by.
    """

    def __init__(self, moment: Kill | Incident, strike: Callable[[], None]) -> None:
        self._moment, self._strike = moment, strike
        self._lock = threading.Lock()
        self._armed, self._count = False, 0
        if moment.stage:
            stages.hook((stages.STAGES | stages.CHANGES)[moment.stage], self._reached)

    def arm(self, phase: str, at: int) -> None:
        """A phase begins; of checkpoints, number ``at``."""
        if phase != self._moment.phase or (phase == "checkpoint" and at != self._moment.at):
            return
        self._armed = True
        if not self._moment.stage:
            threading.Thread(target=self._later, daemon=True).start()

    def _later(self) -> None:
        time.sleep(self._moment.delay_s)
        self._strike()

    def _reached(self) -> None:
        with self._lock:
            self._count += self._armed
            struck = self._armed and self._count == self._moment.count
        if struck:
            self._strike()


def killer(comm: Any, order: Order, record: Record) -> Trigger | None:
    """Ends processes of this life with SIGKILL, if this rank is the one that decides when (collective)."""
    kill = order.life.kill
    if kill is None:
        return None
    pids = comm.allgather(os.getpid())
    rank, victim, size = comm.Get_rank(), kill.victim, order.life.node_size
    doomed = {
        "rank": [victim],
        "node": [each for each in range(len(pids)) if each // size == victim // size],
        "all": list(range(len(pids))),
    }[kill.scope]
    others = [pids[each] for each in doomed if each != victim]

    def strike() -> None:
        record("killing")
        for pid in (*others, os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    return Trigger(kill, strike) if rank == victim else None


def incident(rank: int, order: Order, record: Record) -> Trigger | None:
    """What happens to this rank, if it is the victim."""
    what = order.life.incident
    if what is None or what.victim != rank:
        return None
    if what.kind == "change":
        return Trigger(what, _change(rank, order, record))
    return Trigger(what, {"stop": _stop, "zombie": _stop}.get(what.kind, _signal)(what, record))


def _stop(what: Incident, record: Record) -> Callable[[], None]:
    if what.kind == "zombie" and os.getpid() != os.getsid(0):
        os.setsid()  # or the kernel lets it go on when the processes beside it have ended

    def strike() -> None:
        record("stopping", pid=os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)
        record("going on")

    return strike


def _change(rank: int, order: Order, record: Record) -> Callable[[], None]:
    """A byte of a part that this rank's node has changes, after the header and before the index."""
    node = order.base / "nodes" / f"node{rank // order.life.node_size}"

    def strike() -> None:
        parts = sorted(node.glob("*/step-*/part-*.dpp"), key=lambda path: (path.parent.name, path.name))
        if not parts:
            return
        content = parts[-1].read_bytes()
        place = (4096 + index_offset(content)) // 2
        with parts[-1].open("r+b") as file:
            file.seek(place)
            file.write(bytes([content[place] ^ 0x10]))
        record("changing", path=str(parts[-1]), stamp=stamp_of(parts[-1]))

    return strike


def _signal(what: Incident, record: Record) -> Callable[[], None]:
    name, _, raised = what.kind.partition(" ")
    number = signal.Signals[name]
    signal.signal(number, _raise if raised else signal.SIG_DFL)

    def strike() -> None:
        record("signalled" if raised else "killing", signal=name)
        os.kill(os.getpid(), number)

    return strike


def _raise(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
