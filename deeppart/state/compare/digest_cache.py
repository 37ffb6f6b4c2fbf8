"""Digests of whole leaves, kept for as long as torch says that nobody has written to them.

What torch can say is its version counter: most operations on a tensor, its views and what ``detach()`` gives advance
it. Not all do: ``batch_norm`` writes its statistics without, so do fused optimizers, ``apply_``, writes to the storage,
and whoever goes by way of ``.data`` or dlpack; numpy's can be told, because torch marks a storage that numpy has seen.
So only parameters are remembered, which are written to by few, in ways that count, and read again and again for nothing
where they are frozen. Even so this saves time and is no proof: what is remembered is compared in turn, too
(:mod:`deeppart.state.compare.turns`).

A counter and an address alone say nothing: after a tensor is freed, another gets its address and begins to count at 0.
Here both belong to one storage, which a weak reference tells from all others, and to a tensor object with the same id
(:mod:`deeppart.state.compare.identity`). What that does not tell is a parameter that was made anew over the memory of
the old one, twice since then, written to in between by way of ``.data``, and has got the old one's id: this is found in
turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from deeppart.state.compare.identity import TensorIdentity
from deeppart.state.tree.fingerprint import full_digest
from deeppart.state.tree.flat import ArrayLeaf, Branch, FlatState, Node
from deeppart.state.tree.leaves import PLAIN_TENSORS


@dataclass(frozen=True, slots=True)
class _Known:
    """The object of which a digest was computed."""

    tensor: TensorIdentity
    place: tuple[Any, ...]
    digest: int


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
