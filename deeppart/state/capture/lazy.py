"""``capture="lazy"``: which leaves can be copied after ``checkpoint()`` has returned, and their copy.

Those that only an optimizer changes (:mod:`deeppart.state.compare.owners`), of more than ``SMALL_LEAF_BYTES``: small
ones are copied faster than they are looked after. All others are copied before; so is, from then on, a leaf that was
once found changed by somebody else. Each rank decides for the leaves of its own share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from deeppart.errors import LazyCaptureNotice, warn_caller
from deeppart.state.capture.copying import CallCopy, HostCopy
from deeppart.state.capture.deferred import DeferredCopy, Guard
from deeppart.state.capture.layout import ShareLayout
from deeppart.state.compare.owners import OwnedTensors, holds_alone
from deeppart.state.compare.trailing import TrailingSlices
from deeppart.state.memory.held import place_of
from deeppart.state.tree.fingerprint import SMALL_LEAF_BYTES, Sampler
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.leaves import LeafType, lies_flat_on_host
from deeppart.state.tree.paths import Path, readable, some_names

#: A notice is given where more than this much that is large belongs to no optimizer.
NOTICED_BYTES = 64 << 20
#: Leaves on devices of which elements are sampled; each costs a launch.
_SAMPLED_ON_DEVICES = 16


class LazyCapture:
    """Keeps what it knows of a state's leaves from one checkpoint to the next."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._owners = OwnedTensors(SMALL_LEAF_BYTES)
        self._large: list[int] = []
        self._sampled: tuple[int, ...] = ()
        self._sampler = Sampler([], [])
        self._noticed = False
        self._watched: list[DeferredCopy] = []
        self._spoiled: set[Path] = set()
        self._untold: list[Path] = []

    def look_after(self, share: ShareLayout, types: Sequence[LeafType]) -> None:
        """The leaves of a share are those that are captured from now on."""
        leaves = sorted(set(share.spans["leaf"].tolist()))
        self._large = [leaf for leaf in leaves if types[leaf].nbytes > SMALL_LEAF_BYTES]

    def owned(self, flat: FlatState) -> dict[int, torch.Tensor]:
        """Address -> tensor, of the large tensors that only an optimizer changes, as far as is known."""
        self._learn()
        found = self._owners.of(flat)
        for leaf in flat.arrays if self._spoiled else ():
            if leaf.path in self._spoiled:
                found.pop(flat.pointers[leaf.index], None)
        return found

    def later(
        self, flat: FlatState, types: Sequence[LeafType], owned: Mapping[int, torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """The leaves of the share that can wait, with the tensor that an optimizer has of each."""
        self._tell()
        found: dict[int, torch.Tensor] = {}
        others: list[int] = []
        for leaf in self._large:
            owner, data = owned.get(flat.pointers[leaf]), flat.data[leaf]
            if flat.arrays[leaf].path in self._spoiled:
                continue
            alone = holds_alone(owner, types[leaf].nbytes, flat.memory.lengths[leaf])
            if owner is not None and alone and (lies_flat_on_host(data) or _is_on_device(data)):
                found[leaf] = owner
            else:
                others.append(leaf)
        self._notice(flat, types, others)
        return found

    def defer(
        self,
        flat: FlatState,
        later: dict[int, torch.Tensor],
        copies: Sequence[HostCopy | CallCopy],
        turn: int,
        where: str,
        trailing: TrailingSlices | None = None,
    ) -> DeferredCopy:
        """The copies that are left, to be made in the background."""
        counters = self._owners.counters
        guards = {leaf: _guard(flat, leaf, owner, counters.get(flat.pointers[leaf])) for leaf, owner in later.items()}
        on_devices = tuple(leaf for leaf in sorted(later) if _is_on_device(flat.data[leaf]))[:_SAMPLED_ON_DEVICES]
        if on_devices != self._sampled:
            self._sampled, self._sampler = on_devices, Sampler(on_devices, flat.data)
        data = [None] * len(flat.data) if on_devices else []
        for leaf in on_devices:
            data[leaf] = flat.data[leaf].detach()
        sample = partial(self._sampler.digest, data, [0] * len(data), turn)
        deferred = DeferredCopy(copies, guards, sample, turn, where, self._timeout, trailing)
        self._watched.append(deferred)
        return deferred

    def _learn(self) -> None:
        """Take in which leaves earlier captures have found changed."""
        new = {path: None for deferred in self._watched for path in deferred.spoiled if path not in self._spoiled}
        unsteady = {path for deferred in self._watched for path in deferred.unsteady}
        self._watched = [deferred for deferred in self._watched if not deferred.settled]
        self._spoiled |= new.keys() | unsteady
        self._untold += new

    def _tell(self) -> None:
        """Say what is new."""
        new, self._untold = self._untold, []
        if new:
            names = some_names(list(map(readable, new)))
            warn_caller(
                f'capture="lazy": these tensors are written to outside of optimizer.step(), and are copied before '
                f"checkpoint() returns from now on: {names}",
                LazyCaptureNotice,
            )

    def _notice(self, flat: FlatState, types: Sequence[LeafType], others: list[int]) -> None:
        nbytes = sum(types[leaf].nbytes for leaf in others)
        if nbytes <= NOTICED_BYTES or self._noticed:
            return
        self._noticed = True
        names = ", ".join(readable(flat.arrays[leaf].path) for leaf in others[:4])
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        warn_caller(
            f'capture="lazy": {nbytes / 1e6:.0f} MB are copied before checkpoint() returns, because no torch optimizer '
            f"is known to own them: {names}{more}. An optimizer is known if it is in the state as an object, or has "
            "made a step since the Checkpointer was made",
            LazyCaptureNotice,
        )


def _guard(flat: FlatState, leaf: int, owner: torch.Tensor, counter: torch.Tensor | None) -> Guard:
    """An object that holds a leaf's memory, and notices writes to it."""
    data, memory = flat.data[leaf], flat.memory
    is_other = isinstance(data, torch.Tensor) and data is not owner
    alias = data.detach() if is_other else owner.detach()
    holders, places = [memory.holders[leaf]], [(memory.bases[leaf], memory.lengths[leaf])]
    if not isinstance(holders[0], torch.UntypedStorage):  # an array over the memory of the optimizer's tensor
        holders.append(alias.untyped_storage())
        places.append(place_of(holders[1]))
    other = owner.detach() if is_other else None
    return Guard(
        flat.arrays[leaf].path,
        alias,
        alias._version,
        tuple(holders),
        tuple(places),
        other,
        0 if other is None else owner._version,
        counter,
        0 if counter is None else counter._version,
    )


def _is_on_device(data: Any) -> bool:
    return isinstance(data, torch.Tensor) and data.is_cuda
