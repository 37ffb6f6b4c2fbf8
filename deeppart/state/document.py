"""The JSON documents of a checkpoint: what its bytes mean.

Every part carries a small document with its rank's own values and leaf types; rank 0's also carries the structure
document (:mod:`deeppart.state.structure`). Encoding is left to the background: nothing here may change once made.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart.collecting import collection_paused
from deeppart.errors import CorruptFileError
from deeppart.model import ComparedEarlier
from deeppart.part.format import short
from deeppart.part.json_text import parse_json
from deeppart.state.leaves import LeafType
from deeppart.state.runs import decode_leaf_value
from deeppart.state.structure import Alias, Structure, check_aliases, decode_structure, encode_structure
from deeppart.state.values import Encoded

_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PartDocument:
    """What one rank's part says beside its bytes.

    Attributes:
        tree: JSON form of the state's tree.
        types: type of each leaf on this rank.
        aliases: leaves that share memory.
        per_rank, per_rank_values: which leaves and values are this rank's own.
        values: encoded values, of this checkpoint.
        with_structure: whether this is rank 0, which carries the structure.
        compared: for the manifest, the replicated leaves that were last compared in full before this step.
    """

    tree: Any
    types: list[LeafType]
    aliases: dict[int, Alias]
    per_rank: npt.NDArray[np.bool_]
    per_rank_values: npt.NDArray[np.bool_]
    values: list[Encoded]
    with_structure: bool
    compared: tuple[ComparedEarlier, ...] = ()

    def structure(self) -> dict[str, Any]:
        """The structure document."""
        return encode_structure(self.tree, self.types, self.per_rank, self.aliases, self.values, self.per_rank_values)

    def meta(self) -> bytes:
        """The part's JSON document."""
        with collection_paused():
            return self._meta()

    def _meta(self) -> bytes:
        own = [(index, self.types[index]) for index in np.flatnonzero(self.per_rank).tolist()]
        document: dict[str, Any] = {
            "leaves": {str(index): [kind.kind, kind.dtype, list(kind.shape)] for index, kind in own},
            "values": {str(index): self.values[index] for index in np.flatnonzero(self.per_rank_values).tolist()},
        }
        if self.with_structure:
            document["structure"] = self.structure()
        return json.dumps(document, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class OwnDocument:
    """What a part says of its rank's own leaves and values, decoded.

    Attributes:
        types: leaf number -> type.
        values: value number -> decoded value.
        structure: the structure, in rank 0's part.
    """

    types: dict[int, LeafType]
    values: dict[int, Any]
    structure: Structure | None = field(default=None)

    def check(self, structure: Structure, where: str) -> None:
        """Refuse a document that names other leaves or values than the structure calls per rank.

        Raises:
            CorruptFileError: naming the place.
        """
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
        if self.types.keys() != leaves or self.values.keys() != values:
            raise CorruptFileError(
                "a part's document does not fit the structure document",
                expected=f"per-rank leaves {sorted(leaves)[:8]}, values {sorted(values)[:8]}",
                found=f"leaves {sorted(self.types)[:8]}, values {sorted(self.values)[:8]}",
                where=where,
            )

    def all_types(self, structure: Structure) -> list[LeafType]:
        """Type of every leaf as this rank saved it."""
        return [self.types.get(index, kind) for index, kind in enumerate(structure.types)]


def decode_meta(meta: bytes, where: str) -> OwnDocument:
    """Read a part's JSON document.

    Raises:
        CorruptFileError: not one that :meth:`PartDocument.meta` makes.
    """
    try:
        document = parse_json(meta)
        types = {
            _number(index): LeafType(kind, dtype, tuple(shape))
            for index, (kind, dtype, shape) in document["leaves"].items()
        }
        values = {_number(index): decode_leaf_value(value, where) for index, value in document["values"].items()}
        structure = document.get("structure")
        for kind in types.values():
            kind.check(where)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFileError(
            "a part's document cannot be read", found=f"{type(error).__name__}: {error}", where=where
        ) from error
    return OwnDocument(types, values, None if structure is None else decode_structure(structure, where))


def _number(text: str) -> int:
    """The number of a leaf or value, written in the one way that there is."""
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"not a number of a leaf: {short(text)}")
    return int(text)
