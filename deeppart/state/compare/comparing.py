"""The digests by which ranks find out whether they have the same bytes of a leaf.

Which leaves are compared at all is the business of :mod:`deeppart.state.compare.classify`; here stands what each of
them costs and proves:

* Small leaves: in full at every checkpoint.
* Large ones: in full whenever they may have changed, as far as torch knows.
* Large ones that an optimizer is seen to train, which change at every step: in turn
  (:mod:`deeppart.state.compare.turns`). With ``capture="lazy"`` some of them trail: their slices are read after
  ``checkpoint()`` has returned, and compared at the next one (:mod:`deeppart.state.compare.turns`).
* Those of which torch may not know, too: whatever lies without gaps in host memory takes part in the turns.
* On a device: in full. Reading all of its memory costs it little.

The second and the third are each rank's own view of its tensors. So the ranks agree on the *ways* first: where they
differ, a leaf is compared in full.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deeppart.state.compare.optimizers import TensorIdentity, holds_alone
from deeppart.state.compare.turns import C_ORDER, TrailingSlices, Turns, memory_order
from deeppart.state.tree.fingerprint import SMALL_LEAF_BYTES, SmallLeaves, device_digests, full_digest, hash63
from deeppart.state.tree.flat import ArrayLeaf, Branch, FlatState, Node
from deeppart.state.tree.leaves import PLAIN_TENSORS, LeafType

Digests = npt.NDArray[np.int64]
#: Names of the digests by which ranks tell whether they hold the same bytes.
COMPARED = ("ways", "small", "full", "turns")
#: In this ranks may differ without holding other bytes: which leaves were not read again.
UNREAD = "unread"
#: In this, what was read after the last checkpoint had returned.
TRAILING = "trailing"
#: The way of a leaf: four times the order in which it lies in memory, 1 more if an optimizer trains it, and 2 more if
#: it trails, too. Without an order, a leaf is read in full every time.
_TRAINED, _TRAILS, _ORDERS = 1, 2, 4


class Comparison:
    """Compares leaves of a state that are held to be replicated."""

    def __init__(
        self,
        numbers: Collection[int],
        flat: FlatState,
        types: list[LeafType],
        always: Collection[int] = (),
        cache: DigestCache | None = None,
    ) -> None:
        self.numbers = list(numbers)
        self.cache = cache or DigestCache()
        self._types = types
        self.small = [number for number in numbers if types[number].nbytes <= SMALL_LEAF_BYTES]
        self.large = [number for number in numbers if types[number].nbytes > SMALL_LEAF_BYTES]
        self._large = np.array(self.large, dtype=np.int64)
        self._is_always = np.isin(self._large, list(always))
        self._nbytes = np.array([types[number].nbytes for number in self.large], dtype=np.int64)
        #: Made when it is first needed: of a new structure, some comparisons are planned again before they are made.
        self._small_leaves: SmallLeaves | None = None
        # What lies in C order on the host does so in every state of this structure: it need not be asked again.
        self._c_order = np.array([memory_order(flat.data[number]) == C_ORDER for number in self.large], dtype=np.bool_)
        #: Of this rank, when it last looked.
        self._own_ways = np.full(len(self.large), -1, dtype=np.int64)
        self._go_by(np.zeros(len(self.large), dtype=np.int64))

    def digests(
        self, flat: FlatState, turn: int, trained: Mapping[int, int], owned: Mapping[int, torch.Tensor] | None = None
    ) -> dict[str, int]:
        """One digest per name in :data:`COMPARED`, of all the leaves together, and one as :data:`UNREAD`.

        ``trained``: address -> bytes, of the host tensors that an optimizer trains.
        """
        ways = self._ways_of(flat, trained, owned or {})
        if not np.array_equal(ways, self._own_ways):
            self._own_ways = ways
            self._go_by(ways)
        whole, turns = self._compute(flat, turn)
        return {
            "ways": hash63(self.ways.tobytes()),
            "small": self._small_of(flat).digest(flat.data, flat.pointers),
            "full": hash63(whole.tobytes()),
            "turns": hash63(turns.tobytes()),
            UNREAD: hash63(np.array(sorted(self.unread), dtype=np.int64).tobytes()),
        }

    def settle_ways(
        self,
        orders_differ: npt.NDArray[np.bool_],
        training_differs: npt.NDArray[np.bool_],
        trails_differ: npt.NDArray[np.bool_],
    ) -> None:
        """The ranks' ways have been compared, :attr:`orders`, :attr:`training` and :attr:`trails`.

        In doubt, all is read, and at once.
        """
        ways = np.where(trails_differ | training_differs, self.ways & ~_TRAILS, self.ways)
        ways = np.where(training_differs, ways & ~_TRAINED, ways)
        self._go_by(np.where(orders_differ, 0, ways))

    @property
    def orders(self) -> Digests:
        """The memory order of each large leaf."""
        return self.ways // _ORDERS

    @property
    def training(self) -> Digests:
        """1 for each large leaf that an optimizer trains."""
        return self.ways & _TRAINED

    @property
    def trails(self) -> Digests:
        """Not 0 for each large leaf whose slices are read after the call."""
        return self.ways & _TRAILS

    def trailing(self, flat: FlatState, turn: int, owned: Mapping[int, torch.Tensor]) -> TrailingSlices | None:
        """The reading that is left for a turn at which :meth:`digests` were equal; None if nothing is."""
        if not len(self._turns_later.numbers):
            return None
        return TrailingSlices(self._turns_later, turn, flat, owned)

    def by_leaf(self, flat: FlatState, turn: int) -> Digests:
        """The digests that :meth:`digests` compares and those that trail, leaf by leaf; 0 for leaves that are not
        compared.
        """
        found = np.zeros(len(self._types), dtype=np.int64)
        found[self.small] = self._small_of(flat).digests(flat.data, flat.pointers)
        whole, _ = self._compute(flat, turn)
        turns = Turns(self.in_turn.tolist(), self._types).digests(flat.pointers, turn)
        found[self.full] = whole
        for number, digest in zip(self.in_turn.tolist(), turns.tolist(), strict=True):
            found[number] = hash63(f"{found[number]} {digest}".encode())
        return found

    def in_full(self, flat: FlatState) -> Digests:
        """Digests of all bytes of every leaf, read now; 0 for leaves that are not compared."""
        self.cache.forget()
        found = np.zeros(len(self._types), dtype=np.int64)
        found[self.small] = self._small_of(flat).digests(flat.data, flat.pointers)
        digests, _ = self._whole(flat, self.large, frozenset(self.large))
        found[self.large] = digests
        return found

    def _small_of(self, flat: FlatState) -> SmallLeaves:
        if self._small_leaves is None:
            self._small_leaves = SmallLeaves(self.small, flat.data, self._types)
        return self._small_leaves

    def _ways_of(self, flat: FlatState, trained: Mapping[int, int], owned: Mapping[int, torch.Tensor]) -> Digests:
        """The way of each large leaf, as far as this rank can tell."""
        memory = flat.memory
        addresses = np.asarray(memory.pointers, dtype=np.int64)[self._large].tolist()
        found = map(trained.get, addresses, repeat(-1))
        is_trained = np.fromiter(found, dtype=np.int64, count=len(addresses)) == self._nbytes
        orders = C_ORDER * self._c_order.astype(np.int64)
        for at in np.flatnonzero(~self._c_order).tolist():
            orders[at] = memory_order(flat.data[self.large[at]])
        ways: Digests = _ORDERS * orders + _TRAINED * (is_trained & (orders > 0))
        if owned:
            is_array = np.isin(self._large, memory.arrays)
            lengths = np.asarray(memory.lengths, dtype=np.int64)[self._large].tolist()
            owners = map(owned.get, addresses)
            alone = [holds_alone(*each) for each in zip(owners, self._nbytes.tolist(), lengths, strict=True)]
            ways += _TRAILS * ((ways & _TRAINED > 0) & ~is_array & np.array(alone, dtype=np.bool_))
        ways[self._is_always] = 0
        return ways

    def _go_by(self, ways: Digests) -> None:
        self.ways, large = ways, self._large
        #: Leaves that are compared in turn, those that are read in full unless they have not changed, and of them those
        #: that were not read the last time.
        self.in_turn = large[ways > 0]
        self.full = large[ways & _TRAINED == 0].tolist()
        self.unread: frozenset[int] = frozenset()
        self._turns = Turns(large[(ways > 0) & (ways & _TRAILS == 0)].tolist(), self._types)
        self._turns_later = Turns(large[ways & _TRAILS > 0].tolist(), self._types)

    def _compute(self, flat: FlatState, turn: int) -> tuple[Digests, Digests]:
        """Digests of the leaves that are read in full, and of what is compared at once of those in turn."""
        whole, self.unread = self._whole(flat, self.full, frozenset(self.in_turn.tolist()))
        return whole, self._turns.digests(flat.pointers, turn)

    def _whole(
        self, flat: FlatState, numbers: list[int], may_be_known: frozenset[int]
    ) -> tuple[Digests, frozenset[int]]:
        """Digests of all bytes of leaves, and the leaves that were not read for it."""
        on_devices = [number for number in numbers if _is_on_device(flat.data[number])]
        found = dict(zip(on_devices, device_digests([flat.data[number] for number in on_devices]), strict=True))
        rest = [number for number in numbers if number not in found]
        known, unread = self.cache.digests(flat, [number for number in rest if number in may_be_known])
        found |= known
        found |= {number: full_digest(flat.data[number]) for number in rest if number not in known}
        return np.array([found[number] for number in numbers], dtype=np.int64), unread


def _is_on_device(data: object) -> bool:
    """True if a leaf is read by the device on which it is."""
    return isinstance(data, torch.Tensor) and not data.is_cpu


@dataclass(frozen=True, slots=True)
class _Known:
    """The object of which a digest was computed."""

    tensor: TensorIdentity
    place: tuple[Any, ...]
    digest: int


# --- digests that are kept --------------------------------------------------------------------------------------------


class DigestCache:
    """Digests of whole leaves by number, from one checkpoint to the next."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._root: Node | None = None
        self._modules: list[tuple[Branch, frozenset[int]]] = []

    def forget(self) -> None:
        """Memory has been written to in ways that no counter tells."""
        self._known = {}

    def digests(self, flat: FlatState, numbers: Collection[int]) -> tuple[dict[int, int], frozenset[int]]:
        """The digest of each leaf, and the leaves whose bytes were not read for it."""
        counting = self._counting(flat, numbers)
        found: dict[int, int] = {}
        unread = set()
        for number in numbers:
            tensor = counting.get(number)
            known = self._known.pop(number, None)
            if tensor is None:
                found[number] = full_digest(flat.data[number])
                continue
            place = _place(tensor)
            if known is not None and known.tensor.is_of(tensor) and known.place == place:
                unread.add(number)
            else:
                digest = full_digest(flat.data[number])
                known = _Known(TensorIdentity(tensor), place, digest)
            self._known[number] = known
            found[number] = known.digest
        return found, frozenset(unread)

    def _counting(self, flat: FlatState, numbers: Collection[int]) -> dict[int, torch.Tensor]:
        """For each leaf that is a parameter, the one whose counter tells of writes to it."""
        wanted = set(numbers)
        found = {number: flat.data[number] for number in wanted if isinstance(flat.data[number], torch.nn.Parameter)}
        for branch, leaves in self._modules_of(flat):
            inside = leaves & wanted
            if not inside:
                continue
            # state_dict() hands out a new tensor each time, which shares memory and counter with the module's own.
            module = branch.container
            own = {each.data_ptr(): each for each in module.parameters() if _is_plain(each)}
            for number in inside:
                tensor, data = own.get(flat.pointers[number]), flat.data[number]
                if tensor is not None and _is_plain(data) and _place(tensor) == _place(data):
                    found[number] = tensor
        return {number: tensor for number, tensor in found.items() if _counts_all(tensor)}

    def _modules_of(self, flat: FlatState) -> list[tuple[Branch, frozenset[int]]]:
        """The modules in a state, each with the numbers of its leaves."""
        if self._root is not flat.root:
            self._root = flat.root
            self._modules = [(branch, frozenset(_leaves_under(branch))) for branch in _modules_under(flat.root)]
        return self._modules


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The elements of its storage that a tensor has, and its version counter."""
    return (
        tensor._version,
        tensor.data_ptr(),
        tensor.untyped_storage().nbytes(),
        tensor.storage_offset(),
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    if type(tensor) not in PLAIN_TENSORS:  # a subclass that is made of others has no memory to ask for
        return False
    return tensor.layout is torch.strided and not tensor.is_inference() and not tensor.is_meta


def _counts_all(tensor: torch.Tensor) -> bool:
    """True if all writers that torch knows of advance the counter: none on a device, in numpy or in other processes."""
    if not tensor.is_cpu or not _is_plain(tensor):
        return False
    storage = tensor.untyped_storage()
    return storage.resizable() and not storage.is_shared()


def _modules_under(node: Node) -> Iterator[Branch]:
    if isinstance(node, Branch):
        if node.kind == "object" and isinstance(node.container, torch.nn.Module):
            yield node
            return
        for child in node.children:
            yield from _modules_under(child)


def _leaves_under(node: Node) -> Iterator[int]:
    if isinstance(node, ArrayLeaf):
        yield node.index
    elif isinstance(node, Branch):
        for child in node.children:
            yield from _leaves_under(child)
