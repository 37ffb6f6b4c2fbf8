"""States as a document describes them: written, read again, and ready to be restored; no file is needed."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import numpy as np

from deeppart.state.document.structure import Structure
from deeppart.state.document.structure_json import decode_structure, encode_structure, encode_tree
from deeppart.state.paths.keys import readable
from deeppart.state.restore.target import Target, decode_values
from deeppart.state.tensors.leaves import leaf_type
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.flattening import flatten
from deeppart.state.tree.ties import find_aliases
from deeppart.state.values import encode_value


def document_of(flat: FlatState, own: Collection[str] = ()) -> dict[str, Any]:
    """The structure document of a state; ``own``: readable paths of what is each rank's own."""
    types = [leaf_type(data) for data in flat.data]
    document = encode_structure(
        encode_tree(flat.root),
        types,
        np.array([readable(leaf.path) in own for leaf in flat.arrays], dtype=np.bool_),
        find_aliases(flat, types),
        [encode_value(leaf.value, readable(leaf.path)) for leaf in flat.values],
        np.array([readable(leaf.path) in own for leaf in flat.values], dtype=np.bool_),
        [],
        False,
    )
    found: dict[str, Any] = json.loads(json.dumps(document))
    return found


def structure_of(state: Any, own: Collection[str] = ()) -> Structure:
    """A state's structure, as it is read from a file."""
    return decode_structure(document_of(flatten(state), own), "here")


def target_of(structure: Structure) -> Target:
    """Where all of it goes, with nothing matched yet."""
    return Target(structure, list(structure.types), decode_values(structure, "here"))
