"""Finds the differences between the structures of the ranks' states, and checks that they are allowed.

Only used if the ranks' fingerprints of the structure differ. Rank 0 broadcasts its structure; each rank finds its
differences; all ranks gather these, and divide their states at the same paths. The items there are saved per rank.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deeppart.comm import Comm, finish
from deeppart.errors import StructureMismatchError, on_ranks
from deeppart.state.document import decode_path, encode_path, outline
from deeppart.state.objects import ABOUT, ObjectForm
from deeppart.state.paths import (
    ALL,
    NONE,
    RANK0,
    ExactPath,
    Path,
    Replication,
    exact,
    id_key,
    name_kind,
    readable,
    some_names,
)
from deeppart.state.tensors import COMPOSITES
from deeppart.state.tree import CONTAINER_KINDS, Leaf, Node, ShardedLeaf, ValueLeaf, container_kind

#: Kinds of leaves as described to other ranks (:func:`~deeppart.state.document.outline`).
_ARRAY, _VALUE, _NONE, _RANK_LOCAL = "array", "small value", "none", "r"
_SHARDED, _VALUES_IN = "sharded tensor", "small values in"
#: Items of the outline of a container.
_CONTAINER_ITEMS = 4


@dataclass(frozen=True, slots=True)
class Difference:
    """A path at which a rank has something else than rank 0.

    Attributes:
        path: its path.
        allowed: true if it may be saved per rank.
        text: the difference, for people.
        expected: true if it needs no warning: some ranks have a part of the model that others lack.
    """

    path: Path
    allowed: bool
    text: str
    expected: bool = False


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The result of :func:`reconcile`.

    Attributes:
        cuts: the paths at which each rank saves its own item.
        noticed: those of them that the user has not declared as per rank.
        parts: those at which some ranks have a part of the state that others lack.
    """

    cuts: frozenset[ExactPath]
    noticed: tuple[str, ...]
    parts: frozenset[ExactPath] = frozenset()


def reconcile(comm: Comm, root: Node, replication: Replication, what: str, timeout: float) -> Reconciled:
    """Find the paths at which the ranks' states must be divided (collective)."""
    mine = outline(root, _described, ordered=True)
    reference = json.loads(finish(comm, comm.broadcast(json.dumps(mine).encode()), what, timeout))
    found = list(_differences(reference, mine, (), replication))
    texts = [[encode_path(each.path), each.allowed, each.text, each.expected] for each in found]
    everyone = [json.loads(text) for text in finish(comm, comm.allgather(json.dumps(texts).encode()), what, timeout)]
    refused = [
        f"rank {rank} {text}" for rank, entries in enumerate(everyone) for _, allowed, text, _ in entries if not allowed
    ]
    if refused:
        error = StructureMismatchError(
            f"{what}: the state's structure differs between ranks",
            expected="the same containers, keys and leaves on every rank, as on rank 0",
            found=some_names(refused, "; ", 6),
            where=f"seen by rank {comm.rank}",
            todo="give every rank the same keys, with None where one has nothing (shapes, dtypes and the lengths of "
            'lists may differ); or declare the difference: replicated={"the/path/*": "parts"} if ranks have parts of '
            'one state, as pipeline stages do, "none" if it is each rank\'s own',
        )
        raise on_ranks(error, comm.rank)
    paths = {exact(path): path for entries in everyone for path in (decode_path(each[0], what) for each in entries)}
    cuts = {key: path for key, path in paths.items() if not any(key[:end] in paths for end in range(len(key)))}
    expected = {exact(decode_path(each[0], what)) for entries in everyone for each in entries if each[3]}
    noticed = tuple(
        readable(path) for key, path in cuts.items() if replication.mode(path) != NONE and key not in expected
    )
    return Reconciled(frozenset(cuts), noticed, frozenset(expected & cuts.keys()))


def _described(leaf: Leaf) -> list[Any]:
    """A leaf in the outline of a tree; containers of small values are distinguished from single ones."""
    if isinstance(leaf, ValueLeaf):
        kind = container_kind(leaf.value)
        return [_VALUES_IN, kind] if kind is not None else [_NONE if leaf.value is None else _VALUE]
    return [_SHARDED, str(leaf.kind)] if isinstance(leaf, ShardedLeaf) else [_ARRAY]


def _differences(reference: list[Any], mine: list[Any], path: Path, replication: Replication) -> Iterator[Difference]:
    """The paths at which this rank's state differs from rank 0's."""
    # Only as text are 1, 1.0 and True different keys.
    if (reference == mine and json.dumps(reference) == json.dumps(mine)) or _RANK_LOCAL in (reference[0], mine[0]):
        return
    if {reference[0], mine[0]} == {_NONE, _VALUE}:
        return  # values may differ, also from None
    if reference[:2] == mine[:2] and _is_divisible(reference) and _is_divisible(mine):
        if mine[2] is not None:
            yield from _key_differences(reference, mine, path, replication)
            return
        if len(reference[3]) == len(mine[3]):
            for (inner, one), (_, other) in zip(_items(reference, path), _items(mine, path), strict=True):
                yield from _differences(one, other, inner, replication)
            return
    text = f"has {_name(mine)} at {readable(path)}, rank 0 {_name(reference)}"
    mode = replication.mode(path)
    yield Difference(path, mode == NONE or (mode != ALL and _may_differ(reference, mine, path)), text)


def _key_differences(
    reference: list[Any], mine: list[Any], path: Path, replication: Replication
) -> Iterator[Difference]:
    theirs = {id_key(inner[-1]): (inner, item) for inner, item in _items(reference, path)}
    ours = {id_key(inner[-1]): (inner, item) for inner, item in _items(mine, path)}
    in_order = [key for key in ours if key in theirs] == [key for key in theirs if key in ours]
    if not in_order and path and replication.mode(path) != ALL:
        yield Difference(path, True, f"has the keys of {readable(path)} in another order than rank 0")
        return
    both = {**theirs, **ours}
    # Pipeline stages have different layers on different ranks.
    has_shards = any(kind[0] == _SHARDED for _, item in both.values() for _, kind in _leaves(item, ()))
    # A dict has either 1 or True as a key, a file may have both: no dict can be the union.
    equal = len({inner[-1] for inner, _ in both.values()}) < len(both)
    for key, (inner, item) in both.items():
        if key in theirs and key in ours:
            yield from _differences(theirs[key][1], item, inner, replication)
            continue
        verb = "has" if key in ours else "lacks"
        is_own, shown = replication.mode(inner) == NONE, f"{verb} {_name(item)} at {readable(inner)}"
        allowed = not is_own and not equal and (has_shards or replication.in_parts(inner))
        is_part = allowed and all(replication.mode(leaf) not in (NONE, RANK0) for leaf, _ in _leaves(item, inner))
        yield Difference(inner, allowed or (is_own and not equal), shown, is_part)


def _may_differ(one: list[Any], other: list[Any], path: Path) -> bool:
    """True if an item is saved per rank without being declared so: lists of different lengths, and None where others
    have an item.
    """
    kinds = {each[1] if each[0] == _VALUES_IN else each[0] for each in (one, other)}
    if len(kinds) == 1:  # lists or tuples of different lengths, or one of few values and one of many
        return kinds <= {"list", "tuple"} or (_is_plain(one) and _is_plain(other))
    return bool(path) and _NONE in (one[0], other[0])


def _is_plain(node: list[Any]) -> bool:
    """True if a container has only small values, to any depth."""
    if len(node) == _CONTAINER_ITEMS:
        return node[0] in CONTAINER_KINDS and all(map(_is_plain, node[3]))
    return node[0] in (_VALUE, _NONE, _VALUES_IN)


def _is_divisible(node: list[Any]) -> bool:
    """True for a container whose items may differ: a composite tensor is the same on all ranks, or saved per rank."""
    return len(node) == _CONTAINER_ITEMS and node[0] not in COMPOSITES


def _items(node: list[Any], path: Path) -> list[tuple[Path, list[Any]]]:
    """The items of a container with their paths; that of an object has the object's path."""
    kind, _, keys, children = node
    if kind in ABOUT:
        return [(path, children[0])]
    names: Sequence[Any] = range(len(children)) if keys is None else decode_path(keys, "a rank's structure")
    return [((*path, name), child) for name, child in zip(names, children, strict=True)]


def _leaves(node: list[Any], path: Path) -> Iterator[tuple[Path, list[Any]]]:
    """The leaves and composite tensors of an outline with their paths."""
    if not _is_divisible(node):
        yield path, node
        return
    for inner, child in _items(node, path):
        yield from _leaves(child, inner)


def _name(node: list[Any]) -> str:
    kind, *about = node
    if kind in ABOUT:
        return f"an object saved as a {ObjectForm(kind, tuple(about[0]))}"
    if kind in COMPOSITES:
        inner = ", ".join(f"{key} {child[0]}" for key, child in zip(about[1], about[2], strict=True))
        return f"a composite tensor, {kind} {about[0] or ''}({inner})"
    if len(node) == _CONTAINER_ITEMS:
        return f"{name_kind(kind if about[0] is None else f'{kind} {about[0]}')} of {len(about[2])}"
    if kind == _VALUES_IN:
        return f"a container of small values in {name_kind(about[0])}"
    return "None" if kind == _NONE else " ".join([f"{'an' if kind == _ARRAY else 'a'} {kind}", *about])
