"""Finds the differences between the structures of the ranks' states, and checks that they are allowed.

Only used if the ranks' fingerprints of the structure differ. Rank 0 broadcasts its structure; each rank finds its
differences; all ranks gather these, and divide their states at the same paths. The items there are saved per rank.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from deeppart.comm import Comm, finish
from deeppart.errors import StructureMismatchError, on_ranks
from deeppart.state.document import decode_path, encode_path
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
from deeppart.state.tree import (
    DICTS,
    ArrayLeaf,
    Branch,
    Node,
    RankLocal,
    ShardedLeaf,
    UnmadeLeaf,
    ValueLeaf,
    container_kind,
)
from deeppart.state.values import encode_key

#: Kinds of nodes as described to other ranks, besides those of containers: [kind, items].
_ARRAY, _VALUE, _NONE, _RANK_LOCAL = "array", "value", "none", "rank_local"
_VALUES_IN = "container of small values in a "
_SHARDED = "sharded tensor "
_COMPOSITE = "composite tensor, "
_FORM = "object saved as a "


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
    mine = _describe(root)
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


def _describe(node: Node) -> list[Any]:
    """A tree as JSON: [kind] of a leaf, [kind, items] of a list or tuple, [kind, [key, item] ...] of others; and
    [kind, data] of an object without a ``state_dict()``.
    """
    if isinstance(node, ArrayLeaf):
        return [_ARRAY]
    if isinstance(node, ValueLeaf):
        kind = container_kind(node.value)
        return [_NONE if node.value is None else _VALUE] if kind is None else [_VALUES_IN + kind]
    if isinstance(node, RankLocal):
        return [_RANK_LOCAL]
    if isinstance(node, ShardedLeaf):
        return [f"{_SHARDED}{node.kind}"]
    if isinstance(node, UnmadeLeaf):
        raise TypeError("a tensor without memory is in no state that is saved")
    if node.kind in COMPOSITES:
        return [_describe_composite(node)]
    if node.form is not None:
        return [f"{_FORM}{node.form}", _describe(node.children[0])]
    if node.kind == "object":
        return _describe(node.children[0])
    if node.kind in ("list", "tuple"):
        return [node.kind, [_describe(child) for child in node.children]]
    kind = node.kind
    if kind == "namedtuple":
        kind += f" {node.name}"
    items = [(key, _describe(child)) for key, child in zip(node.keys, node.children, strict=True)]
    if kind == "odict":
        place = {id_key(key): at for at, key in enumerate(node.container)}
        items.sort(key=lambda item: place[id_key(item[0])])
    return [kind, [[encode_key(key, "a dict key"), item] for key, item in items]]


def _describe_composite(node: Branch) -> str:
    """All of its structure in one text: it is either the same on all ranks or saved per rank as a whole."""
    inner = [f"{key} {_describe(child)[0]}" for key, child in zip(node.keys, node.children, strict=True)]
    return f"{_COMPOSITE}{node.kind} {node.name}({', '.join(inner)})"


def _differences(reference: list[Any], mine: list[Any], path: Path, replication: Replication) -> Iterator[Difference]:
    """The paths at which this rank's state differs from rank 0's."""
    if _RANK_LOCAL in (reference[0], mine[0]):
        return
    if reference[0] == mine[0] and len(mine) == 1:
        return
    if reference[0] == mine[0] and mine[0].startswith(_FORM):
        yield from _differences(reference[1], mine[1], path, replication)
        return
    if reference[0] == mine[0] and mine[0] in ("list", "tuple"):
        if len(reference[1]) == len(mine[1]):
            for place, (one, other) in enumerate(zip(reference[1], mine[1], strict=True)):
                yield from _differences(one, other, (*path, place), replication)
            return
    elif reference[0] == mine[0]:
        if mine[0] == "odict" and path and replication.mode(path) != ALL and _order_differs(reference[1], mine[1]):
            yield Difference(path, True, f"has the keys of {readable(path)} in another order than rank 0")
            return
        yield from _key_differences(reference[1], mine[1], path, replication)
        return
    if {reference[0], mine[0]} == {_NONE, _VALUE}:
        return  # values may differ, also from None
    text = f"has {_name(mine)} at {readable(path)}, rank 0 {_name(reference)}"
    mode = replication.mode(path)
    yield Difference(path, mode == NONE or (mode != ALL and _may_differ(reference, mine, path)), text)


def _key_differences(
    reference: list[Any], mine: list[Any], path: Path, replication: Replication
) -> Iterator[Difference]:
    theirs = {json.dumps(key): (key, item) for key, item in reference}
    ours = {json.dumps(key): (key, item) for key, item in mine}
    has_shards = any(_holds_shards(item) for _, item in (*reference, *mine))
    both = {**theirs, **ours}
    keys = [decode_path([key], "a structure sent by another rank")[0] for key, _ in both.values()]
    # A dict has either 1 or True as a key, a file may have both: no dict can be the union.
    equal = len(set(keys)) < len(keys)
    for (text, (_, item)), decoded in zip(both.items(), keys, strict=True):
        inner = (*path, decoded)
        if text in theirs and text in ours:
            yield from _differences(theirs[text][1], ours[text][1], inner, replication)
        elif item[0] != _RANK_LOCAL:
            verb = "has" if text in ours else "lacks"
            is_own, shown = replication.mode(inner) == NONE, f"{verb} {_name(item)} at {readable(inner)}"
            allowed = not is_own and not equal and (has_shards or replication.in_parts(inner))
            is_part = allowed and all(replication.mode(path) not in (NONE, RANK0) for path in _paths(item, inner))
            yield Difference(inner, allowed or is_own, shown, is_part)


def _order_differs(reference: list[Any], mine: list[Any]) -> bool:
    """True if the keys that both OrderedDicts have are in different orders."""
    theirs, ours = ([json.dumps(key) for key, item in items if item[0] != _RANK_LOCAL] for items in (reference, mine))
    common = set(theirs) & set(ours)
    return [key for key in theirs if key in common] != [key for key in ours if key in common]


def _may_differ(one: list[Any], other: list[Any], path: Path) -> bool:
    """True if an item is saved per rank without being declared so: lists of different lengths, and None where others
    have an item.
    """
    kinds = {one[0].removeprefix(_VALUES_IN), other[0].removeprefix(_VALUES_IN)}
    if len(kinds) == 1:  # lists or tuples of different lengths, or one of few values and one of many
        return kinds <= {"list", "tuple"} or all(_VALUES_IN in each[0] or _holds_values(each) for each in (one, other))
    return bool(path) and _NONE in (one[0], other[0])


def _holds_values(described: list[Any]) -> bool:
    """True if a dict has only small values."""
    return described[0] in DICTS and all(_is_plain(item) for _, item in described[1])


def _is_plain(described: list[Any]) -> bool:
    """True if a container has only small values, to any depth."""
    kind = described[0]
    if kind in ("list", "tuple"):
        return all(map(_is_plain, described[1]))
    return kind in (_VALUE, _NONE) or kind.startswith(_VALUES_IN) or _holds_values(described)


def _holds_shards(described: list[Any]) -> bool:
    """True if a container has sharded tensors: pipeline stages have different layers on different ranks."""
    return any(kind.startswith(_SHARDED) for kind in _kinds(described))


def _kinds(described: list[Any]) -> Iterator[str]:
    """The kind of each leaf."""
    for _, kind in _leaves(described, ()):
        yield kind


def _paths(described: list[Any], path: Path) -> Iterator[Path]:
    """The path of each leaf below a path."""
    for keys, _ in _leaves(described, ()):
        yield *path, *decode_path(list(keys), "a structure sent by another rank")


def _leaves(described: list[Any], keys: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
    """The encoded keys of each leaf, and its kind."""
    kind = described[0]
    if kind in ("list", "tuple"):
        for place, item in enumerate(described[1]):
            yield from _leaves(item, (*keys, place))
    elif kind.startswith(_FORM):
        yield from _leaves(described[1], keys)
    elif len(described) == 2:
        for key, item in described[1]:
            yield from _leaves(item, (*keys, key))
    else:
        yield keys, kind


def _name(described: list[Any]) -> str:
    kind = described[0]
    if kind.startswith((_SHARDED, _COMPOSITE, _FORM)):
        return f"{'an' if kind.startswith(_FORM) else 'a'} {kind}"
    if len(described) == 2:
        return f"{name_kind(kind)} of {len(described[1])}"
    if kind.startswith(_VALUES_IN):
        return f"a container of small values in {name_kind(kind.removeprefix(_VALUES_IN))}"
    return {_ARRAY: "an array", _VALUE: "a small value", _NONE: "None"}.get(kind, name_kind(kind))
