"""Composite tensors in a restore: which live tensor can take which saved one, and how.

The components of a subclass are filled in place, like other leaves. Sparse, quantized and jagged tensors are first
assembled from the restored components, so that no live tensor ever has unchecked indices; then their elements are
copied into the live tensor, if its components have the same shapes. Otherwise the new tensor replaces the live one in
its dict or list; so does every jagged one, because other tensors use the offsets of the live one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from deeppart.errors import StructureMismatchError
from deeppart.state.paths import Path, readable
from deeppart.state.restore.sharing import in_c_order, view_of
from deeppart.state.restore.target import DROPPED, Target, leaf_differs
from deeppart.state.tensors import (
    CHANNELS,
    COMPOSITES,
    CONTEXT,
    JAGGED,
    KEYS,
    QUANTIZED,
    Array,
    LeafType,
    assemble,
    decompose,
    leaf_type,
    overlaps_itself,
)
from deeppart.state.tree import (
    ArrayLeaf,
    Branch,
    FlatState,
    Node,
    UnmadeLeaf,
    ValueLeaf,
    describe_leaf_value,
    every_node,
    numbers_in,
)
from deeppart.state.values import same_value

#: Values that the live tensor must already have.
_FIXED = ("shape", "dtype", "axis", "ragged_dim", CONTEXT)


def match_rebuilt(
    saved: Branch, live: Branch, target: Target, flat: FlatState, path: Path, *, movable: bool
) -> dict[int, int]:
    """Check that a live sparse, quantized or jagged tensor can take a saved one of its kind; changes nothing."""
    if is_dropped(saved, target):
        return {}
    check_values(saved, live, target, path)
    pairs = [
        (target.types[child.index], flat.data[inner.index], child.index, inner.index)
        for child, inner in zip(saved.children, live.children, strict=True)
        if isinstance(child, ArrayLeaf) and isinstance(inner, ArrayLeaf)
    ]
    for kind, data, _, inner in pairs:
        key = str(flat.arrays[inner].path[-1])
        if not _is_alike(saved.kind, key, kind, leaf_type(data)):
            raise leaf_differs(path, kind, leaf_type(data), component=key)
    fits = all(kind == leaf_type(data) and not overlaps_itself(data) for kind, data, _, _ in pairs)
    if saved.kind != JAGGED and fits:
        # The scales of channels become those of the new tensor, also if other leaves share the live ones.
        return {inner: child for _, _, child, inner in (pairs[:1] if saved.kind == CHANNELS else pairs)}
    if not movable or isinstance(live.container, torch.nn.Parameter):
        raise StructureMismatchError(
            f"a {saved.kind} tensor can only be replaced by that of the checkpoint, which is not possible here",
            expected=", ".join(str(kind) for kind, _, _, _ in pairs) + " (components in the checkpoint)",
            found=", ".join(str(leaf_type(data)) for _, data, _, _ in pairs) + " (live)",
            where=f"path {readable(path)}",
            todo="put it into a dict or list, not as a parameter or in a module or only in tuples; or build it with "
            "components of the same shapes" + (" (jagged ones are always replaced)" if saved.kind == JAGGED else ""),
        )
    return {}


def check_values(saved: Branch, live: Branch, target: Target, path: Path) -> None:
    """Check that a live tensor has the shape and other fixed values of the saved one."""
    for key, child, inner in zip(saved.keys, saved.children, live.children, strict=True):
        if key in _FIXED and isinstance(child, ValueLeaf) and isinstance(inner, ValueLeaf):
            value = target.values[child.index]
            if value is not DROPPED and not same_value(value, inner.value):
                raise leaf_differs(path, describe_leaf_value(value), describe_leaf_value(inner.value), component=key)


def is_dropped(saved: Branch, target: Target) -> bool:
    """True if a tensor is left unchanged because some of its components are not restored."""
    return not target.dropped.isdisjoint(numbers_in(saved))


def check_unmade(saved: ArrayLeaf, live: UnmadeLeaf, target: Target, path: Path, *, movable: bool) -> None:
    """Check that a tensor can be created in place of a live one on the meta device."""
    expected = target.types[saved.index]
    if saved.index not in target.dropped and expected != live.kind:
        raise leaf_differs(path, expected, live.kind)
    if not movable:
        raise StructureMismatchError(
            "the live state holds a tensor on the meta device, and a restored one cannot take its place there",
            found=f"{live.kind} on the meta device",
            where=f"path {readable(path)}",
            todo="call module.to_empty(device=...) first, and build the optimizer over its parameters then",
        )


def component(target: Target, arrays: Mapping[int, Array], node: ArrayLeaf) -> Array:
    """The array of a component; the owner's own array if it has all of it, as jagged tensors share offsets."""
    alias = target.structure.aliases.get(node.index)
    if alias is not None and alias.owner in arrays and target.live(alias.owner) is None and alias.offset == 0:
        owner, mine = arrays[alias.owner], arrays[node.index]
        if leaf_type(owner) == leaf_type(mine) and isinstance(mine, torch.Tensor) and mine.is_contiguous():
            return owner
    return arrays[node.index]


def composites_of(tree: Node) -> Iterator[Branch]:
    """The tensors in a tree that are assembled from their components."""
    return (node for _, node in every_node(tree, ()) if isinstance(node, Branch) and node.kind in KEYS)


def leaves_to_check(target: Target) -> set[int]:
    """Numbers of the leaves whose bytes :func:`check_composites` needs: components, and
    the owners of their memory.
    """
    found: set[int] = set()
    for node in composites_of(target.structure.tree):
        if not is_dropped(node, target):
            found |= {child.index for child in node.children if isinstance(child, ArrayLeaf)}
    aliases = target.structure.aliases
    return {aliases[index].owner if index in aliases else index for index in found}


def check_composites(target: Target, arrays: Mapping[int, Array]) -> None:
    """Check that composite tensors can be made, before anything live is changed."""
    known = dict(arrays)
    for node in composites_of(target.structure.tree):
        numbers = [child.index for child in node.children if isinstance(child, ArrayLeaf)]
        for index in numbers:
            alias = target.structure.aliases.get(index)
            if alias is not None and alias.owner in arrays:
                owner = in_c_order(arrays[alias.owner])
                known[index] = view_of(owner, target.types[index], alias.offset, alias.strides)
        if not is_dropped(node, target) and all(index in known for index in numbers):
            rebuilt(target, known, node)


def rebuilt(target: Target, arrays: Mapping[int, Array], saved: Branch) -> Any:
    """A saved sparse, quantized or jagged tensor on the CPU."""
    items: dict[str, Any] = {}
    for key, child in zip(saved.keys, saved.children, strict=True):
        if isinstance(child, ArrayLeaf):
            items[key] = component(target, arrays, child)
        elif isinstance(child, ValueLeaf):
            items[key] = target.values[child.index]
    return assemble(saved.kind, items)


def settle(kind: str, live: Any, made: Any, offsets: dict[int, torch.Tensor]) -> Any:
    """Copy a new tensor into the live one if possible; returns the tensor to use."""
    with torch.no_grad():
        if kind in (QUANTIZED, CHANNELS):
            return live.copy_(made.to(live.device))
        if kind == JAGGED and live.device != made.device:
            made = _moved(made, live.device, offsets)
        mine, theirs = decompose(live, ""), decompose(made, "")
        if mine is not None and theirs is not None and kind != JAGGED and _fits(mine.items, theirs.items):
            for key, item in theirs.items.items():
                if isinstance(item, torch.Tensor):
                    mine.items[key].copy_(item)
            if live.layout is torch.sparse_coo and live.is_coalesced() != made.is_coalesced():
                live._coalesced_(made.is_coalesced())
            return live
        return made.to(live.device).requires_grad_(live.requires_grad)


def _moved(made: Any, device: torch.device, offsets: dict[int, torch.Tensor]) -> Any:
    """A jagged tensor on another device; tensors that share offsets still do."""
    parts = decompose(made, "")
    items = {} if parts is None else parts.items
    for key, item in items.items():
        if key == "values":
            items[key] = item.to(device)
        elif isinstance(item, torch.Tensor):
            items[key] = offsets.setdefault(id(item), item.to(device))
    return assemble(JAGGED, items)


def _fits(live: dict[str, Any], made: dict[str, Any]) -> bool:
    pairs = [(live[key], item) for key, item in made.items() if isinstance(item, torch.Tensor)]
    return all(a.shape == b.shape and a.dtype == b.dtype and not overlaps_itself(a) for a, b in pairs)


def _is_alike(kind: str, key: str, expected: LeafType, found: LeafType) -> bool:
    """True if two components differ at most in one length that may vary."""
    differing = [a != b for a, b in zip(expected.shape, found.shape, strict=False)]
    may = 0 if kind in (QUANTIZED, CHANNELS) or key in ("compressed", "offsets", "lengths") else 1
    same = (expected.kind, expected.dtype, len(expected.shape)) == (found.kind, found.dtype, len(found.shape))
    return same and sum(differing) <= may


def is_composite(node: object) -> bool:
    """True for a composite tensor."""
    return isinstance(node, Branch) and node.kind in COMPOSITES
