"""The state of a step as all ranks together had it: global tensors, and parts of one state that only some ranks had.

In a restore a global tensor is an ordinary array, wherever its shards came from: the structure document has each
global tensor once, among the leaves. *Parts of one state* are items of dicts that some ranks have and others lack, as
with pipeline stages. Their global tensors and small values are not rank-local: the restored state is the union.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from deeppart.errors import CorruptFileError
from deeppart.state.document.part_document import RankDocument, RankLocalTree, insert
from deeppart.state.document.structure import PartValue, Structure
from deeppart.state.paths import ExactPath, IdKey, Path, exact, readable
from deeppart.state.tree import DICTS, ArrayLeaf, Branch, Node, ValueLeaf, walk_tree, with_items_at
from deeppart.state.values import same_value


@dataclass(frozen=True, slots=True)
class GlobalState:
    """All sharded tensors of a step, and all parts of its state.

    Attributes:
        tensors: number of a global tensor -> its path, which is the same on all ranks that have it.
        values: small values in parts of the state, by path; in the order of their numbers.
        parts: the rank-local trees that are parts of the state, with their ranks.
        part_paths: their paths.
    """

    tensors: Mapping[int, Path]
    values: Mapping[ExactPath, PartValue] = field(default_factory=dict)
    parts: tuple[tuple[int, RankLocalTree], ...] = ()
    part_paths: frozenset[ExactPath] = frozenset()

    def has_part(self, tree: RankLocalTree) -> bool:
        """True if a rank-local tree is a part of the state."""
        return exact(tree.path) in self.part_paths

    def check(self, structure: Structure, where: str) -> None:
        """Check that each sharded tensor has a path, once the documents of all parts were read."""
        if lacking := structure.divisions.keys() - self.tensors.keys():
            raise CorruptFileError(
                "a sharded tensor stands in no tree",
                found=f"leaf {min(lacking)} of the structure document",
                where=where,
            )


def gather_global_state(structure: Structure, documents: Sequence[RankDocument], where: str) -> GlobalState:
    """Combine the structure document with the documents of the parts."""
    tensors: dict[int, Path] = {}
    if structure.divisions:
        found = list(structure.walk())
        found += [each for own in documents for tree in own.trees for each in walk_tree(tree.node, tree.path)]
        for path, node in found:
            if not isinstance(node, ArrayLeaf) or node.index not in structure.divisions:
                continue
            known = tensors.setdefault(node.index, path)
            if known is not path and exact(known) != exact(path):
                raise CorruptFileError(
                    "one sharded tensor stands at two paths",
                    expected=f"leaf {node.index} at {readable(known)} on all ranks",
                    found=readable(path),
                    where=where,
                )
    parts = find_parts(documents, structure.divisions)
    paths = frozenset(exact(tree.path) for _, tree in parts)
    return GlobalState(dict(sorted(tensors.items())), gather_values(parts, documents), tuple(parts), paths)


def with_global_state(base: Structure, global_state: GlobalState) -> Structure:
    """A structure that includes all parts of the state."""
    if not global_state.parts:
        return base
    numbers = {key: number for number, key in enumerate(global_state.values, start=len(base))}
    parts = [
        (rank, replace(each, node=_renumbered(each.node, each.path, numbers))) for rank, each in global_state.parts
    ]
    whole = base.extended(with_parts(base.tree, parts), {}, numbers.values(), per_rank=False)
    return replace(whole, in_parts={number: global_state.values[key] for key, number in numbers.items()})


def _renumbered(node: Node, path: tuple[Any, ...], numbers: Mapping[ExactPath, int]) -> Node:
    """A part of the state with other numbers for its values."""
    if isinstance(node, ValueLeaf):
        return ValueLeaf(numbers[exact(path)])
    if not isinstance(node, Branch):
        return node
    return replace(node, children=tuple(_renumbered(child, inner, numbers) for inner, child in node.items(path)))


# --- parts of one state -----------------------------------------------------------------------------------------------


def may_be_part(tree: RankLocalTree, tensors: Container[int]) -> bool:
    """True if a rank-local tree may be a part of one state.

    Global tensors alone always may; ``tensors`` are their numbers. A tree with any other array may not, since it is
    unknown which rank's array is meant.
    """
    leaves = [leaf for _, leaf in walk_tree(tree.node, ())]
    if tree.position is None or any(isinstance(leaf, ArrayLeaf) and leaf.index not in tensors for leaf in leaves):
        return False
    return tree.part or (bool(leaves) and not any(isinstance(leaf, ValueLeaf) for leaf in leaves))


def find_parts(documents: Sequence[RankDocument], tensors: Container[int]) -> list[tuple[int, RankLocalTree]]:
    """The trees that are parts of one state, with their ranks, in rank order.

    Either the trees of all ranks at a path are parts, or none. Dicts may have different keys; if anything else differs,
    it is unknown which tree is meant, and each rank keeps its own.
    """
    trees: dict[ExactPath, list[tuple[int, RankLocalTree]]] = {}
    joint: dict[ExactPath, Node] = {}  # the union of the trees at a path so far
    refused: set[ExactPath] = set()
    of_equal: dict[Path, ExactPath] = {}  # equal keys, such as 1 and True, cannot both be in one dict
    for rank, own in enumerate(documents):
        for tree in own.trees:
            key = exact(tree.path)
            trees.setdefault(key, []).append((rank, tree))
            union = join(joint.get(key, tree.node), tree.node)
            if union is None or not may_be_part(tree, tensors):
                refused.add(key)
            else:
                joint[key] = union
            if (equal := of_equal.setdefault(tree.path, key)) != key:
                refused |= {key, equal}
    kept = [each for key, found in trees.items() if key not in refused for each in found]
    return sorted(kept, key=lambda each: each[0])


def join(one: Node, other: Node) -> Node | None:
    """A tree with the contents of both; None if they differ in more than the keys of dicts.

    The order of the keys preserves that of both.
    """
    if one is other:
        return one
    if not isinstance(one, Branch) or not isinstance(other, Branch):
        return one if type(one) is type(other) else None
    mine, theirs = one.by_key(), other.by_key()
    if (one.kind, one.name) != (other.kind, other.name) or (one.kind not in DICTS and mine.keys() != theirs.keys()):
        return None
    # Equal keys, such as 1 and True, cannot both be in one dict.
    if len({*one.keys, *other.keys}) != len(mine.keys() | theirs.keys()):
        return None
    in_order = [key for key in mine if key in theirs] == [key for key in theirs if key in mine]
    if one.kind == "odict" and not in_order:
        return None
    found = {**theirs, **mine}
    for name in mine.keys() & theirs.keys():
        joint = join(mine[name], theirs[name])
        if joint is None:
            return None
        found[name] = joint
    keys = dict(zip((*mine, *theirs), (*one.keys, *other.keys), strict=True))
    return one.with_items((keys[name], found[name]) for name in _merged(mine, theirs))


def _merged(mine: Iterable[IdKey], theirs: Iterable[IdKey]) -> list[IdKey]:
    """The keys of both, each of the others directly after the key that it follows there."""
    there = dict.fromkeys(mine)
    behind: dict[IdKey | None, list[IdKey]] = {}
    last: IdKey | None = None
    for name in theirs:
        if name in there:
            last = name
        else:
            behind.setdefault(last, []).append(name)
    return [*behind.get(None, ()), *(each for name in there for each in (name, *behind.get(name, ())))]


def values_in(tree: RankLocalTree) -> Iterator[tuple[Path, int]]:
    """Path and number of the values in a tree."""
    return ((path, leaf.index) for path, leaf in walk_tree(tree.node, tree.path) if isinstance(leaf, ValueLeaf))


def gather_values(
    parts: Sequence[tuple[int, RankLocalTree]], documents: Sequence[RankDocument]
) -> dict[ExactPath, PartValue]:
    """The values in parts of the state that :func:`find_parts` found."""
    found: dict[ExactPath, dict[int, Any]] = {}
    names: dict[ExactPath, str] = {}
    for rank, tree in parts:
        for path, number in values_in(tree):
            key = exact(path)
            if key not in found:
                found[key], names[key] = {}, readable(path)
            found[key][rank] = documents[rank].values[number]
    return {key: PartValue(names[key], contents, _differ(contents)) for key, contents in found.items()}


def _differ(contents: Mapping[int, Any]) -> bool:
    first, *others = contents.values()
    return not all(same_value(first, other) for other in others)


def with_parts(root: Node, parts: Sequence[tuple[int, RankLocalTree]]) -> Node:
    """A tree with all parts of the state, in the same order on every rank."""
    # Without this rank's parts at first, so that dicts have the same order on all ranks.
    shared = found = with_items_at(root, {exact(tree.path): None for _, tree in parts})
    for _, of_rank in groupby(parts, key=lambda each: each[0]):
        joint = join(found, insert(shared, [tree for _, tree in of_rank]))
        assert joint is not None, "find_parts() has joined them"
        found = joint
    return found
