"""``capture="lazy"``: which leaves can be copied after ``checkpoint()`` has returned, and their copy.

Those that only an optimizer changes (:mod:`deeppart.state.owners`), of more than ``SMALL_LEAF_BYTES``: small ones are
copied faster than they are looked after. All others are copied before.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from deeppart.errors import LazyCaptureNotice, warn_caller
from deeppart.state.capture import Move
from deeppart.state.deferred import DeferredCopy, Guard
from deeppart.state.fingerprint import SMALL_LEAF_BYTES, Sampler
from deeppart.state.flatten import FlatState, readable
from deeppart.state.layout import ShareLayout
from deeppart.state.leaves import LeafType, lies_flat_on_host
from deeppart.state.owners import owned_tensors

#: A notice is given where more than this much that is large belongs to no optimizer.
NOTICED_BYTES = 64 << 20
#: Leaves on devices of which elements are sampled; each costs a launch.
_SAMPLED_ON_DEVICES = 16


class LazyCapture:
    """Keeps what it knows of a state's leaves from one checkpoint to the next.

    Args:
        timeout: seconds that anyone waits for copies in the hands of another thread.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._large: list[int] = []
        self._sampled: tuple[int, ...] = ()
        self._sampler = Sampler([], [])
        self._noticed = False

    def look_after(self, share: ShareLayout, types: Sequence[LeafType]) -> None:
        """The leaves of a share are those that are captured from now on."""
        leaves = sorted(set(share.segments["leaf"].tolist()))
        self._large = [leaf for leaf in leaves if types[leaf].nbytes > SMALL_LEAF_BYTES]

    def later(self, flat: FlatState, types: Sequence[LeafType]) -> dict[int, torch.Tensor]:
        """The leaves of the share that can wait, with the tensor that an optimizer has of each."""
        owned = owned_tensors(flat, SMALL_LEAF_BYTES)
        found: dict[int, torch.Tensor] = {}
        others: list[int] = []
        for leaf in self._large:
            owner, data = owned.get(flat.pointers[leaf]), flat.data[leaf]
            if (
                owner is not None
                and owner.numel() * owner.element_size() >= types[leaf].nbytes
                and (lies_flat_on_host(data) or _is_on_device(data))
            ):
                found[leaf] = owner
            else:
                others.append(leaf)
        self._notice(flat, types, others)
        return found

    def defer(
        self,
        flat: FlatState,
        later: dict[int, torch.Tensor],
        copies: tuple[list[Move], list[Callable[[], None]]],
        turn: int,
        where: str,
    ) -> DeferredCopy:
        """The copies that are left, to be made in the background.

        Args:
            later: what :meth:`later` returned. copies: what the capture plan left.
            turn: decides which elements are sampled.
            where: for messages.
        """
        guards = [
            Guard(partial(readable, flat.arrays[leaf].path), tensor, tensor._version) for leaf, tensor in later.items()
        ]
        on_devices = [leaf for leaf in later if _is_on_device(flat.data[leaf])]
        sampled = tuple(sorted(set(later) - set(on_devices[_SAMPLED_ON_DEVICES:])))
        if sampled != self._sampled:
            self._sampled, self._sampler = sampled, Sampler(sampled, flat.data)
        data = list(flat.data)  # kept alive, and as it is now
        sample = partial(self._sampler.digest, data, array("q", flat.pointers), turn)
        return DeferredCopy(*copies, guards, sample, where, self._timeout)

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


def _is_on_device(data: Any) -> bool:
    return isinstance(data, torch.Tensor) and data.is_cuda
