"""What a restore has done on this rank: its report, and what the caller's functions are told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deeppart.errors import DeeppartError, StateError
from deeppart.model.reports import RestoreReport
from deeppart.recovery.matching import Matched
from deeppart.state.document.structure import SavedArray, SavedValue, walk_tree
from deeppart.state.restore.request import Asked
from deeppart.state.tree.flat import ArrayLeaf, Branch, Node, ShardedLeaf, ValueLeaf
from deeppart.state.tree.leaves import Array, leaf_type
from deeppart.state.tree.paths import Path, id_key, id_keys, readable


def report_of(matched: Matched, loaded_bytes: int, saved_bytes: int) -> RestoreReport:
    """The report of a restore that has ended."""
    target, choice = matched.target, matched.choice
    placed = list(walk_tree(target.structure.tree, ()))
    names = {node.index: readable(path) for path, node in placed if isinstance(node, SavedArray)}
    live = {index: leaf_type(data).dtype for index, data in target.casts.items()}
    live |= {index: target.sharded[index].kind.dtype for index in target.cast_shards}
    told = () if choice is None else (choice.missing, choice.unexpected, choice.beside, choice.unwrapped)
    missing, unexpected, beside, unwrapped = ([readable(path) for path in paths] for paths in told or ([], [], [], []))
    return RestoreReport(
        matched.saved.attempt.step,
        leaves=len(names.keys() - target.dropped),
        values=sum(isinstance(node, SavedValue) for _, node in placed),
        loaded_bytes=loaded_bytes,
        saved_bytes=saved_bytes,
        missing=tuple(missing),
        unexpected=tuple(unexpected),
        left_out=tuple(beside),
        cast={names[index]: (target.types[index].dtype, dtype) for index, dtype in sorted(live.items())},
        renamed={} if choice is None else {readable(old): readable(new) for old, new in choice.renamed},
        unwrapped=tuple(unwrapped),
    )


def to_cast(matched: Matched, arrays: Mapping[int, Array]) -> Iterator[tuple[Array, Array]]:
    """The live arrays of another dtype than was saved, and what each gets."""
    target = matched.target
    for index, data in target.casts.items():
        if index not in target.dropped:
            yield data, arrays[index]
    for index, shards in target.cast_shards.items():
        if index in target.sharded:
            live = (matched.flat.data[number] for number in target.sharded[index].numbers)
            yield from zip(live, shards, strict=True)


def call_back(matched: Matched, asked: Asked) -> None:
    """Call the functions of the caller."""
    choice = matched.choice
    if choice is None:
        return
    if asked.on_missing is not None:
        for path in choice.missing:
            _call("on_missing", asked.on_missing, path, _live_item(matched, path))
    if asked.on_unexpected is not None:
        for path in choice.unexpected:
            _call("on_unexpected", asked.on_unexpected, path)


def _call(name: str, function: Any, path: Path, *more: Any) -> None:
    try:
        function(readable(path), *more)
    except DeeppartError:
        raise
    except Exception as error:
        raise StateError(
            f"the {name} function failed; everything else has been restored",
            found=f"{type(error).__name__}: {error}",
            where=f"path {readable(path)}",
        ) from error


def _live_item(matched: Matched, path: Path) -> Any:
    """What is at a path of the live state: a tensor, array, value, container or object."""
    node: Node = matched.flat.root
    for key in path:
        while isinstance(node, Branch) and node.kind == "object":
            node = node.children[0]
        assert isinstance(node, Branch)
        node = node.children[list(id_keys(node.keys)).index(id_key(key))]
    if isinstance(node, ArrayLeaf):
        return matched.flat.data[node.index]
    if isinstance(node, ShardedLeaf):
        return node.item
    if isinstance(node, ValueLeaf):
        return node.value
    return node.container if isinstance(node, Branch) else None
