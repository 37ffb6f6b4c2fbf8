"""Globs of a restore that meet nothing: misspelt, most likely, beside others that meet something."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from deeppart.state.document.structure import SavedBranch, SavedNode
from deeppart.state.restore.request import Request
from deeppart.state.tree.flat import Branch, Node
from deeppart.state.tree.paths import Path, readable
from deeppart.state.tree.patterns import covers


def unmet_globs(request: Request, saved: SavedNode, live: Node, others: Iterable[Path]) -> list[str]:
    """Those of ``keys`` and ``exclude`` that cover nothing in the checkpoint or in the live state.

    Args:
        others: paths of what is in the checkpoint, and not in its tree.
    """
    left = dict.fromkeys((*(request.keys or ()), *request.exclude))
    for glob in request.settings:
        left.pop(glob, None)
    for path in (*others, *_paths(saved, ()), *_paths(live, ())):
        if not left:
            break
        text = readable(path)
        for glob in [each for each in left if covers(text, [each])]:
            del left[glob]
    return list(left)


def _paths(node: SavedNode | Node, path: Path) -> Iterator[Path]:
    """Of all that is in a tree, containers too."""
    if path:
        yield path
    if isinstance(node, (SavedBranch, Branch)):
        keys = [None] if node.kind == "object" else node.keys
        for key, child in zip(keys, node.children, strict=True):
            yield from _paths(child, path if node.kind == "object" else (*path, key))
