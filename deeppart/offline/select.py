"""The part of a checkpoint that globs over paths cover."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from deeppart.errors import StructureMismatchError
from deeppart.state.document.structure import SavedArray, SavedBranch, SavedNode, SavedValue, Structure
from deeppart.state.tree.composites import COMPOSITES
from deeppart.state.tree.globs import covers, may_match_below, nearest_globs
from deeppart.state.tree.objects import REGISTERED
from deeppart.state.tree.paths import ROOT, readable
from deeppart.state.tree.runs import CONTAINERS, make_run, run_items, run_kind


def select(structure: Structure, values: list[Any], patterns: Sequence[str] | None) -> tuple[SavedNode, set[int]]:
    """The part of the tree that the globs cover, and the leaf numbers in it; cuts runs to the items that they cover."""
    if patterns is None:
        return structure.tree, set(_arrays(structure.tree))
    kept: set[int] = set()

    def prune(node: SavedNode, path: tuple[Any, ...]) -> SavedNode | None:
        text = readable(path)
        container = not isinstance(node, SavedArray)
        if (path or not isinstance(node, SavedBranch)) and covers(text, patterns, container=container):
            kept.update(_arrays(node))
            return node
        if not isinstance(node, SavedBranch):
            return _select_items(node, values, text, patterns) if isinstance(node, SavedValue) else None
        inner = [
            (key, prune(child, path if node.kind == "object" else (*path, key)))
            for key, child in zip(node.keys, node.children, strict=True)
        ]
        found = [(key, child) for key, child in inner if child is not None]
        if not found:
            return None
        if node.kind in COMPOSITES:  # a tensor is wanted as a whole
            kept.update(_arrays(node))
            return node
        children = tuple(child for _, child in found)
        whole = len(found) == len(node.children)
        kind = node.kind if whole or node.kind != "namedtuple" else "dict"  # a namedtuple needs all its fields
        form = node.form if node.form is None or node.form.kind != REGISTERED else None  # it needs all of its data
        return replace(node, kind=kind, keys=tuple(key for key, _ in found), children=children, form=form)

    tree = prune(structure.tree, ())
    if tree is None:
        names = sorted(readable(path) for path, _ in structure.walk())
        near = dict.fromkeys(other for pattern in patterns for other in nearest_globs(pattern, names))
        raise StructureMismatchError(
            "no leaf of the checkpoint matches the keys asked for",
            expected=f"globs over {len(names)} paths such as {', '.join(near or names[:4])}",
            found=", ".join(map(repr, patterns)),
            todo="`deeppart show DIR` lists the paths",
        )
    return tree, kept


def _arrays(node: SavedNode) -> Iterator[int]:
    """Numbers of the leaves in a tree."""
    if isinstance(node, SavedArray):
        yield node.index
    elif isinstance(node, SavedBranch):
        for child in node.children:
            yield from _arrays(child)


def _select_items(node: SavedValue, values: list[Any], path: str, patterns: Sequence[str]) -> SavedValue | None:
    """A run of which some items are covered: their paths are those that they would have one by one."""
    value = values[node.index]
    beneath = [pattern for pattern in patterns if may_match_below(path, pattern)]
    if run_kind(value) is None or not beneath:
        return None
    chosen = _choose(value, "" if path == ROOT else f"{path}/", beneath)
    if chosen is None:
        return None
    values[node.index] = chosen
    return node


def _choose(value: Any, prefix: str, patterns: Sequence[str]) -> Any:
    """A container of a run, less the items that are not covered; None if that is all."""
    found = []
    for key, item in zip(*run_items(value), strict=True):
        path = prefix + readable((key,))
        if covers(path, patterns):
            found.append((key, item))
        elif type(item) in CONTAINERS:
            inner = _choose(item, f"{path}/", patterns)
            if inner is not None:
                found.append((key, inner))
    if not found:
        return None
    return make_run(run_kind(value) or "", [key for key, _ in found], [item for _, item in found])
