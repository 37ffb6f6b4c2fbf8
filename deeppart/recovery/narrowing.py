"""Of a step, what the caller of ``restore`` asks for, on one rank and on all."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace

from deeppart.comm.base import Comm
from deeppart.comm.waiting import finish
from deeppart.errors import CorruptFileError
from deeppart.recovery.saved import SavedStep
from deeppart.state.document.structure import DICTS, SavedArray, SavedNode, SavedValue, walk_tree
from deeppart.state.restore.choosing import Choice, choose, needs_choice
from deeppart.state.restore.request import Request
from deeppart.state.restore.target import decode_values
from deeppart.state.tree.flat import Branch, FlatState
from deeppart.state.tree.paths import IdKey, Path, exact, id_key

#: Keys of the outermost dict of live states; None where everything is asked for.
Outermost = Collection[IdKey] | None


def outermost_keys(flat: FlatState, comm: Comm, what: str, timeout: float) -> Outermost:
    """The keys of the outermost dict of any rank's live state (collective).

    None where that is no dict, or, on all ranks, an empty one. What no rank has a place for is not asked for. Keys that
    are no texts are not compared: who has any asks for everything.
    """
    root = flat.root
    is_dict = isinstance(root, Branch) and root.kind in DICTS and all(type(key) is str for key in root.keys)
    mine = json.dumps(list(root.keys) if is_dict and isinstance(root, Branch) else None).encode()
    told = [json.loads(text) for text in finish(comm, comm.allgather(mine), what, timeout)]
    if any(keys is None for keys in told):
        return None
    return {key for keys in told for key in keys} or None


def narrowed(
    saved: SavedStep, flat: FlatState, request: Request, outermost: Outermost
) -> tuple[SavedStep, Choice | None]:
    """A step less what is not asked for, with the names of the live state; and what was chosen, unless it is all.

    What each rank has saved for itself is left out by what all ranks ask for, not by what this one has a place for: so
    all of them go on with the same.

    Raises:
        StructureMismatchError: as of :func:`~deeppart.state.restore.choosing.choose`.
    """
    tree = saved.structure.tree
    if not needs_choice(tree, flat.root, request, outermost):
        return saved, None
    values = decode_values(saved.structure, f"step {saved.attempt.step}")
    choice = choose(tree, flat.root, values, request, outermost)

    def asked(path: Path) -> bool:
        here: Path = ()
        for key in path:
            here = (*here, request.renamed(here, key)[0])
        known = request.keys is not None or outermost is None or not here or id_key(here[0]) in outermost
        return known and request.asks_for(here)

    own = [(path, node) for path, node in walk_tree(tree, ()) if _is_own(saved, node) and asked(path)]
    before, after = _arrays(tree), _arrays(choice.tree)
    if not after <= before:
        raise CorruptFileError("a leaf stands twice in the structure of a checkpoint", where=f"{saved.attempt.step}")
    step = replace(
        saved,
        structure=replace(saved.structure, tree=choice.tree),
        own_leaves=frozenset(node.index for _, node in own if isinstance(node, SavedArray)),
        own_values=frozenset(node.index for _, node in own if isinstance(node, SavedValue)),
        apart=tuple(each for each in saved.apart if asked(each.path)),
        tree_as_saved=tree,
        left_out=frozenset(before - after),
        left_apart=frozenset(exact(each.path) for each in saved.apart if not asked(each.path)),
    )
    return step, choice


def _is_own(saved: SavedStep, node: SavedNode) -> bool:
    if isinstance(node, SavedArray):
        return node.index in saved.own_leaves
    return isinstance(node, SavedValue) and node.index in saved.own_values


def _arrays(tree: SavedNode) -> set[int]:
    return {node.index for _, node in walk_tree(tree, ()) if isinstance(node, SavedArray)}
