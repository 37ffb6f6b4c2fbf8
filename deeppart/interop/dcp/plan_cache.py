"""Plans of earlier saves of this process, so that ranks whose plan is the same need not send it again.

DCP's own cache has one place for each class of planners. This one has a place for each state that is saved: what all
ranks together have is known by a hash of all their plans, the *key*. Ranks learn it from the coordinator, so that all
of a process group drop the same entries.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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
        digests: of these.
        finished: what each was told to write.
        metadata: of the checkpoint.
    """

    sent: Sequence[SavePlan]
    digests: Sequence[str]
    finished: Sequence[SavePlan]
    metadata: Metadata
    _by_digest: dict[str, SavePlan] = field(default_factory=dict)

    def plan_of(self, rank: int, digest: str) -> SavePlan | None:
        """The plan with a digest, which a process may have sent as another rank; None if there is none."""
        if rank < len(self.sent) and self.digests[rank] == digest:
            return self.sent[rank]
        if not self._by_digest:
            self._by_digest.update(zip(self.digests, self.sent, strict=True))
        return self._by_digest.get(digest)


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

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._entries.clear()


class OwnPlans:
    """What a rank keeps. Threads may share it.

    What is here, the coordinator knows: of the saves since an entry was used last, those that have not come to their
    end may have displaced it there, as those that have. So each that was begun takes a place, and an entry is out of
    use from the beginning of a save that refers to it until that has succeeded.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, OwnPlan | None] = OrderedDict()  # under the lock; None: out of use
        self._begun = 0  # under the lock

    def begin(self, digest: str) -> tuple[str, dict[str, OwnPlan]]:
        """Begin a save; returns a name for it, and the entries with this digest."""
        with self._lock:
            found = {key: own for key, own in self._entries.items() if own is not None and own.digest == digest}
            self._entries.update(dict.fromkeys(found))
            self._begun += 1
            name = f"begun {self._begun}"
            self._put(name, None)
            return name, found

    def end(self, name: str, found: Mapping[str, OwnPlan], key: str, own: OwnPlan) -> None:
        """A save has succeeded."""
        with self._lock:
            self._entries.pop(name, None)
            self._entries.update((each, known) for each, known in found.items() if each in self._entries)
            self._put(key, own)

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._entries.clear()

    def _put(self, key: str, own: OwnPlan | None) -> None:
        self._entries[key] = own
        self._entries.move_to_end(key)
        while len(self._entries) > CAPACITY:
            self._entries.popitem(last=False)


OWN = OwnPlans()
GLOBAL: _Newest[GlobalPlan] = _Newest()


def recall(plans: Sequence[SavePlan], same_as: Sequence[Sequence[str]], digests: Sequence[str]) -> list[SavePlan]:
    """The plans of all ranks, with those that were not sent again."""
    found: list[SavePlan] = []
    for rank, (plan, keys, digest) in enumerate(zip(plans, same_as, digests, strict=True)):
        entries = (entry for key in keys if (entry := GLOBAL.get(key)) is not None)
        known = next((sent for entry in entries if (sent := entry.plan_of(rank, digest)) is not None), None)
        if keys and known is None:
            raise StateError(
                "a rank refers to a plan that the coordinator of this save does not know",
                expected="a plan of an earlier save with the same coordinator",
                where=f"rank {rank}",
                todo="save again: then all plans are sent whole; for saves with other process groups in turn, "
                "without enable_plan_caching",
            )
        found.append(plan if known is None else known)
    return found
