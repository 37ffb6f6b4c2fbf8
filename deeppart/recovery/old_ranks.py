"""Per-rank leaves on another number of ranks: rank 0's values for all, or values from the caller's function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from deeppart.errors import DeeppartError, LeafMismatchError, StateError, StructureMismatchError
from deeppart.recovery.matching import Matched
from deeppart.recovery.saved import RankLocalPolicies, content_at
from deeppart.state.document import (
    Numbers,
    RankDocument,
    RankLocalTree,
    check_aliases,
    decode_tree,
    encode_tree,
    insert,
)
from deeppart.state.objects import DATACLASS, ObjectForm, data_of, form_of, make
from deeppart.state.paths import RANK0, Path, PerRankPolicy, exact, readable
from deeppart.state.restore import Wanted, detached, find_targets, whole_leaves
from deeppart.state.tensors import Array, leaf_type, new_array
from deeppart.state.tree import ArrayLeaf, Branch, Node, ValueLeaf, every_node, flatten, numbers_in

#: For each old rank its per-rank leaves by number.
OldLeaves = list[dict[int, Array]]


def memory_for_old_leaves(matched: Matched) -> OldLeaves:
    """Arrays for the per-rank leaves of the old ranks that are needed; [] if none are."""
    saved, own = matched.saved, matched.own
    policies = [*own.leaves.values(), *own.rank_local.values()]
    if saved.same_world or not policies:
        return []
    documents = saved.documents.own if any(map(callable, policies)) else saved.documents.own[:1]
    return [
        {
            index: new_array(document.types[index])
            for index in sorted(_asked_of(rank, document, own) & document.types.keys())
            if index not in structure.aliases
        }
        for rank, (document, structure) in enumerate(zip(documents, saved.of_ranks, strict=False))
    ]


def _asked_of(rank: int, document: RankDocument, own: RankLocalPolicies) -> set[int]:
    """Numbers of the leaves of an old rank that are needed: rank 0's, and arguments of a function."""
    found = {index for index, policy in own.leaves.items() if rank == 0 or callable(policy)}
    for tree in document.trees:
        policy = own.rank_local.get(exact(tree.path))
        if callable(policy) or (policy == RANK0 and rank == 0):
            found |= numbers_in(tree.node)
    return found | {document.aliases[index].owner for index in found & document.aliases.keys()}


def wanted_of_old(old: OldLeaves) -> Iterator[Wanted]:
    """The bytes that go into the arrays of :func:`memory_for_old_leaves`, on every rank."""
    return (each for part, arrays in enumerate(old) for each in whole_leaves(arrays, part))


def map_old_leaves(matched: Matched, old: OldLeaves, rank: int, size: int) -> None:
    """Get this rank's values and put them into the target; does not change the live state."""
    try:
        _Mapping(matched, old, (rank, size)).run()
    except DeeppartError:
        raise
    except Exception as error:
        raise StateError(
            "the per_rank function failed",
            found=f"{type(error).__name__}: {error}",
            where=f"rank {rank}",
            todo="it is called as function(path, values of the old ranks, new rank, new world size)",
        ) from error


class _Mapping:
    """Gets the per-rank values of one rank, and puts them into its target."""

    def __init__(self, matched: Matched, old: OldLeaves, place: tuple[int, int]) -> None:
        self._saved, self._flat, self._target = matched.saved, matched.flat, matched.target
        self._own, self._old = matched.own, old
        self._place = place
        self._arrays = matched.target.mapped

    def run(self) -> None:
        structure, documents = self._saved.structure, self._saved.documents.own[: len(self._old)]
        # Aliases follow their owners.
        asked = self._own.leaves.keys() - structure.aliases.keys()
        forms = _forms_of_values(structure.tree)
        for path, node in structure.walk():
            if not isinstance(node, (ArrayLeaf, ValueLeaf)) or node.index not in asked:
                continue
            number, policy = node.index, self._own.leaves[node.index]
            if isinstance(node, ArrayLeaf):
                old = [entry[number] for entry in (self._old if callable(policy) else self._old[:1])]
                self._arrays[number] = self._value_for_rank(policy, path, old)
            else:
                values = [document.values[number] for document in documents]
                made = self._value_for_rank if number not in forms else partial(self._object_for_rank, forms[number])
                self._target.values[number] = made(policy, path, values)
        self._map_rank_local()
        self._take()

    def _value_for_rank(self, policy: PerRankPolicy, path: Path, old: list[Any]) -> Any:
        """This rank's leaf, from those of the old ranks; or rank 0's, for the policy "rank0"."""
        if callable(policy):
            return detached(policy(readable(path), old, *self._place))
        return old[0]

    def _object_for_rank(self, form: ObjectForm, policy: PerRankPolicy, path: Path, old: list[Any]) -> Any:
        """The data of an object, such as a deque; the caller's function is given the old ranks' objects."""
        if not callable(policy):
            return old[0]

        def where() -> str:
            return f"path {readable(path)}, the per_rank function"

        kind = self._target.class_of(*form.about[:2]) if form.kind == DATACLASS else None
        objects = [make(form, data, kind, where) for data in old]
        found = policy(readable(path), objects, *self._place)
        theirs = form_of(found)
        data = data_of(found, form, where) if theirs is not None and theirs.kind == form.kind else found
        if type(data) is not type(old[0]):
            raise LeafMismatchError(
                "the per_rank function must return such an object as it was given",
                expected=f"a {form}, or its data, a {type(old[0]).__name__}",
                found=type(found).__name__,
                where=f"path {readable(path)}",
            )
        return detached(data)

    def _map_rank_local(self) -> None:
        """Get rank-local items: the function is given each old rank's item, or None."""
        trees = []
        for tree in self._asked_rank_local():
            policy = self._own.rank_local[exact(tree.path)]
            old = self._old if callable(policy) else self._old[:1]
            contents = [
                content_at(document, structure, arrays, tree.path)
                for document, structure, arrays in zip(
                    self._saved.documents.own, self._saved.of_ranks, old, strict=False
                )
            ]
            made = flatten(self._value_for_rank(policy, tree.path, contents))
            # Not the saved structure: leaves that only other ranks restore are no longer in this one.
            structure = self._target.structure
            numbers = range(len(structure), len(structure) + len(made.leaves))
            arrays = dict(zip(numbers, made.data, strict=False))
            values = {number: leaf.value for number, leaf in zip(numbers[len(arrays) :], made.values, strict=True)}
            node, _ = decode_tree(encode_tree(made.root, Numbers(numbers)), values, "a per_rank function")
            trees.append(RankLocalTree(tree.path, tree.position, node))
            types = {number: leaf_type(data) for number, data in arrays.items()}
            self._target.structure = structure.extended(structure.tree, types, values, per_rank=True)
            self._target.types |= types
            self._target.values |= values
            self._arrays |= arrays
            self._target.own |= set(numbers)
        structure = self._target.structure
        self._target.structure = replace(structure, tree=insert(structure.tree, trees))

    def _asked_rank_local(self) -> list[RankLocalTree]:
        """The mapped rank-local items; an item that rank 0 lacks stays unchanged for "rank0"."""
        asked = [each for each in self._saved.rank_local if exact(each.path) in self._own.rank_local]
        if divided := [each.path for each in asked if exact(each.path) in self._saved.divided_rank_local]:
            raise StructureMismatchError(
                "rank-local items, whose structure differs between ranks, can only be restored on another number of "
                "ranks as a whole and under their saved names",
                found="only some of it is asked for, or it has another name in the live state",
                where=f"path {readable(divided[0])}",
                todo=f"ask for all of {readable(divided[0])!r} under this name, or exclude it",
            )
        of_first = {exact(tree.path) for tree in self._saved.documents.own[0].trees}
        return [
            each for each in asked if callable(self._own.rank_local[exact(each.path)]) or exact(each.path) in of_first
        ]

    def _take(self) -> None:
        """Put the mapped arrays into the target, whose types become theirs."""
        paths = self._target.structure.paths()
        for index, value in self._arrays.items():
            if not isinstance(value, (torch.Tensor, np.ndarray)):
                raise LeafMismatchError(
                    "the per_rank function must return an array for an array",
                    found=type(value).__name__,
                    where=f"path {readable(paths[index])}",
                )
            self._target.types[index] = leaf_type(value)
        try:
            check_aliases(self._target.types, self._target.structure.aliases)
        except ValueError as error:
            raise LeafMismatchError(
                "the per_rank function returned too small an array for a leaf that shares its memory", found=str(error)
            ) from error
        # Leaves that only other ranks restore stay dropped: as global tensors they would be sent to all of them.
        aliases = self._target.structure.aliases
        left = self._own.left
        own = self._target.own - left - {index for index, alias in aliases.items() if alias.owner in left}
        self._target.dropped -= {index for index, alias in aliases.items() if alias.owner in own} | own
        find_targets(self._target, self._flat)


def _forms_of_values(tree: Node) -> dict[int, ObjectForm]:
    """Number of each value that is the whole data of an object -> the object's form."""
    found: dict[int, ObjectForm] = {}
    for _, node in every_node(tree, ()):
        if isinstance(node, Branch) and node.form is not None and isinstance(node.children[0], ValueLeaf):
            found[node.children[0].index] = node.form
    return found
