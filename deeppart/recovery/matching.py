"""Matches the live state with a saved step, before anything is changed."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from deeppart.comm import Comm
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
from deeppart.recovery.advice import advice, warnings_of
from deeppart.recovery.candidates import Recovered
from deeppart.recovery.saved import RankLocalPolicies, SavedStep, check_spans
from deeppart.recovery.tables import Tables
from deeppart.state.paths import (
    DROP,
    RANK0,
    ROOT,
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
from deeppart.state.tensors import overlaps_itself, read_shards
from deeppart.state.tree import (
    FlatState,
    LeafNumbers,
    Node,
    RankLocal,
    ValueLeaf,
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


def check_step(saved: SavedStep, tables: Tables, recovered: Recovered, policies: PerRankPolicies, comm: Comm) -> Held:
    """Check that a step can be restored on so many ranks, whatever their live state is; returns its pieces."""
    if not saved.same_world and (strict := saved.policies_of(policies).refused()):
        raise strict_error(strict, saved.attempt.world_size, comm.size, saved.attempt.step)
    return check_spans(saved, tables, recovered, comm.rank)


def match(
    saved: SavedStep,
    held: Held,
    flat: FlatState,
    choice: Choice,
    policies: PerRankPolicies,
    rank: int,
    *,
    cast: bool,
) -> Matched:
    """Match the live state of a rank with a checked step; changes nothing."""
    own = saved.policies_of(policies)
    matched = Matched(saved, held, flat, _target(saved, own, rank), own, rank, choice)
    target, sharded = matched.target, frozenset(saved.tensors)
    target.may_cast, target.is_chosen = cast, saved.tree_as_saved is not None
    marks: dict[ExactPath, Node | None] = {
        exact(item.path): RankLocal() if item.is_none else None for item in (*choice.left_to_others, *choice.left_out)
    }
    target.structure = replace(target.structure, tree=with_items_at(target.structure.tree, marks))
    gone = saved.left_out | {number for item in choice.left_to_others for number in item.leaves.arrays}
    target.dropped |= gone | {number for item in choice.left_out for number in item.leaves.arrays}
    if sharded:
        target.dropped |= sharded - LeafNumbers.of(target.structure.tree).arrays  # in rank-local items of other ranks
    try:
        find_targets(target, flat)
        create_sharded(target, flat, sharded)
        target.untie_shards()
        _with_owners(matched, gone)
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
    written += [(index, data) for index, arrays in target.casts.items() for data in arrays]
    written += [(index, flat.data[number]) for index, leaf in target.sharded.items() for number in leaf.numbers]
    for index, data in written:
        if overlaps_itself(data):
            raise StateError(
                "a live array has several elements at one address and cannot be restored in place",
                found=f"shape {list(data.shape)}, as expand() makes it",
                where=f"path {readable(paths[index])}",
                todo="give restore a contiguous one: clone() it",
            )
    for index, data in (*target.live.items(), *written):
        if isinstance(data, np.ndarray) and not data.flags.writeable:
            raise StateError(
                "a live array is read-only and cannot be restored in place",
                where=f"path {readable(paths[index])}",
                todo="give restore a writable array",
            )


def _with_owners(matched: Matched, gone: Set[int]) -> None:
    """Receive the owners of aliases, though they are not restored here: into separate memory, of which the aliases are
    views, or copied from there. The live owner, which is not requested, must not change.
    """
    saved, target = matched.saved, matched.target
    placed = LeafNumbers.of(target.structure.tree).arrays
    needed = {alias.owner for index, alias in target.structure.aliases.items() if index in placed} & gone
    own = {owner for owner in needed if target.structure.per_rank[owner]}
    if own and not saved.same_world:
        aliases = [index for index, alias in target.structure.aliases.items() if alias.owner in own and index in placed]
        raise StructureMismatchError(
            "a per-rank leaf was saved as an alias of another leaf, which is not restored",
            expected=f"both, on another number of ranks than the {saved.attempt.world_size} that saved it",
            where=f"path {readable(target.structure.array_paths()[min(aliases)])}",
            todo="ask for both, or neither",
        )
    target.dropped -= needed
    target.own |= own


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


def notices(matched: Matched, size: int) -> list[DeeppartWarning]:
    """Warnings about saved items that may not have been restored as the caller expected."""
    saved, target = matched.saved, matched.target
    attempt, found = saved.attempt, list[DeeppartWarning]()
    if not saved.same_world and (dropped := _dropped_names(matched)):
        found.append(PerRankNotice(dropped_notice(dropped, attempt.world_size, size, attempt.step)))
    texts = warnings_of(matched.choice, target)
    return found + [DeeppartWarning(f"restored step {attempt.step}: {text}") for text in texts]


def _advise(error: DeeppartError, matched: Matched) -> None:
    """Say what to do about an error, where more can be said than at the place of the difference."""
    saved, exchanged = matched.saved, matched.target.exchanged
    if error.where == f"path {ROOT}":
        error.todo = advice(saved.tree_as_saved or saved.structure.tree, matched.flat.root) or error.todo
    elif exchanged:
        error.todo = (
            f"the optimizer is of another class ({'; '.join(exchanged)}): build it as it was when it was saved, or "
            "leave it out of the state that is restored"
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
    return Target(structure, types, values, dropped=dropped, own=saved.own_leaves)


def _dropped_names(matched: Matched) -> list[str]:
    left = matched.own.left
    units = [readable(path) for path, _ in units_of(matched.saved.structure.tree, left)]
    inside = tuple(f"{name}/" for name in units)
    return [name for name, way in matched.own.names.items() if way == DROP and not name.startswith(inside)] + units
