"""Restoring: from a recovered step to the live state, collectively.

Order matters: the live state is matched with the structure, per-rank leaves are decided on and user functions are
called before the first live byte changes; any error up to then is raised on every rank and leaves the state as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from deeppart.comm import Comm, finish
from deeppart.comm.agreement import raise_together
from deeppart.distribute import PartIndexView, distribute_all_own, distribute_own, distribute_shared, share_indexes
from deeppart.errors import (
    ConfigError,
    CorruptFileError,
    DeeppartError,
    FormatError,
    LeafMismatchError,
    PerRankError,
    StateError,
    StructureMismatchError,
)
from deeppart.part import SHARED_TABLE
from deeppart.recovery import Recovered
from deeppart.state.advice import advice
from deeppart.state.document import OwnDocument, decode_meta
from deeppart.state.flatten import FlatState, flatten, readable
from deeppart.state.leaves import Array, leaf_type, new_array, overlaps_itself
from deeppart.state.merge import put, tie
from deeppart.state.scatter import Scatter, check_cover, check_places
from deeppart.state.structure import SavedArray, Structure, check_aliases
from deeppart.state.target import Target, decode_values, find_targets

#: ``fn(path, values of the old ranks in rank order, new rank, new world size) -> value for the new rank``
PerRankFunction = Callable[[str, Sequence[Any], int, int], Any]
PerRank = str | PerRankFunction


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of all parts.

    Attributes:
        structure: of rank 0's part.
        own: per part, what is its rank's own.
    """

    structure: Structure
    own: tuple[OwnDocument, ...]


def refusal_of(per_rank: object) -> ConfigError | None:
    """Why something is no way to deal with per-rank leaves, or None; to be asked before anything depends on it."""
    if callable(per_rank) or (isinstance(per_rank, str) and per_rank in ("strict", "drop")):
        return None
    return ConfigError(
        "impossible value for per_rank",
        expected='"strict", "drop" or a function (path, old values, new rank, new world size) -> value',
        found=repr(per_rank),
    )


def restore_state(comm: Comm, recovered: Recovered, state: Any, per_rank: PerRank, timeout: float) -> None:
    """Write a recovered step into the live state (collective).

    Raises:
        StateError: the state does not match the checkpoint; nothing has been changed. Raised where it happens, and as
            RemoteRankError on the other ranks.
        PerRankError: per-rank leaves, another world size, and ``per_rank="strict"``.
    """
    what = f"restore of step {recovered.attempt.step}"
    indexes = share_indexes(comm, recovered, timeout)
    documents, error = _share_documents(comm, recovered, timeout)
    raise_together(comm, error, what, timeout)
    assert documents is not None
    restoring = _Restoring(comm, recovered, documents, indexes, per_rank, timeout)
    error = restoring.prepare(state)
    raise_together(comm, error, what, timeout)
    error = restoring.map_old_ranks()
    raise_together(comm, error, what, timeout)
    restoring.write()
    todo = "mend what that rank reports and build the state anew: it may hold bytes of the checkpoint already"
    raise_together(comm, restoring.finish(), what, timeout, todo)


def _share_documents(comm: Comm, recovered: Recovered, timeout: float) -> tuple[Documents | None, DeeppartError | None]:
    """Rank 0's document goes to everyone; the other parts' only if any leaf or value is per rank."""
    what = f"restore of step {recovered.attempt.step}, documents"

    def fetch(part: int) -> bytes:
        read = recovered.reads[part]
        data = recovered.mine[part].reader.meta if part in recovered.mine else None
        return finish(comm, comm.broadcast(data, root=read.reader), what, timeout)

    error: DeeppartError | None = None
    own: list[OwnDocument] = []
    try:
        own.append(decode_meta(fetch(0), f"{what}, part 0"))
        structure = own[0].structure
        if structure is None:
            raise CorruptFileError("part 0 carries no structure document", where=what)
    except FormatError as refusal:
        return None, refusal  # every rank decodes the same bytes, so every rank returns here
    texts: list[bytes] = []
    if structure.per_rank.any() or structure.per_rank_values.any():
        texts = [fetch(part) for part in range(1, recovered.attempt.world_size)]
    try:
        own += [decode_meta(text, f"{what}, part {part}") for part, text in enumerate(texts, start=1)]
        for part, document in enumerate(own):
            document.check(structure, f"{what}, part {part}")
    except FormatError as refusal:
        error = refusal
    return Documents(structure, tuple(own)), error


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
        self._structure, self._own = documents.structure, documents.own
        self._indexes = indexes
        self._per_rank = per_rank
        self._same_world = recovered.attempt.world_size == comm.size
        self._own_leaves = set(np.flatnonzero(self._structure.per_rank).tolist())
        self._own_values = set(np.flatnonzero(self._structure.per_rank_values).tolist())
        self._paths = self._structure.array_paths()
        self._mapped: dict[int, Any] = {}

    @property
    def _maps(self) -> bool:
        return callable(self._per_rank) and not self._same_world and bool(self._own_leaves or self._own_values)

    def prepare(self, state: Any) -> DeeppartError | None:
        """Match the live state; touches nothing."""
        try:
            self._check_per_rank()
            self._check_spans()
            self._flat: FlatState = _flatten(state)
            self._target = self._make_target()
            self._match()
            _check_writable(self._target, self._paths)
        except DeeppartError as error:
            return error
        return None

    def _match(self) -> None:
        try:
            find_targets(self._target, self._flat)
        except (StructureMismatchError, LeafMismatchError) as error:
            error.todo = advice(self._structure.tree, self._flat.root) or error.todo
            raise

    def _check_per_rank(self) -> None:
        if self._same_world or self._per_rank != "strict" or not (self._own_leaves or self._own_values):
            return
        names = [readable(self._paths[index]) for index in sorted(self._own_leaves)]
        names += self._value_names(self._own_values)
        raise PerRankError(
            f"the checkpoint holds leaves of each of its {self._recovered.attempt.world_size} ranks, "
            f"but {self._comm.size} {'ranks restore' if self._comm.size != 1 else 'rank restores'} it",
            found="per rank: " + ", ".join(names[:12]) + (f" ... ({len(names)} in all)" if len(names) > 12 else ""),
            where=f"step {self._recovered.attempt.step}",
            todo='pass per_rank="drop" to keep the live ones, or a function that maps the old ranks\' values to the '
            "new rank; or restart on as many ranks as saved it",
        )

    def _value_names(self, numbers: set[int]) -> list[str]:
        return [
            readable(path)
            for path, node in self._structure.walk()
            if not isinstance(node, SavedArray) and node.index in numbers
        ]

    def _check_spans(self) -> None:
        shared = [index.spans[index.spans["table"] == SHARED_TABLE] for index in self._indexes]
        wanted = {i for i in range(len(self._structure.types)) if i not in self._structure.aliases}
        where = f"step {self._recovered.attempt.step}"
        for index in self._indexes:
            document = self._own[index.part] if self._own_leaves else self._own[0]
            raw_starts = np.zeros(len(index.lengths) + 1, dtype=np.uint64)
            np.cumsum(np.array(index.lengths, dtype=np.uint64), out=raw_starts[1:])
            marked = np.array(index.per_rank, dtype=np.bool_)
            check_places(
                self._structure, document.types, index.spans, raw_starts, marked, f"{where}, part {index.part}"
            )
        check_cover(list(self._structure.types), wanted - self._own_leaves, shared, where)
        if self._own_leaves:
            for document, index in zip(self._own, self._indexes, strict=True):
                own = index.spans[index.spans["table"] != SHARED_TABLE]
                check_cover(document.all_types(self._structure), self._own_leaves, [own], f"{where}, part {index.part}")

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
            dropped = frozenset(self._own_leaves | self._aliases_of(self._own_leaves))
        return Target(structure, types, values, dropped=dropped)

    def _aliases_of(self, owners: set[int]) -> set[int]:
        return {index for index, alias in self._structure.aliases.items() if alias.owner in owners}

    def map_old_ranks(self) -> DeeppartError | None:
        """Ask the caller's function for this rank's per-rank values; touches nothing."""
        if not self._maps:
            return None
        assert callable(self._per_rank)
        old: list[dict[int, Array]] = [
            {index: new_array(document.types[index]) for index in self._own_leaves} for document in self._own
        ]
        distribute_all_own(self._comm, self._recovered, self._indexes, lambda part: Scatter(old[part]), self._timeout)
        rank, size = self._comm.rank, self._comm.size
        try:
            for path, node in self._structure.walk():
                if isinstance(node, SavedArray) and node.index in self._own_leaves:
                    arrays = [entry[node.index] for entry in old]
                    self._mapped[node.index] = self._per_rank(readable(path), arrays, rank, size)
                elif not isinstance(node, SavedArray) and node.index in self._own_values:
                    values = [document.values[node.index] for document in self._own]
                    self._target.values[node.index] = self._per_rank(readable(path), values, rank, size)
            self._take_mapped()
        except DeeppartError as error:
            return error
        except Exception as error:
            return StateError(
                "the per_rank function failed", found=f"{type(error).__name__}: {error}", where=f"rank {rank}"
            )
        return None

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

    def write(self) -> None:
        """Fill every array of the target. From here on the live state changes."""
        self._arrays = self._target.arrays()
        shared = {index: array for index, array in self._arrays.items() if index not in self._own_leaves}
        distribute_shared(self._comm, self._recovered, self._indexes, Scatter(shared), self._timeout)
        own = {index: array for index, array in self._arrays.items() if index in self._own_leaves}
        if self._same_world and self._own_leaves:
            distribute_own(self._comm, self._recovered, self._indexes, Scatter(own), self._timeout)
        for index, value in self._mapped.items():
            _assign(self._arrays[index], value)

    def finish(self) -> DeeppartError | None:
        """Tie what was tied and hand everything to its containers and objects."""
        try:
            tie(self._target, self._arrays)
            put(self._target, self._arrays, self._flat)
        except DeeppartError as error:
            return error
        return None


def _assign(target: Any, value: Any) -> None:
    if isinstance(target, torch.Tensor):
        with torch.no_grad():
            target.copy_(value)
    else:
        np.copyto(target, value)


def _flatten(state: Any) -> FlatState:
    try:
        return flatten(state, live=True)
    except DeeppartError:
        raise
    except Exception as error:  # from the caller's state_dict(): the other ranks are waiting to hear of it
        raise StateError(
            "state_dict() of an object in the state failed", found=f"{type(error).__name__}: {error}"
        ) from error


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
