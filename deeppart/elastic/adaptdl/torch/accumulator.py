"""Sums over all replicas that survive restarts, as AdaptDL has them."""

from __future__ import annotations

import collections
import contextlib
import copy
import pickle
from collections.abc import Iterator
from typing import Any, BinaryIO, ClassVar

from deeppart.elastic.sums import Sums

from ..checkpoint import State, load_state
from ..collective import allreduce
from ..errors import UsageError
from .data import current_dataloader
from .epoch import current_epoch, finished_epochs


class Accumulator(Sums):
    """A dict of sums. Outside of :meth:`synchronized` each replica only adds, and reading finds an empty dict.

    Values are whatever can be added up. Accumulators are made in the same order on every replica, and not within a loop
    over a data loader. A block that was over before a restart finds the same values again.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._blocks_begun: collections.Counter[int | None] = collections.Counter()
        self._state = _AccumulatorState(*args, **kwargs)
        load_state(self._state)

    @contextlib.contextmanager
    def synchronized(self) -> Iterator[Accumulator]:
        """A block in which every replica has the same sums (collective), to be read and changed in the same way."""
        if self._open is not None:
            yield self
            return
        epoch, state = current_epoch(), self._state
        for past in [each for each in state.blocks if each is not None and epoch is not None and each < epoch]:
            del state.blocks[past]
        number = self._blocks_begun[epoch]
        self._blocks_begun[epoch] += 1
        blocks = state.blocks.setdefault(epoch, [])
        if number < len(blocks):
            self._open = blocks[number]
            state.updates.clear()
        else:
            state.sync()
            if current_dataloader() is None:  # a loop over data is not gone through again
                blocks.append(copy.deepcopy(state.results))
            self._open = state.results
        try:
            yield self
        finally:
            self._open = None

    def _addend(self, key: Any) -> _Value:
        return _Value(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Within :meth:`synchronized`; outside of it, the last part of ``sums[key] += value``."""
        if self._open is not None:
            self._open[key] = value
            return
        if not isinstance(value, _Value):
            raise TypeError(f"outside of synchronized() a sum can only be added to: sums[{key!r}] += value")
        if value.owner is not self or value.key != key:
            raise UsageError("a sum is given to another one", found=f"sum {value.key!r}", where=f"sum {key!r}")
        updates = self._state.updates
        updates[key] = updates[key] + value.added if key in updates else value.added

    def __repr__(self) -> str:
        """As of a dict."""
        return repr({} if self._open is None else self._open)


class _Value:
    """What ``sums[key]`` is while something is added to it."""

    __slots__ = ("added", "key", "owner")

    def __init__(self, owner: Accumulator, key: Any) -> None:
        self.owner, self.key, self.added = owner, key, 0

    def __add__(self, value: Any) -> _Value:
        if isinstance(value, _Value):
            raise TypeError("a sum is added to another one outside of synchronized()")
        self.added = self.added + value
        return self

    def __sub__(self, value: Any) -> _Value:
        if isinstance(value, _Value):
            raise TypeError("a sum is taken from another one outside of synchronized()")
        self.added = self.added - value
        return self


class _AccumulatorState(State):
    """The sums, what each block found, and what this replica has added since."""

    #: Epoch -> accumulators that were made in it: they are named by their order.
    made: ClassVar[collections.Counter[int | None]] = collections.Counter()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if current_dataloader() is not None:
            raise UsageError("an accumulator is made within a loop over a data loader", todo="make it before the loop")
        self.epoch = current_epoch()
        super().__init__(f"adaptdl-accumulator-epoch{self.epoch}-{self.made[self.epoch]}")
        self.made[self.epoch] += 1
        self.blocks: dict[int | None, list[dict[Any, Any]]] = {}
        self.results: dict[Any, Any] = dict(*args, **kwargs)
        self.updates: dict[Any, Any] = {}

    def save(self, fileobj: BinaryIO) -> None:
        pickle.dump((self.blocks, self.results), fileobj)

    def load(self, fileobj: BinaryIO) -> None:
        self.blocks, self.results = pickle.load(fileobj)

    def outdated(self) -> bool:
        return self.epoch is not None and self.epoch < finished_epochs()

    def sync(self) -> None:
        _add(self.results, allreduce(self.updates, _add))
        self.updates.clear()


def _add(sums: dict[Any, Any], added: dict[Any, Any]) -> dict[Any, Any]:
    for key, value in added.items():
        sums[key] = sums[key] + value if key in sums else value
    return sums
