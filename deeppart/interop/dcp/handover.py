"""What the ranks of a save tell each other through DCP's own exchanges, and what a rank keeps in between."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

import xxhash
from torch.distributed.checkpoint import SavePlan

from deeppart.interop.dcp.names import Item
from deeppart.pending import Pending

#: The state that a save goes on with once it is staged has one item, whose name begins so.
_MARK = "deeppart staged "
#: Staged states that wait for DCP's own save. Of those that fail before they come to the writer, it is not told.
MOST_STAGED = 8


@dataclass(frozen=True, slots=True)
class Staged:
    """A state that is in staging memory.

    Attributes:
        pending: the save.
        items: what is in it, on this rank.
    """

    pending: Pending
    items: tuple[Item, ...]


class StagedSaves:
    """Those of which DCP's own save is still to come. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._staged: dict[int, Staged] = {}  # guarded by the lock
        self._digest = "", tuple[Item, ...]()  # of the last one that was asked for; nearly always, the next is the same

    def put(self, staged: Staged) -> dict[str, None]:
        """Keep one; returns the state that stands for it."""
        with self._lock:
            number = next(self._numbers)
            self._staged[number] = staged
            for old in sorted(self._staged)[:-MOST_STAGED]:
                del self._staged[old]
        return {f"{_MARK}{number}": None}

    def told(self, name: str) -> Told | None:
        """What is told of the one that an item stands for; None if it was taken."""
        with self._lock:
            staged = self._staged.get(_number(name))
            known, items = self._digest
            if staged is not None and (not known or items != staged.items):
                known, _ = self._digest = digest_of(staged.items), staged.items
        return None if staged is None else Told(name, known)

    def take(self, name: str) -> Staged | None:
        """The one that an item stands for, once. Saves of DCP that are under way together come in any order."""
        with self._lock:
            return self._staged.pop(_number(name), None)


def _number(name: str) -> int:
    return int(name.removeprefix(_MARK))


def mark_among(names: Iterable[object]) -> str | None:
    """The name of an item that stands for a staged state; None if there is none."""
    return next((name for name in names if isinstance(name, str) and name.startswith(_MARK)), None)


@dataclass(frozen=True, slots=True)
class Told:
    """What a rank tells the coordinator with its plan.

    Attributes:
        mark: what stands for its state.
        digest: of the items in that.
    """

    mark: str
    digest: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the coordinator answers.

    Attributes:
        mark: as of :class:`Told`: planners may hand out an answer of an earlier save.
        wants: whether it wants to know what items this rank has: they are others than its own.
    """

    mark: str
    wants: bool


@dataclass(frozen=True, slots=True)
class Wrote:
    """What a rank tells of what it has written.

    Attributes:
        step: of the checkpoint.
        items: what is in it on this rank; None if the coordinator has the same.
    """

    step: int
    items: tuple[Item, ...] | None


def digest_of(items: Iterable[Item]) -> str:
    """Equal for equal items."""
    return str(xxhash.xxh3_128_hexdigest(repr(tuple(items)).encode("utf-8", "backslashreplace")))


def answered(plans: list[SavePlan]) -> list[SavePlan]:
    """The plans of all ranks, with answers to what they told; the first is the coordinator's."""
    first = plans[0].storage_data
    mine = first.digest if isinstance(first, Told) else ""
    found = []
    for rank, plan in enumerate(plans):
        told = plan.storage_data
        if isinstance(told, Told):
            plan = replace(plan, storage_data=Answer(told.mark, rank == 0 or told.digest != mine))
        found.append(plan)
    return found
