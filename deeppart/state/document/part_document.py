"""The JSON documents of a checkpoint: what its bytes mean.

Every part carries a small document with its rank's own values and leaf types; rank 0's also carries the structure
document (:mod:`deeppart.state.document.structure`). Encoding is left to the background: nothing here may change once
made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart._gc import collection_paused
from deeppart.errors import CorruptFileError
from deeppart.model import ComparedEarlier
from deeppart.part import OWN_TABLE
from deeppart.part.format import short
from deeppart.part.json_text import parse_json
from deeppart.state.document.apart import OwnSharded, OwnTree, decode_own, of_rank
from deeppart.state.document.decoding import (
    check_aliases,
    checked_type,
    decode_alias,
    decode_shards,
    decode_structure,
    decode_type,
)
from deeppart.state.document.encoding import CODES, encode_structure, encode_type
from deeppart.state.document.structure import DICTS, Alias, Structure
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.leaves import LeafType
from deeppart.state.tree.paths import Key
from deeppart.state.tree.runs import decode_leaf_value
from deeppart.state.tree.values import Encoded, decode_value

#: Where the values and trees of a rank are in documents of structure version 5.
_EXTENDED = "extended"
_DICT_CODES = frozenset(CODES[kind] for kind in DICTS)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Own:
    """The items that are apart on one rank (:mod:`deeppart.state.document.apart`).

    Attributes:
        trees: JSON form of the trees.
        first: numbers, on this rank, of the first array and the first value that stand apart.
        shift: to be added to these numbers in files: they follow those of rank 0's.
        rank0: paths of what is rank 0's.
        anywhere: true if anything stands apart on any rank.
    """

    trees: list[Any]
    first: tuple[int, int]
    shift: tuple[int, int]
    rank0: list[Any]
    anywhere: bool


@dataclass(frozen=True, slots=True)
class OwnShards:
    """What one rank has of the sharded tensors.

    Attributes:
        whole: type of each whole tensor, by number.
        shared: how many of them are in the structure that all ranks share.
        shards: of each, the numbers of the leaves that are this rank's shards, where these begin, and whether another
            rank has other bytes for the same one.
    """

    whole: list[LeafType]
    shared: int
    shards: list[list[tuple[int, tuple[int, ...], bool]]]


def own_shards(flat: FlatState, apart: Collection[int]) -> OwnShards | None:
    """What this rank has of sharded tensors."""
    if not flat.sharded:
        return None
    shards = [
        [(number, box.offset, number in apart) for number, box in zip(leaf.numbers, leaf.boxes, strict=True)]
        for leaf in flat.sharded
    ]
    return OwnShards([leaf.kind for leaf in flat.sharded], flat.shared_sharded, shards)


@dataclass(frozen=True, slots=True)
class PartDocument:
    """The document of one rank's part, without its bytes.

    Attributes:
        tree: JSON form of the tree that all ranks share.
        types: type of each leaf on this rank.
        aliases: leaves that share memory.
        per_rank, per_rank_values: which leaves and values are this rank's own.
        values: encoded values, of this checkpoint.
        with_structure: true if this is rank 0, which carries the structure.
        compared: for the manifest, the replicated leaves that were last compared in full before this step.
        own: the items that are apart on this rank.
        sharded: what it has of sharded tensors.
        has_composites: true if this rank's state has tensors that are made of others.
        extended: true if readers before structure version 5 do not know something in the state of some rank.
    """

    tree: Any
    types: list[LeafType]
    aliases: dict[int, Alias]
    per_rank: npt.NDArray[np.bool_]
    per_rank_values: npt.NDArray[np.bool_]
    values: list[Encoded]
    with_structure: bool
    compared: tuple[ComparedEarlier, ...] = ()
    own: Own | None = None
    sharded: OwnShards | None = None
    has_composites: bool = False
    extended: bool = False

    def structure(self) -> dict[str, Any]:
        """The structure document."""
        leaves, values = (len(self.types), len(self.values)) if self.own is None else self.own.first
        return encode_structure(
            self.tree,
            self.types[:leaves],
            self.per_rank[:leaves],
            {index: alias for index, alias in self.aliases.items() if index < leaves},
            self.values[:values],
            self.per_rank_values[:values],
            [] if self.own is None else self.own.rank0,
            self.own is not None and self.own.anywhere,
            [] if self.sharded is None else self.sharded.whole[: self.sharded.shared],
            self.has_composites,
            self.extended,
        )

    def span_table(self, spans: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """The rows of the part's span table: those of a share, with the numbers that leaves have in files."""
        if self.own is None or not self.own.shift[0]:
            return spans
        rows = spans.copy()
        rows["leaf"][(rows["table"] == OWN_TABLE) & (rows["leaf"] >= self.own.first[0])] += self.own.shift[0]
        return rows

    def meta(self) -> bytes:
        """The part's JSON document."""
        with collection_paused():
            return self._meta()

    def _meta(self) -> bytes:
        own = np.flatnonzero(self.per_rank).tolist()
        values = np.flatnonzero(self.per_rank_values).tolist()
        document: dict[str, Any] = {
            "leaves": {str(self._number(index, 0)): self._leaf(index) for index in own},
            "values": {str(self._number(index, 1)): self.values[index] for index in values},
        }
        if self.own is not None and self.own.anywhere:
            document["trees"] = self.own.trees
        if self.extended:  # out of the way of older readers, which come to the structure's version last
            later = {name: document.pop(name) for name in ("values", "trees") if name in document}
            document |= {"values": {}, _EXTENDED: later}
        if self.sharded is not None:
            document |= self._sharded(self.sharded)
        if self.with_structure:
            document["structure"] = self.structure()
        return json.dumps(document, separators=(",", ":")).encode()

    def _sharded(self, sharded: OwnShards) -> dict[str, Any]:
        shards = {
            str(number): [[self._number(leaf, 0), list(offset), *([1] if own else [])] for leaf, offset, own in each]
            for number, each in enumerate(sharded.shards)
            if each
        }
        apart = range(sharded.shared, len(sharded.whole))
        return {"shards": shards, "sharded": {str(number): encode_type(sharded.whole[number]) for number in apart}}

    def _number(self, index: int, which: int) -> int:
        """The number in files of an array (0) or a value (1)."""
        if self.own is None or index < self.own.first[which]:
            return index
        return index + self.own.shift[which]

    def _leaf(self, index: int) -> list[Any]:
        kind = self.types[index]
        entry: list[Any] = [kind.kind, kind.dtype, list(kind.shape)]
        if self.own is not None and index >= self.own.first[0] and index in self.aliases:
            alias = self.aliases[index]
            entry.append([self._number(alias.owner, 0), alias.offset, list(alias.strides)])
        return entry


@dataclass(frozen=True, slots=True)
class OwnDocument:
    """The description of a rank's own leaves and values in its part, decoded.

    Attributes:
        types: leaf number -> type.
        values: value number -> decoded value.
        structure: the structure, in rank 0's part.
        trees: the trees that are apart on this rank.
        aliases: leaves of ``trees`` that share memory.
        sharded: its shards of tensors.
    """

    types: dict[int, LeafType]
    values: dict[int, Any]
    structure: Structure | None = field(default=None)
    trees: tuple[OwnTree, ...] = ()
    aliases: dict[int, Alias] = field(default_factory=dict)
    sharded: OwnSharded = field(default_factory=OwnSharded)

    def check(self, structure: Structure, where: str) -> Structure:
        """Refuse a document that names other leaves or values than the structure calls per rank."""
        shared, shared_values = len(structure.types), len(structure.values)
        leaves = set(np.flatnonzero(structure.per_rank).tolist())
        values = set(np.flatnonzero(structure.per_rank_values).tolist())
        own = self.types  # which may have other shapes than on rank 0
        tied = {index: alias for index, alias in structure.aliases.items() if index in own or alias.owner in own}
        try:
            check_aliases(self.all_types(structure) if tied else (), tied)
        except (ValueError, IndexError) as error:
            raise CorruptFileError(
                "a part's document does not fit the structure document", found=str(error), where=where
            ) from error
        found = {index for index in self.types if index < shared or not structure.has_apart}
        found_values = {index for index in self.values if index < shared_values or not structure.has_apart}
        strange = (self.trees or self.sharded.shards or self.sharded.whole) and not structure.has_apart
        if found != leaves or found_values != values or strange:
            raise CorruptFileError(
                "a part's document does not fit the structure document",
                expected=f"per-rank leaves {sorted(leaves)[:8]}, values {sorted(values)[:8]}",
                found=f"leaves {sorted(self.types)[:8]}, values {sorted(self.values)[:8]}",
                where=where,
            )
        return self.complete(structure, where)

    def complete(self, structure: Structure, where: str) -> Structure:
        """The structure of this rank's state: what all ranks share, and what stands apart on this one."""
        return of_rank(structure, self.trees, self.types, self.values, self.aliases, self.sharded, where)

    def all_types(self, structure: Structure) -> list[LeafType]:
        """Type of every leaf as this rank saved it."""
        return [self.types.get(index, kind) for index, kind in enumerate(structure.types)]


def decode_meta(meta: bytes, where: str, *, with_structure: bool = True) -> OwnDocument:
    """Read a part's JSON document."""
    with collection_paused():
        return _decode_meta(meta, where, with_structure)


def _decode_meta(meta: bytes, where: str, with_structure: bool) -> OwnDocument:
    try:
        document = parse_json(meta)
        types, aliases = {}, {}
        for text, (kind, dtype, shape, *alias) in document["leaves"].items():
            number = _number(text)
            types[number] = checked_type(kind, dtype, shape, where)
            if len(alias) > 1:
                raise ValueError(f"leaf {number} has more to it than a leaf has")
            if alias:
                aliases[number] = decode_alias(alias[0])
        found = document.get(_EXTENDED, document)
        values = {_number(index): decode_leaf_value(value, where) for index, value in found["values"].items()}
        sharded = OwnSharded(
            {_number(index): decode_type(each, where) for index, each in document.get("sharded", {}).items()},
            {_number(index): decode_shards(each) for index, each in document.get("shards", {}).items()},
        )
        trees = decode_own(found.get("trees", []), set(types), set(values), set(sharded.whole), where)
        structure = document.get("structure") if with_structure else None
        check_aliases(types, aliases)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise CorruptFileError(
            "a part's document cannot be read", found=f"{type(error).__name__}: {error}", where=where
        ) from error
    decoded = None if structure is None else decode_structure(structure, where)
    return OwnDocument(types, values, decoded, trees, aliases, sharded)


def saved_outermost(meta: bytes) -> list[Key]:
    """The keys of the outermost dict in the structure of rank 0's document; [] if that is no dict.

    Nothing else of it is decoded or checked.
    """
    code, *rest = parse_json(meta)["structure"]["tree"]
    return [decode_value(key, "outermost keys") for key in rest[0]] if code in _DICT_CODES else []


def _number(text: str) -> int:
    """The number of a leaf or value, written in the one way that there is."""
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"not a number of a leaf: {short(text)}")
    return int(text)
