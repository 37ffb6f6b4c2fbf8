"""Containers that mean something only as a whole: half of the live one and half of a saved one are neither.

Tuples, as ``random.getstate()`` and ``np.random.get_state()`` give them, the dict that is the state of a
``np.random.Generator``, tensors that are made of others, and objects of registered types. With ``per_rank="drop"``
such a container is left alone as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deeppart.state.document.structure import DICTS, SavedArray, SavedBranch, SavedNode, SavedValue, walk_tree
from deeppart.state.tree.composites import COMPOSITES
from deeppart.state.tree.objects import REGISTERED
from deeppart.state.tree.paths import Path

_TUPLES = ("tuple", "namedtuple")
#: numpy/random/bit_generator.pyx: what every bit generator's state has.
_GENERATOR_KEY = "bit_generator"


@dataclass(frozen=True, slots=True)
class Unit:
    """A container that is restored as a whole or not at all.

    Attributes:
        path: its path.
        arrays, values: numbers of the leaves and values in it.
    """

    path: Path
    arrays: frozenset[int]
    values: frozenset[int]


def units_of(tree: SavedNode, arrays: set[int], values: set[int]) -> list[Unit]:
    """The outermost units that hold any of these leaves or values; the state itself is none, unless it is a tensor."""
    found = []
    for path, branch in _outermost(tree, ()):
        leaves = [leaf for _, leaf in walk_tree(branch, path)]
        unit = Unit(
            path,
            frozenset(leaf.index for leaf in leaves if isinstance(leaf, SavedArray)),
            frozenset(leaf.index for leaf in leaves if isinstance(leaf, SavedValue)),
        )
        if unit.arrays & arrays or unit.values & values:
            found.append(unit)
    return found


def _outermost(node: SavedNode, path: Path) -> Iterator[tuple[Path, SavedBranch]]:
    if not isinstance(node, SavedBranch):
        return
    if node.kind in COMPOSITES or (node.form is not None and node.form.kind == REGISTERED):
        yield path, node
        return
    is_generator = node.kind in DICTS and _GENERATOR_KEY in node.keys
    if path and (node.kind in _TUPLES or is_generator) and not _has_objects(node):
        yield path, node
        return
    for key, child in zip(node.keys, node.children, strict=True):
        inner = path if node.kind == "object" else (*path, key)
        yield from _outermost(child, inner)


def _has_objects(node: SavedNode) -> bool:
    if not isinstance(node, SavedBranch):
        return False
    return (node.kind == "object" and node.form is None) or any(map(_has_objects, node.children))
