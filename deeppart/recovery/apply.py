"""Restoring: from a recovered step to the live state, collectively.

Order matters: the live state is matched with the structure, per-rank leaves are decided on and user functions are
called before the first live byte changes; any error up to then is raised on every rank and leaves the state as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from deeppart._gc import collection_paused
from deeppart.comm import Comm, finish
from deeppart.comm.agreement import raise_together, unequal
from deeppart.errors import (
    CorruptFileError,
    DeeppartError,
    DeeppartWarning,
    LeafMismatchError,
    PerRankNotice,
    StateError,
    StructureMismatchError,
    as_error,
)
from deeppart.part import SHARED_TABLE
from deeppart.recovery.distribute import (
    PartIndexView,
    distribute_all_own,
    distribute_own,
    distribute_shared,
    share_indexes,
)
from deeppart.recovery.recover import Recovered
from deeppart.state.advice import advice, exchanged_notice, exchanged_optimizers, unreached_notice, unreached_optimizers
from deeppart.state.apart import OwnTree, insert, without_apart
from deeppart.state.document import OwnDocument, decode_meta
from deeppart.state.filling import detached
from deeppart.state.flatten import ExactPath, FlatState, Path, exact, flatten, readable
from deeppart.state.leaves import Array, leaf_type, new_array, overlaps_itself
from deeppart.state.merge import build, put, tie
from deeppart.state.overlaps import assign, conflicting, overlapping
from deeppart.state.per_rank import DROP, MAP, RANK0, STRICT, PerRank, dropped_notice, strict_error, way_of
from deeppart.state.runs import encode_leaf_value
from deeppart.state.scatter import Scatter, check_cover, check_places
from deeppart.state.structure import SavedArray, SavedValue, Structure, check_aliases, decode_tree, encode_tree
from deeppart.state.target import DROPPED, Target, decode_values, find_targets
from deeppart.state.ties import alias_digests
from deeppart.state.units import Unit, units_of


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of all parts.

    Attributes:
        structure: of rank 0's part.
        own: per part, what is its rank's own.
    """

    structure: Structure
    own: tuple[OwnDocument, ...]


def restore_state(
    comm: Comm, recovered: Recovered, state: Any, per_rank: PerRank, timeout: float
) -> list[DeeppartWarning]:
    """Write a recovered step into the live state (collective).

    Returns:
        What rank 0 is to tell the user.

    Raises:
        StateError: the state does not match the checkpoint; nothing has been changed. Raised where it happens, and as
            RemoteRankError on the other ranks.
        PerRankError: per-rank leaves, another world size, and ``per_rank="strict"``.
    """
    what = f"restore of step {recovered.attempt.step}"
    indexes = share_indexes(comm, recovered, timeout)
    documents = _share_documents(comm, recovered, timeout)
    begin = partial(_Restoring, comm, recovered, documents, indexes, per_rank, timeout)
    restoring, error = _prepared(begin, state)
    raise_together(comm, error, what, timeout)
    assert restoring is not None
    raise_together(comm, restoring.refused_ties(), what, timeout)
    error = restoring.map_old_ranks()
    raise_together(comm, error, what, timeout)
    raise_together(comm, restoring.look_for_overlaps(), what, timeout)
    overlapping_leaves = restoring.agree_on_overlaps()
    if overlapping_leaves is not None:
        raise_together(comm, restoring.check_overlaps(overlapping_leaves), what, timeout)
    restoring.write()
    todo = "mend what that rank reports and build the state anew: it may hold bytes of the checkpoint already"
    raise_together(comm, restoring.finish(), what, timeout, todo)
    return restoring.notices()


def _share_documents(comm: Comm, recovered: Recovered, timeout: float) -> Documents:
    """Rank 0's document goes to everyone; the other parts' only if any leaf or value is per rank (collective).

    Raises:
        CorruptFileError: a document is damaged. Whatever is raised on one rank is raised on all.
    """
    what = f"restore of step {recovered.attempt.step}, documents"

    def fetch(part: int) -> bytes:
        read = recovered.reads[part]
        data = recovered.mine[part].reader.meta if part in recovered.mine else None
        return finish(comm, comm.broadcast(data, root=read.reader), what, timeout)

    first, error = _decoded([fetch(0)], None, what)
    raise_together(comm, error, what, timeout)
    structure = first[0].structure
    assert structure is not None
    texts: list[bytes] = []
    if structure.per_rank.any() or structure.per_rank_values.any() or structure.has_apart:
        texts = [fetch(part) for part in range(1, recovered.attempt.world_size)]
    others, error = _decoded(texts, structure, what)
    raise_together(comm, error, what, timeout)
    return Documents(structure, (*first, *others))


def _decoded(
    texts: Sequence[bytes], structure: Structure | None, what: str
) -> tuple[list[OwnDocument], DeeppartError | None]:
    """The documents of part 0 (without a structure) or of those that follow it; and why they are of no use."""
    found: list[OwnDocument] = []
    try:
        for part, text in enumerate(texts, start=0 if structure is None else 1):
            document = decode_meta(text, f"{what}, part {part}")
            common = structure or document.structure
            if common is None:
                raise CorruptFileError("part 0 carries no structure document", where=what)
            document.check(common, f"{what}, part {part}")
            found.append(document)
    except Exception as error:  # no memory, where others have it
        return found, as_error(error, "the documents of a step could not be taken in")
    return found, None


def _prepared(begin: Callable[[], _Restoring], state: Any) -> tuple[_Restoring | None, DeeppartError | None]:
    """Match the live state, changing nothing; or why that cannot be done here."""
    try:
        restoring = begin()
    except Exception as error:  # no memory, where others have it
        return None, as_error(error, "matching the live state with the checkpoint failed")
    return restoring, restoring.prepare(state)


class _Restoring:
    """One restore under way."""

    def __init__(
        self,
        comm: Comm,
        recovered: Recovered,
        documents: Documents,
        indexes: list[PartIndexView],
        per_rank: PerRank,
        timeout: float,
    ) -> None:
        self._comm, self._recovered, self._timeout = comm, recovered, timeout
        self._own, self._indexes = documents.own, indexes
        self._per_rank, self._way = per_rank, way_of(per_rank)
        self._same_world = recovered.attempt.world_size == comm.size
        self._shared = documents.structure
        where = f"step {recovered.attempt.step}"
        self._of_ranks = tuple(own.complete(self._shared, where) for own in documents.own)
        self._apart = _apart_paths(documents.own)
        if self._same_world:
            self._structure = self._of_ranks[min(comm.rank, len(self._of_ranks) - 1)]
        else:
            self._structure = without_apart(self._shared, self._apart)
        self._own_leaves = set(np.flatnonzero(self._structure.per_rank).tolist())
        self._own_values = set(np.flatnonzero(self._structure.per_rank_values).tolist())
        self._paths = self._structure.array_paths()
        self._mapped: dict[int, Any] = {}
        self._old: list[dict[int, Array]] = []
        self._what = f"restore of step {recovered.attempt.step}"

    @property
    def _maps(self) -> bool:
        return self._way in (MAP, RANK0) and not self._same_world and self._any_own

    @property
    def _any_own(self) -> bool:
        return bool(self._own_leaves or self._own_values or self._apart)

    def prepare(self, state: Any) -> DeeppartError | None:
        """Match the live state; touches nothing."""
        try:
            self._check_per_rank()
            self._check_spans()
            self._flat: FlatState = _flatten(state)
            self._target = self._make_target()
            self._match()
            _check_writable(self._target, self._paths)
            self._old = self._memory_for_old_ranks()
        except Exception as error:  # of whatever kind: the other ranks wait to hear of it
            return as_error(error, "matching the live state with the checkpoint failed")
        return None

    def _match(self) -> None:
        try:
            find_targets(self._target, self._flat)
        except (StructureMismatchError, LeafMismatchError) as error:
            self._advise(error)
            raise

    def _advise(self, error: DeeppartError) -> None:
        error.todo = advice(self._structure.tree, self._flat.root) or error.todo

    def refused_ties(self) -> DeeppartError | None:
        """Ties that all ranks have, but the checkpoint has not, are an error of the state (collective).

        Those that only some ranks have were not saved as ties either: if what they tie holds the same bytes, it can be
        restored.
        """
        leaves = len(self._shared.types)
        aliases = {index: alias for index, (alias, _) in self._target.mistied.items() if index < leaves}
        digests = alias_digests(aliases, leaves)
        everywhere = np.flatnonzero((digests != 0) & ~unequal(self._comm, digests, self._what, self._timeout))
        if not len(everywhere):
            return None
        _, error = self._target.mistied[int(everywhere[0])]
        self._advise(error)
        return error

    def _check_per_rank(self) -> None:
        if self._way == STRICT and not self._same_world and self._any_own:
            saved_by = self._recovered.attempt.world_size
            raise strict_error(self._own_names(), saved_by, self._comm.size, self._recovered.attempt.step)

    def notices(self) -> list[DeeppartWarning]:
        """What did not get to where it was perhaps meant to be."""
        attempt, found = self._recovered.attempt, list[DeeppartWarning]()
        if self._way == DROP and not self._same_world and self._any_own:
            notice = dropped_notice(self._dropped_names(), attempt.world_size, self._comm.size, attempt.step)
            found.append(PerRankNotice(notice))
        unreached = unreached_optimizers(self._structure.tree, self._flat.root, self._target.values)
        if unreached:
            found.append(DeeppartWarning(f"restored step {attempt.step}: {unreached_notice(unreached)}"))
        if exchanged := exchanged_optimizers(self._structure.tree, self._flat.root):
            found.append(DeeppartWarning(f"restored step {attempt.step}: {exchanged_notice(exchanged)}"))
        return found

    def _dropped_units(self) -> list[Unit]:
        """What is left alone as a whole, since a part of it is not restored."""
        if self._way != DROP:
            return []
        return units_of(self._structure.tree, self._own_leaves, self._own_values)

    def _dropped_names(self) -> list[str]:
        units = [readable(unit.path) for unit in self._dropped_units()]
        inside = tuple(f"{name}/" for name in units)
        return [name for name in self._own_names() if not name.startswith(inside)] + units

    def _own_names(self) -> list[str]:
        names = [readable(self._paths[index]) for index in sorted(self._own_leaves)]
        return names + self._value_names(self._own_values) + [readable(tree.path) for tree in self._apart]

    def _value_names(self, numbers: set[int]) -> list[str]:
        return [
            readable(path)
            for path, node in self._structure.walk()
            if isinstance(node, SavedValue) and node.index in numbers
        ]

    def _check_spans(self) -> None:
        shared = [index.spans[index.spans["table"] == SHARED_TABLE] for index in self._indexes]
        wanted = {i for i in range(len(self._shared.types)) if i not in self._shared.aliases}
        where = f"step {self._recovered.attempt.step}"
        for index in self._indexes:
            part = index.part if self._any_own else 0
            raw_starts = np.zeros(len(index.lengths) + 1, dtype=np.uint64)
            np.cumsum(np.array(index.lengths, dtype=np.uint64), out=raw_starts[1:])
            marked = np.array(index.per_rank, dtype=np.bool_)
            places = index.spans, raw_starts, marked
            check_places(self._of_ranks[part], self._own[part].types, *places, f"{where}, part {index.part}")
        replicated = wanted - set(np.flatnonzero(self._shared.per_rank).tolist())
        check_cover(list(self._shared.types), replicated, shared, where)
        if self._any_own:
            for document, structure, index in zip(self._own, self._of_ranks, self._indexes, strict=True):
                own = index.spans[index.spans["table"] != SHARED_TABLE]
                leaves = set(np.flatnonzero(structure.per_rank).tolist()) - structure.aliases.keys()
                check_cover(document.all_types(structure), leaves, [own], f"{where}, part {index.part}")

    def _make_target(self) -> Target:
        structure = self._structure
        values = decode_values(structure, f"step {self._recovered.attempt.step}")
        types = list(structure.types)
        dropped: frozenset[int] = frozenset()
        if self._same_world:
            mine = self._own[self._comm.rank] if len(self._own) > self._comm.rank else self._own[0]
            types = mine.all_types(structure)
            for index, value in mine.values.items():
                values[index] = value
        else:
            leaves = set(self._own_leaves)
            for unit in self._dropped_units():
                leaves |= unit.arrays
                for index in unit.values:
                    values[index] = DROPPED
            dropped = frozenset(leaves | self._aliases_of(leaves))
        return Target(structure, types, values, dropped=dropped)

    def _aliases_of(self, owners: set[int]) -> set[int]:
        return {index for index, alias in self._structure.aliases.items() if alias.owner in owners}

    def map_old_ranks(self) -> DeeppartError | None:
        """Take rank 0's per-rank values, or ask the caller's function for this rank's; touches nothing."""
        if not self._maps:
            return None
        old, ranks = self._old, len(self._old)
        indexes = [index for index in self._indexes if index.part < ranks]
        distribute_all_own(self._comm, self._recovered, indexes, lambda part: Scatter(old[part]), self._timeout)
        # What is a view of another leaf follows that one.
        asked = self._own_leaves - self._structure.aliases.keys()
        try:
            for path, node in self._structure.walk():
                if isinstance(node, SavedArray) and node.index in asked:
                    self._mapped[node.index] = self._ask(path, [entry[node.index] for entry in old])
                elif isinstance(node, SavedValue) and node.index in self._own_values:
                    values = [document.values[node.index] for document in self._own[:ranks]]
                    self._target.values[node.index] = self._ask(path, values)
            self._map_apart(old)
            self._take_mapped()
        except DeeppartError as error:
            return error
        except Exception as error:
            return StateError(
                "the per_rank function failed",
                found=f"{type(error).__name__}: {error}",
                where=f"rank {self._comm.rank}",
                todo="it is called as function(path, values of the old ranks, new rank, new world size)",
            )
        return None

    def _memory_for_old_ranks(self) -> list[dict[int, Array]]:
        """Arrays for the per-rank leaves of the old ranks that are asked for, by rank."""
        ranks = 0 if not self._maps else 1 if self._way == RANK0 else len(self._own)
        return [
            {
                index: new_array(document.types[index])
                for index in np.flatnonzero(structure.per_rank).tolist()
                if index not in structure.aliases
            }
            for document, structure in zip(self._own[:ranks], self._of_ranks[:ranks], strict=True)
        ]

    def _ask(self, path: Path, old: list[Any]) -> Any:
        """What this rank gets, of what the old ranks had: rank 0 alone, where its values are meant for all."""
        if callable(self._per_rank):
            return detached(self._per_rank(readable(path), old, self._comm.rank, self._comm.size))
        return old[0]

    def _map_apart(self, old: list[dict[int, Array]]) -> None:
        """Ask for what stands apart: the function gets what each old rank had there, None where it had nothing."""
        trees = []
        for tree in self._asked_apart():
            contents = [
                _content(document, structure, arrays, tree.path)
                for document, structure, arrays in zip(self._own, self._of_ranks, old, strict=False)
            ]
            made = flatten(self._ask(tree.path, contents))
            first = len(self._target.types), len(self._target.values)
            most = first[1] + len(made.values)
            node, _, _ = decode_tree(encode_tree(made.root, first), most, "a per_rank function")
            trees.append(OwnTree(tree.path, tree.place, node))
            self._target.types += [leaf_type(data) for data in made.data]
            self._target.values += [leaf.value for leaf in made.values]
            added = range(first[0], first[0] + len(made.data))
            self._mapped |= dict(zip(added, made.data, strict=True))
            self._own_leaves |= set(added)
        if trees:
            count = len(self._target.types)
            structure = replace(
                self._shared,
                tree=insert(self._structure.tree, trees, whole=False),
                types=tuple(self._target.types),
                per_rank=np.array([index in self._own_leaves for index in range(count)], dtype=np.bool_),
            )
            self._target.structure = self._structure = structure
            self._paths = structure.array_paths()

    def _asked_apart(self) -> list[OwnTree]:
        """What stands apart and is restored; what rank 0 has not stays as it is here, where its values are for all."""
        return list(self._own[0].trees) if self._way == RANK0 else self._apart

    def _take_mapped(self) -> None:
        """The mapped arrays become what is restored: their types are the types wanted from now on."""
        for index, value in self._mapped.items():
            if not isinstance(value, (torch.Tensor, np.ndarray)):
                raise LeafMismatchError(
                    "the per_rank function must return an array for an array",
                    found=type(value).__name__,
                    where=f"path {readable(self._paths[index])}",
                )
            self._target.types[index] = leaf_type(value)
        try:
            check_aliases(self._target.types, self._structure.aliases)
        except ValueError as error:
            raise LeafMismatchError(
                "what the per_rank function returned has no room for a leaf that shares its memory", found=str(error)
            ) from error
        self._target.dropped = frozenset()
        find_targets(self._target, self._flat)

    def look_for_overlaps(self) -> DeeppartError | None:
        """Take what is to be filled, and see which live leaves of it share memory in other ways than was saved."""
        try:
            self._arrays = self._target.arrays()
            live = {index: self._arrays[index] for index in self._target.live if index in self._arrays}
            aliases = self._target.structure.aliases.keys() - self._target.tied
            untied = {index: data for index, data in self._target.live.items() if index in aliases}
            found = overlapping(live | untied)
            self._alone = {index: new_array(self._target.types[index]) for index in found if index not in untied}
        except Exception as error:
            return as_error(error, "looking for live leaves that share memory failed")
        wrong = [index for index in found if index in untied]
        return self._overlap_error(wrong, found) if wrong else None

    def agree_on_overlaps(self) -> list[int] | None:
        """The replicated ones of these leaves, of all ranks (collective); None if no rank has any such leaf at all."""
        found = np.zeros(len(self._shared.types) + 1, dtype=np.int64)
        found[[index for index in self._alone if index not in self._own_leaves]] = 1
        found[-1] = bool(self._alone)
        found = finish(self._comm, self._comm.maximum(found), self._what, self._timeout)
        return np.flatnonzero(found[:-1]).tolist() if found[-1] else None

    def check_overlaps(self, replicated: list[int]) -> DeeppartError | None:
        """Bring these leaves alone, each into memory of its own, and see whether all can be had at once (collective).

        The live ones are as before when this returns.

        Args:
            replicated: those that overlap on any rank. All ranks take part in bringing them.
        """
        shared, error = dict[int, Array](), None
        try:
            for index in replicated:
                shared[index] = self._alone[index] if index in self._alone else new_array(self._target.types[index])
        except Exception as problem:
            error = as_error(problem, "there is no memory to compare live leaves that share some of theirs")
        raise_together(self._comm, error, self._what, self._timeout)
        distribute_shared(self._comm, self._recovered, self._indexes, Scatter(shared), self._timeout)
        if self._same_world:  # this rank may have to send what others own, though it owns nothing
            own = {index: array for index, array in self._alone.items() if index in self._own_leaves}
            distribute_own(self._comm, self._recovered, self._indexes, Scatter(own), self._timeout)
        wanted = self._alone | {index: value for index, value in self._mapped.items() if index in self._alone}
        try:
            conflicts = conflicting({index: self._arrays[index] for index in wanted}, wanted)
        except Exception as problem:  # it copies the live leaves, for which there may be no memory
            return as_error(problem, "live leaves that share some of their memory could not be compared")
        if not conflicts:
            return None
        return self._overlap_error(conflicts, list(wanted))

    def _overlap_error(self, conflicts: list[int], among: list[int]) -> StructureMismatchError:
        names = [readable(self._paths[index]) for index in conflicts]
        others = [readable(self._paths[index]) for index in among if index not in conflicts]
        return StructureMismatchError(
            "live leaves that share some of their memory did not share it in this way when they were saved",
            found=f"{', '.join(names[:8])} would be overwritten by {', '.join(others[:8]) or 'one another'}",
            where=f"path {names[0]}",
            todo="build the live state so that they have memory of their own, as when it was saved",
        )

    def write(self) -> None:
        """Fill every array of the target. From here on the live state changes."""
        shared = {index: array for index, array in self._arrays.items() if index not in self._own_leaves}
        distribute_shared(self._comm, self._recovered, self._indexes, Scatter(shared), self._timeout)
        own = {index: array for index, array in self._arrays.items() if index in self._own_leaves}
        if self._same_world:
            distribute_own(self._comm, self._recovered, self._indexes, Scatter(own), self._timeout)
        for index, value in self._mapped.items():
            assign(self._arrays[index], value)

    def finish(self) -> DeeppartError | None:
        """Tie what was tied and hand everything to its containers and objects."""
        try:
            for part in self._recovered.mine.values():
                if (changed := part.problem()) is not None:
                    return changed
            tie(self._target, self._arrays)
            with collection_paused():
                put(self._target, self._arrays, self._flat)
        except Exception as error:
            return as_error(error, "handing what was restored to the live state failed")
        return None


def _apart_paths(documents: Sequence[OwnDocument]) -> list[OwnTree]:
    """The paths at which anything stands apart on any rank."""
    found: dict[ExactPath, OwnTree] = {}
    for document in documents:
        for tree in document.trees:
            found.setdefault(exact(tree.path), tree)
    return list(found.values())


def _content(document: OwnDocument, structure: Structure, arrays: dict[int, Array], path: Path) -> Any:
    """What one rank had at a path that stands apart; None if nothing."""
    tree = next((tree for tree in document.trees if exact(tree.path) == exact(path)), None)
    if tree is None:
        return None
    values = [document.values.get(index) for index in range(len(structure.values))]
    own = replace(structure, aliases=document.aliases)
    target = Target(own, document.all_types(structure), values)
    tie(target, arrays)
    return build(target, arrays, tree.node)


def refusal_of_state(state: Any) -> DeeppartError | None:
    """Why a state could not be saved, where there is nothing to restore into it yet: now, not at the first save."""
    try:
        for leaf in _flatten(state).values:
            encode_leaf_value(leaf.value, readable(leaf.path))
    except DeeppartError as error:
        return error
    return None


def _flatten(state: Any) -> FlatState:
    try:
        with collection_paused():
            return flatten(state, live=True)
    except DeeppartError:
        raise
    except Exception as error:  # from the caller's objects: the other ranks are waiting to hear of it
        raise StateError("looking at the state failed", found=f"{type(error).__name__}: {error}") from error


def _check_writable(target: Target, paths: list[Any]) -> None:
    for index, data in target.live.items():
        if index not in target.tied and overlaps_itself(data):
            raise StateError(
                "a live array has several elements at one place in memory and cannot be restored in place",
                found=f"shape {list(data.shape)}, as expand() makes it",
                where=f"path {readable(paths[index])}",
                todo="give restore a contiguous one: clone() it",
            )
        if isinstance(data, np.ndarray) and not data.flags.writeable:
            raise StateError(
                "a live array is read-only and cannot be restored in place",
                where=f"path {readable(paths[index])}",
                todo="give restore a writable array",
            )
