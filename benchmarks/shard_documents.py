"""What each rank of a restore goes through for the shards that all ranks have saved, beside DCP's metadata.

    python benchmarks/shard_documents.py [--ranks 64] [--tensors 1000] [--repeat 3]

Tensors of two dimensions, sharded by rows over so many ranks. For deeppart, the documents that the ranks' parts carry
are decoded, checked and brought together, and the sources of one rank's shards are looked for; the span tables, whose
bytes are not decoded one by one, are checked, too. For DCP, a `.metadata` file of as many shards is unpickled, and what
to read for one rank's shards is looked for. Shown are microseconds for each shard that any rank has saved, the median
(fastest, slowest), and bytes. One process; no file and no message. Exit code: 0.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from deeppart._gc import collection_paused
from deeppart.model import Box
from deeppart.part import RANK_TABLE, SPAN_DTYPE
from deeppart.state.document.global_state import gather_global_state
from deeppart.state.document.part_document import Own, PartDocument, decode_meta, rank_shards
from deeppart.state.document.structure_json import encode_tree
from deeppart.state.restore.scatter import LiveBox, RankSpans, Scatter, Wanted, check_bytes, wanted_of
from deeppart.state.tensors.leaves import leaf_type
from deeppart.state.tree.flattening import flatten

_ROWS, _COLUMNS = 4, 16


class _Rows(torch.Tensor):
    """A rank's rows of a tensor, as Meta's torch_checkpointing has them."""

    global_shape: Any
    global_offsets: Any
    local_offsets: Any
    local_sizes: Any


def _name(tensor: int) -> str:
    return f"model.layers.{tensor // 10}.block.{tensor % 10}.weight"


def _state(rank: int, ranks: int, tensors: int) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for tensor in range(tensors):
        rows: _Rows = torch.zeros(_ROWS, _COLUMNS).as_subclass(_Rows)
        rows.global_shape = (ranks * _ROWS, _COLUMNS)
        rows.global_offsets, rows.local_offsets = [(rank * _ROWS, 0)], [(0, 0)]
        rows.local_sizes = [(_ROWS, _COLUMNS)]
        found[_name(tensor)] = rows
    return found


def documents(ranks: int, tensors: int) -> tuple[list[bytes], list[npt.NDArray[np.void]]]:
    """The document and the span table of each rank's part."""
    metas, spans = [], []
    for rank in range(ranks):
        flat = flatten(_state(rank, ranks, tensors))
        own = np.ones(len(flat.data), dtype=np.bool_)
        document = PartDocument(
            encode_tree(flat.root),
            [leaf_type(data) for data in flat.data],
            {},
            own,
            np.zeros(0, dtype=np.bool_),
            [],
            rank == 0,
            own=Own([], (0, 0), (0, 0), [], True),
            sharded=rank_shards(flat, ()),
        )
        metas.append(document.meta())
        rows = np.zeros(tensors, dtype=SPAN_DTYPE)
        rows["table"], rows["leaf"], rows["length"] = RANK_TABLE, np.arange(tensors), 4 * _ROWS * _COLUMNS
        spans.append(rows)
    return metas, spans


def restore(metas: list[bytes], spans: list[npt.NDArray[np.void]]) -> int:
    """What a rank goes through; returns how many sources its shards have."""
    with collection_paused():
        first = decode_meta(metas[0], "part 0")
        assert first.structure is not None
        of_ranks = [first.check(first.structure, "part 0")]
        of_ranks += [decode_meta(meta, "a part").check(first.structure, "a part") for meta in metas[1:]]
        global_state = gather_global_state(of_ranks, [((), {})] * len(metas), "here")
        global_state.check("here")
        own = [RankSpans(rows) for rows in spans]
        box, live = Box((0, 0), (_ROWS, _COLUMNS)), torch.zeros(_ROWS, _COLUMNS)
        wanted: list[Wanted] = []
        for tensor in global_state.tensors.values():
            check_bytes(tensor, own, "here")
            wanted += wanted_of(tensor.sources, LiveBox(live, box), tensor.kind, tensor.name)
        scatter = Scatter(wanted)
        return sum(len(scatter.leaves(part)) for part in range(len(metas)))


def dcp_metadata(ranks: int, tensors: int) -> bytes:
    """A `.metadata` file of DCP."""
    found: dict[str, Any] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    for tensor in range(tensors):
        offsets = [torch.Size([rank * _ROWS, 0]) for rank in range(ranks)]
        found[_name(tensor)] = TensorStorageMetadata(
            TensorProperties(dtype=torch.float32),
            torch.Size([ranks * _ROWS, _COLUMNS]),
            [ChunkStorageMetadata(offset, torch.Size([_ROWS, _COLUMNS])) for offset in offsets],
        )
        for rank, offset in enumerate(offsets):
            places[MetadataIndex(_name(tensor), offset, rank)] = _StorageInfo(f"__{rank}_0.distcp", 256 * tensor, 256)
    return pickle.dumps(Metadata(found, storage_data=places))


def dcp_load(text: bytes) -> int:
    """What a rank of `dcp.load` goes through; returns how many items it reads for its shards."""
    metadata = pickle.loads(text)
    mine = [ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([_ROWS, _COLUMNS]))]
    items = [create_read_items_for_chunk_list(name, of, mine) for name, of in metadata.state_dict_metadata.items()]
    return sum(map(len, items))


def _timed(call: Callable[[], int], expected: int, repeat: int, shards: int) -> str:
    found = []
    for _ in range(repeat):
        began = time.perf_counter()
        assert call() == expected
        found.append((time.perf_counter() - began) * 1e6 / shards)
    return f"{median(found):.1f} us ({min(found):.1f}-{max(found):.1f})"


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64, help="ranks that have saved (default 64)")
    parser.add_argument("--tensors", type=int, default=1000, help="tensors, each sharded over all (default 1000)")
    parser.add_argument("--repeat", type=int, default=3, help="times (default 3)")
    options = parser.parse_args()
    shards = options.ranks * options.tensors
    console = Console()
    metas, spans = documents(options.ranks, options.tensors)
    ours = _timed(lambda: restore(metas, spans), options.tensors, options.repeat, shards)
    nbytes = sum(map(len, metas)) + sum(rows.nbytes for rows in spans)
    console.print(f"{shards} shards: deeppart {ours} and {nbytes / shards:.0f} bytes for each")
    text = dcp_metadata(options.ranks, options.tensors)
    theirs = _timed(lambda: dcp_load(text), options.tensors, options.repeat, shards)
    console.print(f"{shards} shards: DCP {theirs} and {len(text) / shards:.0f} bytes for each")


if __name__ == "__main__":
    main()
