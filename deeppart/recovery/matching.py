"""Matches the live state with a saved step, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from deeppart.comm import Comm, unequal
from deeppart.errors import (
    DeeppartError,
    DeeppartWarning,
    LeafMismatchError,
    PerRankError,
    PerRankNotice,
    StateError,
    StructureMismatchError,
)
from deeppart.model import Box
from deeppart.recovery.absent import Absent, absent_items, has_shards
from deeppart.recovery.advice import (
    advice,
    choice_notices,
    exchanged_notice,
    exchanged_optimizers,
    placeless_notice,
    placeless_objects,
    removed_notice,
    renaming,
    unplaced_notice,
    unreached_notice,
    unreached_optimizers,
)
from deeppart.recovery.candidates import Recovered
from deeppart.recovery.saved import RankLocalPolicies, SavedStep, check_spans
from deeppart.recovery.tables import Ranks, Tables
from deeppart.state.paths import (
    DROP,
    RANK0,
    ExactPath,
    Path,
    PerRankPolicies,
    dropped_notice,
    exact,
    readable,
    some_names,
    strict_error,
)
from deeppart.state.pieces import Held
from deeppart.state.restore import DROPPED, Choice, Target, create_sharded, decode_values, find_targets
from deeppart.state.tensors import leaf_type, overlaps_itself, read_shards
from deeppart.state.tree import (
    ArrayLeaf,
    FlatState,
    LeafNumbers,
    Node,
    RankLocal,
    ValueLeaf,
    alias_digests,
    units_of,
    walk_tree,
    with_items_at,
)


@dataclass(frozen=True, slots=True)
class Matched:
    """A live state, matched with the step to restore.

    Attributes:
        saved: the step.
        held: the pieces that its parts have.
        flat: the flattened live state.
        target: the targets of the saved leaves.
        own: the policies of per-rank leaves on another number of ranks.
        rank: this rank.
        choice: the selected items of the step.
    """

    saved: SavedStep
    held: Held
    flat: FlatState
    target: Target
    own: RankLocalPolicies
    rank: int
    choice: Choice


@dataclass(frozen=True, slots=True)
class Places:
    """Which leaves of a step the live states of the ranks can take.

    Attributes:
        left_to_others: items that this live state lacks and other ranks have.
        left_out: items that this live state lacks and that cannot be split.
    """

    left_to_others: tuple[Absent, ...] = ()
    left_out: tuple[Absent, ...] = ()


def find_places(
    saved: SavedStep, flat: FlatState, ranks: Ranks, what: str, declared: Callable[[Path], bool] = lambda path: False
) -> Places:
    """Find out which ranks can take which leaves (collective)."""
    shared = saved.documents.structure
    # The numbers that are the same on all ranks: of shared leaves, and of the last ones.
    arrays = np.arange(len(shared.types))
    in_parts = saved.first_value + np.arange(len(saved.global_state.values))
    values = np.concatenate([np.arange(len(shared.values)), in_parts])
    rules = saved.part_rules(declared)
    absent = list(absent_items(saved.structure.tree, flat.root))
    # If the live state has no sharded tensor at all, plain tensors can be created.
    sharded = frozenset(saved.tensors) if has_shards(flat.root) else frozenset()
    here = LeafNumbers(set(saved.left_out - saved.all_own_leaves()))
    for item in absent:
        if rules.gives_to_others(item):
            here.add(item.leaves)
        # With sharded tensors, leaves of a container that is not restored here may be restored on another rank.
        elif item.is_left_out(sharded):
            here.arrays.update(item.leaves.arrays - saved.all_own_leaves())
    lacking = np.concatenate([np.isin(arrays, list(here.arrays)), np.isin(values, list(here.values))])
    placed = (~lacking).astype(np.int64)
    found = lacking & ranks.finish(ranks.comm.maximum(placed), what).astype(np.bool_)
    numbers = arrays[found[: len(arrays)]].tolist(), values[found[len(arrays) :]].tolist()
    others = LeafNumbers(*map(set, numbers))
    left_to_others, left_out = list[Absent](), list[Absent]()
    for item in absent:
        if rules.gives_to_others(item, others):
            left_to_others.append(item)
        elif item.is_left_out(sharded):
            left_out.append(item)
    return Places(tuple(left_to_others), tuple(left_out))


def check_step(saved: SavedStep, tables: Tables, recovered: Recovered, policies: PerRankPolicies, comm: Comm) -> Held:
    """Check that a step can be restored on so many ranks, whatever their live state is; returns its pieces."""
    if not saved.same_world and (strict := saved.policies_of(policies).refused()):
        raise strict_error(strict, saved.attempt.world_size, comm.size, saved.attempt.step)
    return check_spans(saved, tables, recovered, comm.rank)


def match(
    saved: SavedStep,
    held: Held,
    flat: FlatState,
    places: Places,
    policies: PerRankPolicies,
    rank: int,
    choice: Choice,
    *,
    cast: bool,
) -> Matched:
    """Match the live state of a rank with a checked step; changes nothing."""
    own = saved.policies_of(policies)
    matched = Matched(saved, held, flat, _target(saved, own, rank), own, rank, choice)
    target, sharded = matched.target, frozenset(saved.tensors)
    target.may_cast, target.is_chosen = cast, saved.tree_as_saved is not None
    if saved.left_out:
        target.dropped |= saved.left_out
        matched = _untie_owners(matched, saved.left_out)
    if places.left_to_others or places.left_out:
        marks: dict[ExactPath, Node | None] = {exact(item.path): None for item in places.left_to_others}
        marks |= {exact(item.path): RankLocal() if item.is_none else None for item in places.left_out}
        target.structure = replace(target.structure, tree=with_items_at(target.structure.tree, marks))
        gone = {number for item in places.left_to_others for number in item.leaves.arrays}
        target.dropped |= gone
        matched = _untie_owners(matched, gone)
        target.dropped |= {number for item in places.left_out for number in item.leaves.arrays}
        target.unplaced = tuple(item.path for item in places.left_out)
    if sharded:
        target.dropped |= sharded - LeafNumbers.of(target.structure.tree).arrays  # in rank-local items of other ranks
    try:
        find_targets(target, flat)
        create_sharded(target, flat, sharded)
        target.untie_shards()
    except (StructureMismatchError, LeafMismatchError) as error:
        _advise(error, matched)
        raise
    check_writable(matched.target, flat, saved.paths())
    torn = {index: policies.of(saved.tensors[index].name) for index in _torn_shards(matched)}
    torn_values = {index: policies.of(saved.part_values()[index].name) for index in _torn_values(matched)}
    refused = [[index for index, way in each.items() if way not in (RANK0, DROP)] for each in (torn, torn_values)]
    if any(refused):
        raise _torn_error(saved, *refused)
    dropped = [[index for index, way in each.items() if way == DROP] for each in (torn, torn_values)]
    if any(dropped):
        _drop(matched, *dropped)
    return matched


def check_writable(target: Target, flat: FlatState, paths: list[Path]) -> None:
    """Raise StateError for a live array that cannot be written in place."""
    written = [(index, data) for index, data in target.live.items() if index not in target.tied]
    written += target.casts.items()
    written += [(index, flat.data[number]) for index, leaf in target.sharded.items() for number in leaf.numbers]
    for index, data in written:
        if overlaps_itself(data):
            raise StateError(
                "a live array has several elements at one address and cannot be restored in place",
                found=f"shape {list(data.shape)}, as expand() makes it",
                where=f"path {readable(paths[index])}",
                todo="give restore a contiguous one: clone() it",
            )
    for index, data in (target.live | target.casts).items():
        if isinstance(data, np.ndarray) and not data.flags.writeable:
            raise StateError(
                "a live array is read-only and cannot be restored in place",
                where=f"path {readable(paths[index])}",
                todo="give restore a writable array",
            )


def _untie_owners(matched: Matched, gone: Set[int]) -> Matched:
    """Give aliases of leaves that are not restored here bytes of their own.

    Of several full aliases the first gets the bytes, and the others are tied to it. An alias of only some bytes, or of
    a per-rank leaf, is copied from separate memory for its owner: the live owner, which is not requested, must not
    change.
    """
    saved, target = matched.saved, matched.target
    aliases, kept = target.structure.aliases, dict(target.structure.aliases)
    placed = {node.index: path for path, node in walk_tree(target.structure.tree, ()) if isinstance(node, ArrayLeaf)}
    left = {index: alias for index, alias in aliases.items() if alias.owner in gone and index in placed}
    own = {alias.owner for alias in left.values() if target.structure.per_rank[alias.owner]}
    if own and not saved.same_world:
        raise _own_error(saved, placed[min(index for index, alias in left.items() if alias.owner in own)])
    firsts: dict[int, int] = {}
    for index, alias in left.items():
        if target.has_all_bytes(index, alias) and alias.owner not in own:
            firsts.setdefault(alias.owner, index)
    for index, alias in left.items():
        if alias.owner not in firsts:
            target.dropped -= {alias.owner}
        elif firsts[alias.owner] == index:
            del kept[index]
        else:
            kept[index] = replace(alias, owner=firsts[alias.owner])
    target.structure = replace(target.structure, aliases=kept)
    return replace(matched, saved=replace(saved, own_leaves=saved.own_leaves | own)) if own else matched


def _own_error(saved: SavedStep, path: Path) -> StructureMismatchError:
    return StructureMismatchError(
        "a per-rank leaf was saved as an alias of another leaf, which is not restored",
        expected=f"both, on another number of ranks than the {saved.attempt.world_size} that saved it",
        where=f"path {readable(path)}",
        todo="ask for both, or neither",
    )


def _torn_shards(matched: Matched) -> list[int]:
    """Numbers of the sharded tensors of which ranks had different bytes, unless this rank gets its own ones back."""
    saved, target, torn = matched.saved, matched.target, []
    for index, tensor in saved.tensors.items():
        own = matched.held.own_of(index)
        if not own or index in target.dropped:
            continue
        theirs = {tensor.division.box(number) for number in own}
        mine = {
            tensor.division.box(number) for number, ranks in own.items() if saved.same_world and matched.rank in ranks
        }
        live: tuple[Box, ...] = (Box.whole(tensor.kind.shape),)
        if index in target.sharded:
            live = target.sharded[index].boxes
        elif index in target.created:
            live = read_shards(target.created[index], tensor.name).boxes
        if any(box not in mine and any(box.common(other) is not None for other in theirs) for box in live):
            torn.append(index)
    return torn


def _torn_values(matched: Matched) -> list[int]:
    """Numbers of the values in parts of the state that differ between ranks, and that this rank did not have."""
    saved = matched.saved
    torn = {
        number
        for number, value in saved.part_values().items()
        if value.differs and not (saved.same_world and matched.rank in value.contents)
    }
    if not torn:
        return []
    walked = walk_tree(matched.target.structure.tree, ())
    return sorted({node.index for _, node in walked if isinstance(node, ValueLeaf)} & torn)


def _torn_error(saved: SavedStep, torn: Sequence[int], values: Sequence[int]) -> PerRankError:
    names = [saved.tensors[index].name for index in torn] + [saved.part_values()[index].name for index in values]
    return PerRankError(
        "ranks had different bytes for the same part of the state, and it is restored to another layout",
        found=some_names(names),
        where=f"step {saved.attempt.step}",
        todo='pass per_rank="rank0" to take the bytes of the lowest rank, or "drop" to keep the live ones; or restore '
        "the layout that was saved, or a step from before they differed",
    )


def _drop(matched: Matched, torn: Sequence[int], values: Sequence[int]) -> None:
    """Leave these live tensors and values unchanged."""
    for index in torn:
        matched.target.sharded.pop(index, None)
    left = LeafNumbers(set(torn), set(values))
    for _, numbers in units_of(matched.target.structure.tree, left):
        left.add(numbers)
    matched.target.dropped |= left.arrays
    for index in left.values:
        matched.target.values[index] = DROPPED


def refused_ties(matched: Matched, comm: Comm, what: str, timeout: float) -> DeeppartError | None:
    """The error for ties that all ranks have and the checkpoint has not (collective).

    Ties that only some ranks have were not saved either: they can be restored if the tied leaves have the same bytes.
    """
    leaves = len(matched.saved.documents.structure.types)
    aliases = {index: alias for index, (alias, _) in matched.target.mistied.items() if index < leaves}
    digests = alias_digests(aliases, leaves)
    everywhere = np.flatnonzero((digests != 0) & ~unequal(comm, digests, what, timeout))
    if not len(everywhere):
        return None
    _, error = matched.target.mistied[int(everywhere[0])]
    _advise(error, matched)
    return error


def notices(matched: Matched, size: int) -> list[DeeppartWarning]:
    """Warnings about saved items that may not have been restored as the caller expected."""
    saved, target = matched.saved, matched.target
    attempt, found = saved.attempt, list[DeeppartWarning]()
    if not saved.same_world and (dropped := _dropped_names(matched)):
        found.append(PerRankNotice(dropped_notice(dropped, attempt.world_size, size, attempt.step)))
    if target.unplaced:
        names = some_names([readable(path) for path in target.unplaced])
        found.append(DeeppartWarning(f"restored step {attempt.step}: {unplaced_notice(names, target.unplaced)}"))
    found += [DeeppartWarning(f"restored step {attempt.step}: {text}") for text in choice_notices(matched.choice)]
    if target.removed:
        names = some_names(list(map(readable, target.removed)))
        found.append(DeeppartWarning(f"restored step {attempt.step}: {removed_notice(names)}"))
    tree, root = target.structure.tree, matched.flat.root
    if placeless := placeless_objects(tree, root):
        found.append(DeeppartWarning(f"restored step {attempt.step}: {placeless_notice(placeless)}"))
    if unreached := unreached_optimizers(tree, root, target.values):
        found.append(DeeppartWarning(f"restored step {attempt.step}: {unreached_notice(unreached)}"))
    if exchanged := exchanged_optimizers(tree, root):
        found.append(DeeppartWarning(f"restored step {attempt.step}: {exchanged_notice(exchanged)}"))
    return found


def _advise(error: DeeppartError, matched: Matched) -> None:
    # A leaf of another type was found at its path: names that were matched without wrappers are not the cause.
    saved, flat = matched.saved, matched.flat
    as_saved = None if isinstance(error, LeafMismatchError) else saved.tree_as_saved
    tree = as_saved or saved.structure.tree
    error.todo = (
        renaming(
            tree,
            flat.root,
            lambda leaf: matched.target.types[leaf.index],
            lambda leaf: leaf_type(flat.data[leaf.index]),
        )
        or advice(tree, flat.root)
        or error.todo
    )


def _target(saved: SavedStep, own: RankLocalPolicies, rank: int) -> Target:
    structure = saved.structure
    values = decode_values(structure, f"step {saved.attempt.step}")
    types = list(structure.types)
    dropped: frozenset[int] = frozenset()
    if saved.same_world:
        documents = saved.documents.own
        mine = documents[rank] if len(documents) > rank else documents[0]
        types = mine.all_types(structure)
        for index, value in mine.values.items():
            values[index] = value
        values[saved.first_value :] = saved.global_state.contents(rank)
    else:
        values[saved.first_value :] = saved.global_state.contents(None)
        leaves = saved.own_leaves | own.left.arrays
        for index in own.left.values:
            values[index] = DROPPED
        dropped = leaves | {index for index, alias in structure.aliases.items() if alias.owner in leaves}
    return Target(structure, types, values, dropped=dropped)


def _dropped_names(matched: Matched) -> list[str]:
    left = matched.own.left
    units = [readable(path) for path, _ in units_of(matched.saved.structure.tree, left)]
    inside = tuple(f"{name}/" for name in units)
    return [name for name, way in matched.own.names.items() if way == DROP and not name.startswith(inside)] + units
