"""The structure document: the structure of a state, written and read.

``structure.py`` has the records, ``structure_json.py`` their form in files (docs/format.md), ``part_document.py`` the
rank-local items of each rank, and ``global_state.py`` the combined state of all ranks.
"""

from deeppart.state.document.global_state import (
    GlobalState,
    gather_global_state,
    with_global_state,
)
from deeppart.state.document.part_document import (
    PartDocument,
    RankDocument,
    RankLocalTree,
    decode_meta,
    encode_rank_local,
    insert,
    without_rank_local,
)
from deeppart.state.document.structure import Structure
from deeppart.state.document.structure_json import (
    Numbers,
    SavedTensor,
    check_aliases,
    decode_division,
    decode_path,
    decode_structure,
    decode_tree,
    encode_division,
    encode_leaf,
    encode_path,
    encode_small,
    encode_structure,
    encode_tree,
    outline,
)

__all__ = [
    "GlobalState",
    "Numbers",
    "PartDocument",
    "RankDocument",
    "RankLocalTree",
    "SavedTensor",
    "Structure",
    "check_aliases",
    "decode_division",
    "decode_meta",
    "decode_path",
    "decode_structure",
    "decode_tree",
    "encode_division",
    "encode_leaf",
    "encode_path",
    "encode_rank_local",
    "encode_small",
    "encode_structure",
    "encode_tree",
    "gather_global_state",
    "insert",
    "outline",
    "with_global_state",
    "without_rank_local",
]
