"""The structure document: what a state looked like, written down and read back.

``structure.py`` has the records, ``structure_json.py`` their form in files (docs/format.md), ``part_document.py`` what
each rank adds of its own, and ``whole.py`` the state as all ranks together had it.
"""

from deeppart.state.document.part_document import (
    Own,
    OwnDocument,
    OwnTree,
    PartDocument,
    decode_meta,
    encode_own,
    insert,
    own_shards,
    saved_outermost,
    without_apart,
)
from deeppart.state.document.structure import (
    DICTS,
    SavedApart,
    SavedArray,
    SavedBranch,
    SavedNode,
    SavedSharded,
    SavedValue,
    Structure,
    array_numbers,
    units_of,
    walk_tree,
    with_items_at,
)
from deeppart.state.document.structure_json import (
    check_aliases,
    decode_path,
    decode_structure,
    decode_tree,
    encode_path,
    encode_tree,
)
from deeppart.state.document.whole import (
    PartValue,
    ShardSource,
    Wholes,
    WholeTensor,
    gather_wholes,
    joined,
    values_in,
    with_wholes,
)

__all__ = [
    "DICTS",
    "Own",
    "OwnDocument",
    "OwnTree",
    "PartDocument",
    "PartValue",
    "SavedApart",
    "SavedArray",
    "SavedBranch",
    "SavedNode",
    "SavedSharded",
    "SavedValue",
    "ShardSource",
    "Structure",
    "WholeTensor",
    "Wholes",
    "array_numbers",
    "check_aliases",
    "decode_meta",
    "decode_path",
    "decode_structure",
    "decode_tree",
    "encode_own",
    "encode_path",
    "encode_tree",
    "gather_wholes",
    "insert",
    "joined",
    "own_shards",
    "saved_outermost",
    "units_of",
    "values_in",
    "walk_tree",
    "with_items_at",
    "with_wholes",
    "without_apart",
]
