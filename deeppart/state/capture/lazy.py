"""``capture="lazy"``: copies that a thread of the pipeline makes after ``checkpoint()`` has returned.

Only leaves that only an optimizer changes (:class:`~deeppart.state.compare.OwnedTensors`) and that are larger than
``SMALL_LEAF_BYTES`` are deferred; smaller ones are faster to copy than to guard. All others are copied within the call;
so is, from then on, a leaf that was found changed by other code. Each rank decides for the leaves of its share. A
thread that needs the copies, such as one that calls ``optimizer.step()``, takes part until they are done.

The storage of every deferred leaf is held, and an alias of the tensor that shares its version counter. After the copy
it is checked that nothing has been written to the leaf:

- The storage has the same memory: it can be given other memory (``resize_``, ``share_memory_``).
- torch's version counter has not advanced; checked again before the first level is complete, since an operation counts
  when it ends.
- Some bytes of each piece, read before the copy, are in the copy: fused kernels and writes through ``.data`` are not
  counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from deeppart.errors import CheckpointError, LazyCaptureNotice, warn_caller
from deeppart.state.capture.copying import CallCopy, HostCopy
from deeppart.state.capture.layout import ShareLayout
from deeppart.state.compare import DeferredSlices, OwnedTensors, holds_alone
from deeppart.state.fingerprint import SMALL_LEAF_BYTES, fraction, sample_digest
from deeppart.state.memory import Holder, copy_memory, gather_memory, place_of, without_memory
from deeppart.state.paths import Path, readable, some_names
from deeppart.state.tensors import LeafType, lies_flat_on_host
from deeppart.state.tree import FlatState

#: A warning is given if more than this many large bytes belong to no optimizer.
NOTICED_BYTES = 64 << 20
#: Leaves on devices from which elements are sampled, at most; each costs a launch.
_SAMPLED_ON_DEVICES = 16
#: Copies on the host are made in pieces of this size, so that two threads can share the work.
PIECE_BYTES = 8 << 20
#: Bytes of each piece that are read before it is copied: positions, and bytes at each.
_SAMPLED_PLACES, _SAMPLED_BYTES = 4, 16


class LazyCapture:
    """Keeps what is known of a state's leaves from one checkpoint to the next."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._owners = OwnedTensors(SMALL_LEAF_BYTES)
        self._large: list[int] = []
        self._noticed = False
        self._watched: list[DeferredCopy] = []
        self._spoiled: set[Path] = set()
        self._untold: list[Path] = []

    def set_share(self, share: ShareLayout, types: Sequence[LeafType]) -> None:
        """Set the share whose leaves are captured from now on."""
        leaves = sorted(set(share.spans["leaf"].tolist()))
        self._large = [leaf for leaf in leaves if types[leaf].nbytes > SMALL_LEAF_BYTES]

    def owned(self, flat: FlatState) -> dict[int, torch.Tensor]:
        """Address -> tensor, for the large tensors that only an optimizer changes, as far as is known."""
        self._learn()
        found = self._owners.of(flat)
        for leaf in flat.arrays if self._spoiled else ():
            if leaf.path in self._spoiled:
                found.pop(flat.pointers[leaf.index], None)
        return found

    def later(
        self, flat: FlatState, types: Sequence[LeafType], owned: Mapping[int, torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """The leaves of the share that can be deferred, with the optimizer's tensor of each."""
        self._warn()
        found: dict[int, torch.Tensor] = {}
        others: list[int] = []
        for leaf in self._large:
            owner, data = owned.get(flat.pointers[leaf]), flat.data[leaf]
            if flat.arrays[leaf].path in self._spoiled:
                continue
            alone = holds_alone(owner, types[leaf].nbytes, flat.memory.lengths[leaf])
            is_tensor = isinstance(data, torch.Tensor)  # numpy arrays over an optimizer's memory cannot be deferred
            if owner is not None and alone and is_tensor and (lies_flat_on_host(data) or data.is_cuda):
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
        slices: DeferredSlices | None,
        turn: int,
        where: str,
    ) -> DeferredCopy:
        """The remaining copies, to be made in the background, and slices to be digested with them."""
        counters = self._owners.counters
        guards = {leaf: _guard(flat, leaf, owner, counters.get(flat.pointers[leaf])) for leaf, owner in later.items()}
        on_devices = [flat.data[leaf].detach() for leaf in sorted(later) if flat.data[leaf].is_cuda]
        sample = partial(sample_digest, on_devices[:_SAMPLED_ON_DEVICES], turn)
        deferred = DeferredCopy(copies, guards, sample, turn, where, self._timeout, slices)
        self._watched.append(deferred)
        return deferred

    def _learn(self) -> None:
        """Record the leaves that earlier captures have found changed."""
        new = {path: None for deferred in self._watched for path in deferred.spoiled if path not in self._spoiled}
        self._watched = [deferred for deferred in self._watched if not deferred.settled]
        self._spoiled |= new.keys()
        self._untold += new

    def _warn(self) -> None:
        """Warn of the leaves newly found changed."""
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
        names = some_names([readable(flat.arrays[leaf].path) for leaf in others], most=4)
        warn_caller(
            f'capture="lazy": {nbytes / 1e6:.0f} MB are copied before checkpoint() returns, because no torch optimizer '
            f"is known to own them: {names}. An optimizer is known if it is in the state as an object, or has "
            "made a step since the Checkpointer was made",
            LazyCaptureNotice,
        )


def _guard(flat: FlatState, leaf: int, owner: torch.Tensor, sharded: torch.Tensor | None) -> Guard:
    """Holds a leaf's memory, and detects writes to it."""
    data, memory = flat.data[leaf], flat.memory
    aliases = tuple(each.detach() for each in ((data,) if data is owner else (data, owner)))
    return Guard(
        flat.arrays[leaf].path,
        memory.holders[leaf],
        (memory.bases[leaf], memory.lengths[leaf]),
        tuple((alias, alias._version) for alias in aliases),
        None if sharded is None else (sharded, sharded._version),
    )


# --- deferred copies --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Guard:
    """A leaf that must not change until it is copied, and the objects that hold its memory.

    Attributes:
        path: of the leaf.
        holder, extent: its storage, and the storage's address and bytes.
        aliases: tensors with their version counters at the call: an alias of the captured tensor, and one of the
            optimizer's, if that is another one: tensors over the same memory need not share a counter.
        sharded: the same for the sharded tensor that has the optimizer's tensor as its shard, if any: only it counts
            writes made through it.
    """

    path: Path
    holder: Holder | None
    extent: tuple[int, int]
    aliases: tuple[tuple[torch.Tensor, int], ...]
    sharded: tuple[torch.Tensor, int] | None = None

    def stands(self) -> bool:
        """True if the leaf's memory has not moved."""
        return self.holder is not None and place_of(self.holder) == self.extent

    def problem(self) -> str | None:
        """A text that says what is wrong with the leaf's memory, or None."""
        if not self.stands():
            return f"memory that was freed or replaced: {readable(self.path)}"
        return f"writes to {readable(self.path)}" if self.written() else None

    def written(self) -> bool:
        """True if torch has counted a write to it."""
        counters = self.aliases if self.sharded is None else (*self.aliases, self.sharded)
        return any(tensor._version != version for tensor, version in counters)


class Samples:
    """Sampled bytes of the sources, to be compared with the copies."""

    def __init__(self, copies: Sequence[HostCopy], turn: int) -> None:
        sampled = [copy for copy in copies if copy.length >= _SAMPLED_BYTES]
        lengths = np.array([copy.length for copy in sampled], dtype=np.int64)
        places = (lengths[:, None] * ((np.arange(_SAMPLED_PLACES) + fraction(turn)) / _SAMPLED_PLACES)).astype(np.int64)
        places = np.minimum(places, lengths[:, None] - _SAMPLED_BYTES)
        sources = np.array([copy.source for copy in sampled], dtype=np.int64)
        self._leaves = [copy.leaf for copy in sampled]
        self._targets = np.array([copy.target for copy in sampled], dtype=np.int64)[:, None] + places
        self._before = gather_memory((sources[:, None] + places).reshape(-1), _SAMPLED_BYTES)

    def differing(self) -> list[int]:
        """Leaves whose copies differ from the samples."""
        copied = gather_memory(self._targets.reshape(-1), _SAMPLED_BYTES)
        if self._before is None or copied is None:
            return list(dict.fromkeys(self._leaves))
        bad = (copied != self._before).reshape(-1, _SAMPLED_PLACES * _SAMPLED_BYTES).any(axis=1)
        return list(dict.fromkeys(self._leaves[extent] for extent in np.flatnonzero(bad).tolist()))


class DeferredCopy:
    """Copies that several threads can make together.

    Attributes:
        held_s: seconds for which other threads were blocked.
        spoiled: paths of leaves that were found changed, once that is known.
    """

    def __init__(
        self,
        copies: Sequence[HostCopy | CallCopy],
        guards: Mapping[int, Guard],
        sample: Callable[[], int],
        turn: int,
        where: str,
        timeout: float,
        slices: DeferredSlices | None = None,
    ) -> None:
        pieces = [piece for copy in copies for piece in _cut(copy)]
        self._slices = slices
        if slices is not None:
            pieces.insert(0, CallCopy(None, slices.read))
        self._work: deque[HostCopy | CallCopy] = deque(pieces)
        self._left = len(pieces)
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._guards, self._sample, self._where = dict(guards), sample, where
        self._timeout = timeout
        self._samples: Samples | None = Samples([piece for piece in pieces if isinstance(piece, HostCopy)], turn)
        self._before = sample()
        self._later: list[Guard] = []
        self._error: CheckpointError | None = None
        self.held_s = 0.0
        self.spoiled: tuple[Path, ...] = ()

    @property
    def done(self) -> bool:
        """True if all copies have been made and checked."""
        return self._done.is_set()

    @property
    def settled(self) -> bool:
        """True if nothing can change its outcome any more."""
        return self._done.is_set() and not self._later

    def work(self) -> None:
        """Make copies until none is left to begin; may return before other threads end their last ones."""
        while True:
            try:
                piece = self._work.popleft()
            except IndexError:
                break
            error: CheckpointError | None = CheckpointError("a copy was interrupted", where=self._where)
            try:
                error = self._copied(piece)
            except Exception as problem:
                error = CheckpointError("a tensor could not be captured", found=repr(problem), where=self._where)
            finally:  # other threads wait for the end of all copies, and for the memory of each
                del piece
                with self._lock:
                    self._error = self._error or error
                    self._left -= 1
                    last = self._left == 0
                if last:
                    self._finish()
        if not self._left:
            self._finish()

    def hold(self) -> None:
        """Return when all is copied; called by the thread that is about to change the tensors."""
        if not self._done.is_set():
            began = time.monotonic()
            self.wait()
            self.held_s += time.monotonic() - began
        self.recheck()

    def wait(self) -> CheckpointError | None:
        """Take part until all is copied; returns the error of the copies, or None."""
        self.work()
        if not self._done.wait(self._timeout):
            self._error = CheckpointError(
                "a tensor could not be captured in the background",
                found=f"a copy did not end within {self._timeout:g} s",
                where=self._where,
                todo="check the device that the tensors are on",
            )
        return self._error

    def recheck(self) -> CheckpointError | None:
        """Check for late writes and return the copies' error, or None; the first call after the last copy decides.

        By now, an operation that was writing to a tensor while it was copied has ended, and was counted.
        """
        with self._lock:
            if not self._done.is_set():
                return self._error
            if self._slices is not None:
                self._slices.settle()
            later, self._later = self._later, []
            late = [guard for guard in later if guard.written()]
            if late:
                self.spoiled += tuple(guard.path for guard in late)
                self._error = self._error or self._writes([f"writes to {readable(guard.path)}" for guard in late])
            return self._error

    def _copied(self, piece: HostCopy | CallCopy) -> CheckpointError | None:
        """Make one copy; returns its error, or None."""
        guard = None if piece.leaf is None else self._guards.get(piece.leaf)
        if guard is not None and not guard.stands():
            return None  # no memory to copy from; reported by _finish
        return _copy(piece)

    def _finish(self) -> None:
        with self._lock:
            if self._done.is_set():
                return
            try:
                self._error = self._error or self._find_changes()
                self._later = [_without_memory(guard) for guard in self._guards.values()]
            except Exception as error:  # of any type: other threads wait for this to end
                self._error = CheckpointError(
                    "a capture could not be checked", found=f"{type(error).__name__}: {error}"
                )
            self._guards, self._sample, self._samples = {}, int, None  # release the tensors
            self._done.set()

    def _find_changes(self) -> CheckpointError | None:
        problems = {leaf: text for leaf, guard in self._guards.items() if (text := guard.problem()) is not None}
        if self._samples is not None:
            for leaf in self._samples.differing():
                problems.setdefault(leaf, f"other bytes than when checkpoint() was called: {self._name(leaf)}")
        self.spoiled = tuple(self._guards[leaf].path for leaf in problems if leaf in self._guards)
        found = list(problems.values())
        if not found and self._sample() != self._before:
            found = ["elements on a device that differ from those sampled at the beginning"]
        return self._writes(found) if found else None

    def _name(self, leaf: int) -> str:
        return readable(self._guards[leaf].path) if leaf in self._guards else f"leaf {leaf}"

    def _writes(self, found: list[str]) -> CheckpointError:
        return CheckpointError(
            "a tensor was written to while it was being captured in the background",
            expected='parameters and optimizer state to change in optimizer.step() alone (capture="lazy")',
            found=", ".join(found[:8]) + (" ..." if len(found) > 8 else ""),
            where=self._where,
            todo="nothing for the tensors named: they are copied before checkpoint() returns from now on; otherwise "
            'call checkpoint() after the code that writes to them, or set capture="eager"',
        )


def _cut(copy: HostCopy | CallCopy) -> list[HostCopy | CallCopy]:
    if isinstance(copy, CallCopy) or copy.length <= PIECE_BYTES:
        return [copy]
    return [
        HostCopy(copy.leaf, copy.target + at, copy.source + at, min(PIECE_BYTES, copy.length - at))
        for at in range(0, copy.length, PIECE_BYTES)
    ]


def _without_memory(guard: Guard) -> Guard:
    """A guard with the same version counters and no memory."""
    for alias, _ in guard.aliases:
        without_memory(alias)
    return replace(guard, holder=None)


def _copy(piece: HostCopy | CallCopy) -> CheckpointError | None:
    if isinstance(piece, HostCopy):
        if copy_memory(piece.target, piece.source, piece.length):
            return None
        return CheckpointError("a tensor could not be copied", found="its memory was freed while it was being captured")
    try:
        piece.call()
    except Exception as error:  # raised by the device's driver
        return CheckpointError("a tensor could not be copied", found=f"{type(error).__name__}: {error}")
    return None
