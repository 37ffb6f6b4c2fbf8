"""Plans of earlier saves of this process, so that ranks whose plan is the same need not send it again.

DCP's own cache has one place for each class of planners. This one has a place for each state that is saved: what all
ranks together have is known by a hash of all their plans, the *key*. Ranks learn it from the coordinator, so that all
of a process group drop the same entries.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from deeppart.errors import StateError

#: States whose plans are kept.
CAPACITY = 8

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class OwnPlan:
    """What a rank keeps.

    Attributes:
        digest: of the plan that it made itself.
        items: what it was then told to write.
    """

    digest: str
    items: list[WriteItem]


@dataclass(frozen=True, slots=True)
class GlobalPlan:
    """What a coordinator keeps.

    Attributes:
        sent: the plans that the ranks made.
        finished: what each was told to write.
        metadata: of the checkpoint.
    """

    sent: Sequence[SavePlan]
    finished: Sequence[SavePlan]
    metadata: Metadata


class _Newest(Generic[V]):
    """The entries that were used last. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, V] = OrderedDict()  # under the lock

    def get(self, key: str) -> V | None:
        with self._lock:
            return self._entries.get(key)

    def put(self, key: str, value: V) -> None:
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > CAPACITY:
                self._entries.popitem(last=False)

    def items(self) -> list[tuple[str, V]]:
        with self._lock:
            return list(self._entries.items())

    def remove(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self._entries.pop(key, None)


OWN: _Newest[OwnPlan] = _Newest()
GLOBAL: _Newest[GlobalPlan] = _Newest()


def recall(plans: Sequence[SavePlan], same_as: Sequence[Sequence[str]]) -> list[SavePlan]:
    """The plans of all ranks, with those that were not sent again.

    Args:
        plans: as they came.
        same_as: of each rank, the keys under which what it has not sent is known; () of one that has sent it.

    Raises:
        StateError: what a rank refers to is not known here.
    """
    found: list[SavePlan] = []
    for rank, (plan, keys) in enumerate(zip(plans, same_as, strict=True)):
        known: list[Any] = [entry for key in keys if (entry := GLOBAL.get(key)) is not None and rank < len(entry.sent)]
        if keys and not known:
            raise StateError(
                "a rank refers to a plan that the coordinator of this save does not know",
                expected="a plan of an earlier save with the same coordinator",
                where=f"rank {rank}",
                todo="save again: then all plans are sent whole; for saves with other process groups in turn, "
                "without enable_plan_caching",
            )
        found.append(known[0].sent[rank] if keys else plan)
    return found
