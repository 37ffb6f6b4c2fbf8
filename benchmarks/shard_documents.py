"""What each rank of a restore goes through for the shards that all ranks have saved, beside DCP's metadata.

    python benchmarks/shard_documents.py [--ranks 64] [--tensors 1000] [--repeat 3]

Tensors of two dimensions, sharded by rows over so many ranks. For deeppart, one of as many ranks decodes and checks the
structure document, checks against it the span table of one part, checks that the tables of all parts hold its share of
the tensors once, and looks in all of them for the sources of its shards. For DCP, a `.metadata` file of as many shards
is unpickled, and what to read for one rank's shards is looked for. Shown are microseconds of processor time for each
shard that any rank has saved, the median (fastest, slowest), and bytes.
One process; no file and no message. Exit code: 0.
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
from deeppart.model import Box, Division
from deeppart.part import SHARED_TABLE, SPAN_DTYPE
from deeppart.state.document.global_state import gather_global_state
from deeppart.state.document.part_document import FileNumbers, PartDocument, decode_meta
from deeppart.state.document.structure_json import Numbers, SavedTensor, encode_tree
from deeppart.state.pieces import Held, PartPieces, check_own, check_places
from deeppart.state.restore.scatter import LiveBox, Scatter, Wanted
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
    boxes = [Box((rank * _ROWS, 0), (_ROWS, _COLUMNS)) for rank in range(ranks)]
    division = Division.of(boxes, (ranks * _ROWS, _COLUMNS))
    for rank in range(ranks):
        flat = flatten(_state(rank, ranks, tensors))
        numbers = np.arange(tensors)
        document = PartDocument(
            encode_tree(flat.root, Numbers(tensors=range(tensors))),
            [leaf_type(data) for data in flat.data],
            {},
            np.zeros(tensors, dtype=np.bool_),
            np.zeros(0, dtype=np.bool_),
            [],
            rank == 0,
            tensors=[SavedTensor(leaf.kind, division) for leaf in flat.sharded],
            numbers=FileNumbers((0, 0), numbers, numbers[:0], np.full(tensors, rank)),
        )
        metas.append(document.meta())
        rows = np.zeros(tensors, dtype=SPAN_DTYPE)
        rows["table"], rows["leaf"], rows["length"] = SHARED_TABLE, numbers, 4 * _ROWS * _COLUMNS
        rows["raw_offset"] = 4 * _ROWS * _COLUMNS * numbers
        spans.append(document.span_table(rows))
    return metas, spans


def restore(metas: list[bytes], spans: list[npt.NDArray[np.void]]) -> int:
    """What a rank goes through; returns how many pieces of chunks it wants."""
    with collection_paused():
        first = decode_meta(metas[0], "part 0")
        assert first.structure is not None and not first.structure.has_rank_local
        structure = first.check(first.structure, "part 0")
        state = gather_global_state(structure, [(first.trees, first.values)], "here")
        state.check(structure, "here")
        for rows in spans[:1]:
            ends = np.append(rows["raw_offset"], rows["raw_offset"][-1:] + rows["length"][-1:])
            check_places(structure, {}, rows, ends, np.zeros(len(rows), dtype=np.bool_), "here")
            check_own(structure, {}, rows, None, "here")
        held = Held(structure, dict(enumerate(spans)))
        assert not held.faults_of(0, len(spans))
        live = LiveBox(torch.zeros(_ROWS, _COLUMNS), Box((0, 0), (_ROWS, _COLUMNS)))
        scatter = Scatter(
            Wanted(source, live, tensor.kind.itemsize, tensor.name)
            for leaf, tensor in state.tensors.items()
            for source in held.sources(leaf, live.box)
        )
        found = 0
        for part, rows in enumerate(spans):
            pieces = PartPieces(rows, np.array([0, rows["length"].sum()], dtype=np.uint64))
            found += sum(len(wants) for _, _, wants in scatter.chunks(part, pieces))
        return found


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
        began = time.process_time()
        assert call() == expected
        found.append((time.process_time() - began) * 1e6 / shards)
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
