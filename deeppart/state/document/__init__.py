"""The structure document: what a state looked like, written down and read back.

``structure.py`` has the records, ``structure_json.py`` their form in files (docs/format.md), ``part_document.py`` what
each rank adds of its own, and ``whole.py`` the state as all ranks together had it.
"""

from deeppart.state.document.global_state import (
    GlobalState,
    GlobalTensor,
    PartValue,
    ShardSource,
    gather_global_state,
    joined,
    values_in,
    with_global_state,
)
from deeppart.state.document.part_document import (
    Own,
    PartDocument,
    RankDocument,
    RankLocalTree,
    decode_meta,
    encode_rank_local,
    insert,
    rank_shards,
    saved_outermost,
    without_rank_local,
)
from deeppart.state.document.structure import (
    DICTS,
    RankLocalMark,
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

__all__ = [
    "DICTS",
    "GlobalState",
    "GlobalTensor",
    "Own",
    "PartDocument",
    "PartValue",
    "RankDocument",
    "RankLocalMark",
    "RankLocalTree",
    "SavedArray",
    "SavedBranch",
    "SavedNode",
    "SavedSharded",
    "SavedValue",
    "ShardSource",
    "Structure",
    "array_numbers",
    "check_aliases",
    "decode_meta",
    "decode_path",
    "decode_structure",
    "decode_tree",
    "encode_path",
    "encode_rank_local",
    "encode_tree",
    "gather_global_state",
    "insert",
    "joined",
    "rank_shards",
    "saved_outermost",
    "units_of",
    "values_in",
    "walk_tree",
    "with_global_state",
    "with_items_at",
    "without_rank_local",
]
