"""The live state that a restore fills, and the items of a step that are requested, on one rank and on all."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
import torch

from deeppart._gc import collection_paused
from deeppart.comm import Comm, finish, together
from deeppart.errors import CorruptFileError, DeeppartError, StateError, UnsupportedLeafError
from deeppart.recovery.saved import SavedStep
from deeppart.state.objects import is_optimizer
from deeppart.state.paths import ExactPath, Excluded, IdKey, Path, exact, readable
from deeppart.state.restore import Choice, Request, choose, unmet_globs
from deeppart.state.tensors import check_tensor
from deeppart.state.tree import (
    DICTS,
    Branch,
    FlatState,
    Node,
    RankLocal,
    RankLocalRules,
    every_node,
    flatten,
    numbers_in,
    walk_tree,
)
from deeppart.state.values import encode_value

#: Keys of the outermost dict of live states; None if everything is requested.
Outermost = Collection[IdKey] | None


@dataclass(frozen=True, slots=True)
class LiveState:
    """The live state of a rank, and the request of its caller.

    Attributes:
        flat: the flattened state.
        request: what to restore of the step; the same on all ranks.
        outermost: see :func:`outermost_keys`.
    """

    flat: FlatState
    request: Request
    outermost: Outermost = None


def look_at_live(state: Any, request: Request, comm: Comm, timeout: float, *, is_filled: bool = True) -> LiveState:
    """Flatten the live state of each rank (collective)."""
    excluded = request.settings
    what = "flattening the live state failed", ("restore", timeout)
    flat = together(comm, lambda: flatten_live(state, excluded, is_filled=is_filled), *what)
    return LiveState(flat, request, outermost_keys(flat, request, comm, "restore", timeout))


def outermost_keys(flat: FlatState, request: Request, comm: Comm, what: str, timeout: float) -> Outermost:
    """The keys of the outermost dict of any rank's live state (collective).

    Only items under these are requested. None, for everything, if ``keys`` are given, or the root is no dict, or empty
    on all ranks, or has keys that are not texts, which are not compared.
    """
    if request.keys is not None:
        return None
    root = flat.root
    is_dict = isinstance(root, Branch) and root.kind in DICTS and all(type(key) is str for key in root.keys)
    mine = json.dumps(list(root.keys) if is_dict and isinstance(root, Branch) else None).encode()
    received = [json.loads(text) for text in finish(comm, comm.allgather(mine), what, timeout)]
    if any(keys is None for keys in received):
        return None
    return {key for keys in received for key in keys} or None


def narrowed(saved: SavedStep, flat: FlatState, request: Request, outermost: Outermost) -> tuple[SavedStep, Choice]:
    """A step without the items that are not requested, under the names of the live state; and the selection.

    It has the per-rank items that this rank can take; see :func:`with_own_of_all`.
    """
    tree = saved.structure.tree
    choice = choose(tree, flat.root, saved.structure.values, request, outermost)
    if choice.tree is tree and request.is_default:
        return saved, choice
    choice.unmet = unmet_globs(request, tree, flat.root, [each.path for each in saved.rank_local])
    before, after = numbers_in(tree), numbers_in(choice.tree)
    if not after <= before:
        raise CorruptFileError("a leaf is twice in the structure of a checkpoint", where=f"{saved.attempt.step}")
    rank_local, divided = _asked_rank_local(saved, choice.tree, request)
    step = replace(
        saved,
        structure=replace(saved.structure, tree=choice.tree),
        own=saved.own & after,
        rank_local=tuple(each for each in saved.rank_local if exact(each.path) in rank_local),
        tree_as_saved=tree,
        left_out=frozenset(before - after),
        divided_rank_local=frozenset(divided),
    )
    return step, choice


def with_own_of_all(saved: SavedStep, whole: SavedStep, comm: Comm, what: str, timeout: float) -> SavedStep:
    """A step with all per-rank items of the old ranks that any rank restores (collective).

    Live states may have different names and items, but all ranks receive the old ranks' leaves together. Not needed if
    as many ranks restore the step as saved it: each has its own items.
    """
    if whole.same_world or not whole.any_own:
        return saved
    mine = {exact(each.path) for each in saved.rank_local}
    numbers = sorted(whole.own)
    found = [index in saved.own for index in numbers] + [exact(each.path) in mine for each in whole.rank_local]
    asked = iter(finish(comm, comm.maximum(np.array(found, dtype=np.int64)), what, timeout).tolist())
    return replace(  # each takes as many of the answers as it has numbers
        saved,
        own=frozenset(compress(numbers, asked)),
        rank_local=tuple(compress(whole.rank_local, asked)),
    )


def _asked_rank_local(saved: SavedStep, chosen: Node, request: Request) -> tuple[set[ExactPath], set[ExactPath]]:
    """The paths of rank-local items that are requested, at least in part; and those of them that are requested in part
    only, or that have another name here.
    """
    if saved.same_world:  # each rank has its own items in its tree
        return {exact(each.path) for each in saved.rank_local}, set()
    inside: dict[ExactPath, set[Path]] = {exact(each.path): set() for each in saved.rank_local}
    for tree in (tree for own in saved.documents.own for tree in own.trees):
        if exact(tree.path) in inside:
            inside[exact(tree.path)].update(path for path, _ in walk_tree(tree.node, ()))
    rank_local, divided = set[ExactPath](), set[ExactPath]()
    for here, mark in every_node(chosen, ()):
        if not isinstance(mark, RankLocal) or not mark.path:
            continue
        place = exact(mark.path)
        asked = {request.asks_for((*here, *path)) for path in inside.get(place, {()}) or {()}}
        if True in asked:
            rank_local.add(place)
            if False in asked or here != mark.path:
                divided.add(place)
    return rank_local, divided


def flatten_live(state: Any, excluded: Sequence[str] = (), *, is_filled: bool = True) -> FlatState:
    """Flatten a live state to be filled; exceptions of its objects become a StateError."""
    options: dict[str, Any] = {"live": True} if is_filled else {"live": True, "may_ask": _is_of_torch}
    try:
        with collection_paused():
            if not excluded:
                return flatten(state, **options)
            cuts = RankLocalRules(excluded=Excluded(excluded), leaves_out=False)
            try:
                return flatten(state, cuts=cuts, **options)
            except UnsupportedLeafError:
                return flatten(state, cuts=replace(cuts, leaves_out=True), **options)
    except DeeppartError:
        raise
    except Exception as error:  # raised by the caller's objects: the other ranks wait for the outcome
        raise StateError("flattening the state failed", found=f"{type(error).__name__}: {error}") from error


def _is_of_torch(item: Any) -> bool:
    """True for objects whose state_dict() has no side effects."""
    return is_optimizer(item) or isinstance(item, (torch.nn.Module, torch.optim.lr_scheduler.LRScheduler))


def refusal_of_state(flat: FlatState, is_left_out: Callable[[Path], bool] | None = None) -> DeeppartError | None:
    """The reason why a state cannot be saved; checked even if there is nothing to restore, before the first save."""
    try:
        for unmade in flat.unmade:
            if is_left_out is None or not is_left_out(unmade.path):
                check_tensor(torch.empty(0, device="meta"), readable(unmade.path))
        for leaf in flat.values:
            if is_left_out is None or not is_left_out(leaf.path):
                encode_value(leaf.value, readable(leaf.path))
    except DeeppartError as error:
        return error
    return None
