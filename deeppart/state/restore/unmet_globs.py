"""Globs and rules of a restore that meet nothing: misspelt, most likely; or with names that a wrapper has changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from deeppart.errors import StructureMismatchError
from deeppart.state.document.structure import DICTS, SavedBranch, SavedNode
from deeppart.state.restore.request import Request, matched
from deeppart.state.restore.wrappers import bare_name
from deeppart.state.tree.flat import Branch, Node
from deeppart.state.tree.globs import covers, nearest_globs
from deeppart.state.tree.paths import Path, readable

_BOTH_KINDS = (
    "`deeppart show DIR` lists the names; a pattern without `/` is compared with single keys, one with `/` with whole "
    "paths, in which `*` does not go beyond a `/`"
)


def unmet_globs(request: Request, saved: SavedNode, live: Node, others: Iterable[Path]) -> list[str]:
    """Those of ``keys`` and ``exclude`` that cover nothing in the checkpoint or in the live state, and what is like
    them.
    """
    left = dict.fromkeys((*(request.keys or ()), *request.exclude))
    for glob in request.settings:
        left.pop(glob, None)
    others = list(others)
    for path in map(readable, chain(others, _paths(saved, ()), _paths(live, ()))):
        if not left:
            return []
        for glob in [each for each in left if covers(path, [each])]:
            del left[glob]
    known = dict.fromkeys(map(readable, chain(others, _paths(saved, ()), _paths(live, ())))) if left else {}
    return [f"{glob} (perhaps {' or '.join(near)})" if (near := nearest_globs(glob, known)) else glob for glob in left]


def no_such_keys(request: Request, saved: SavedNode, live: Node) -> StructureMismatchError:
    """The refusal of ``keys`` that cover nothing, or nothing that is not excluded."""
    known = dict.fromkeys(map(readable, (*_paths(saved, ()), *_paths(live, ()))))
    keys = request.keys or ()
    near = [other for glob in keys for other in nearest_globs(glob, known) if not _covers_any(glob, known)]
    return StructureMismatchError(
        "nothing in the checkpoint or the live state matches the keys asked for, or it is excluded",
        expected=f"globs over paths{', such as ' + ', '.join(dict.fromkeys(near)) if near else ''}",
        found=f"keys {', '.join(keys)}",
        todo="`deeppart show DIR` lists the paths",
    )


def _covers_any(glob: str, paths: Iterable[str]) -> bool:
    """True if a glob covers any of these paths."""
    return any(covers(path, [glob]) for path in paths)


def no_such_names(patterns: Sequence[str], saved: SavedNode) -> StructureMismatchError:
    """The refusal of rules of ``rename`` that match no name in the checkpoint."""
    error = StructureMismatchError(
        "a rule of rename matches nothing in the checkpoint", found=", ".join(patterns), todo=_BOTH_KINDS
    )
    for pattern in patterns:
        for path, name in _names(saved, ()):
            if (meant := _with_wrapper(pattern, path, name)) is not None:
                error.expected = f"a pattern of names as they were saved, such as {name!r}"
                error.todo = (
                    f"write {meant!r}: one of the two has a word of a wrapper in it (DistributedDataParallel module., "
                    "torch.compile _orig_mod.), and rules are compared with names as they are in the checkpoint"
                )
                return error
    return error


def _with_wrapper(pattern: str, path: Path, name: str) -> str | None:
    """A pattern that matches a name, and differs from one that does not by words of wrappers alone; None if none."""
    place, separator, last = pattern.rpartition("/")
    bare = bare_name(name)
    prefix = name[: len(name) - len(bare)]
    if bare and prefix and name.endswith(bare):
        meant = f"{place}{separator}{prefix}{last}"
    else:
        meant = f"{place}{separator}{bare_name(last)}"
    return meant if meant != pattern and matched(meant, path, name) is not None else None


def _names(node: SavedNode, path: Path) -> Iterator[tuple[Path, str]]:
    """The keys of all dicts that are texts, and where the dict is."""
    if not isinstance(node, SavedBranch):
        return
    for key, child in zip(node.keys, node.children, strict=True):
        if node.kind in DICTS and type(key) is str:
            yield path, key
        yield from _names(child, path if node.kind == "object" else (*path, key))


def _paths(node: SavedNode | Node, path: Path) -> Iterator[Path]:
    """Of all that is in a tree, containers too."""
    if path:
        yield path
    if isinstance(node, (SavedBranch, Branch)):
        keys = [None] if node.kind == "object" else node.keys
        for key, child in zip(keys, node.children, strict=True):
            yield from _paths(child, path if node.kind == "object" else (*path, key))
