"""What finding its shards costs one rank of a restore, by how many ranks have saved, beside DCP's metadata.

    python benchmarks/shard_documents.py [--ranks 512 4096 16384] [--onto 1.0] [--model 70B|405B] [--dcp 512]

A Llama of that size with Adam, fp32, sharded by FSDP2 over so many ranks. One rank of a restore, on as many ranks or on
a fraction of them, decodes and checks the structure document, exchanges tables with all ranks, checks the spans that
it leads or keeps, fetches those of its boxes and looks up the chunks with their bytes. The code is deeppart's; what the
other ranks would send is made beforehand. For DCP, a `.metadata` file is unpickled, and what to read for one rank's
shards is looked for. Shown are the processor time of that rank, median (fastest, slowest), the most memory it has
allocated meanwhile, and the bytes that it has received.
One process; no file and no network. Exit code: 0.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, TypeVar

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
from deeppart.comm import Operation, SingleComm
from deeppart.model import Box, Division
from deeppart.part import SPAN_DTYPE
from deeppart.part.format import SHARED_TABLE
from deeppart.plan.restart import Read
from deeppart.recovery.distribute import Delivery
from deeppart.recovery.ranks import Ranks
from deeppart.recovery.saved import Documents, check_spans, saved_step
from deeppart.recovery.tables import KeptSpans, NodeCopies, fetch_spans, share_tables
from deeppart.state.capture.layout import CHUNK_BYTES
from deeppart.state.document.part_document import PartDocument, decode_meta
from deeppart.state.document.structure_json import Numbers, SavedTensor, encode_tree
from deeppart.state.pieces import Keepers, piece_keys
from deeppart.state.restore.scatter import LiveBox, Scatter, Wanted
from deeppart.state.tensors.leaves import leaf_type
from deeppart.state.tree.flattening import flatten

T = TypeVar("T")
#: Layers, width, width of keys and values, width inside a block, words.
_MODELS = {"70B": (80, 8192, 1024, 28672, 128256), "405B": (126, 16384, 1024, 53248, 128256)}
_ITEM_BYTES = 4


def tensors_of(model: str) -> dict[str, tuple[int, ...]]:
    """Name and shape of each tensor of a model and of Adam's moments."""
    layers, width, keys, inner, words = _MODELS[model]
    square, narrow = (width, width), (keys, width)
    block: dict[str, tuple[int, ...]] = {"q": square, "k": narrow, "v": narrow, "o": square}
    block |= {"gate": (inner, width), "up": (inner, width), "down": (width, inner), "norm": (width,), "norm2": (width,)}
    found: dict[str, tuple[int, ...]] = {"embedding": (words, width), "head": (words, width), "norm": (width,)}
    found |= {f"layers.{layer}.{name}": shape for layer in range(layers) for name, shape in block.items()}
    kinds = "model", "exp_avg", "exp_avg_sq"
    return dict(sorted((f"{kind}.{name}", shape) for kind in kinds for name, shape in found.items()))  # as leaves are


def shard(shape: tuple[int, ...], rank: int, ranks: int) -> Box | None:
    """The rows of a rank, as FSDP2 divides them; None if it has none."""
    each = -(-shape[0] // ranks)
    rows = range(shape[0])[rank * each : (rank + 1) * each]
    return Box((rows.start, *(0 for _ in shape[1:])), (len(rows), *shape[1:])) if rows else None


class _Rows(torch.Tensor):
    """A rank's rows of a tensor, as Meta's torch_checkpointing has them."""

    global_shape: Any
    global_offsets: Any
    local_offsets: Any
    local_sizes: Any


def document_of(tensors: dict[str, tuple[int, ...]], ranks: int) -> bytes:
    """The document of part 0."""
    state: dict[str, torch.Tensor] = {}
    divisions: dict[tuple[int, ...], Division] = {}
    for name, shape in tensors.items():
        if shape not in divisions:
            boxes = [box for rank in range(ranks) if (box := shard(shape, rank, ranks)) is not None]
            divisions[shape] = Division.of(boxes, shape)
        first = divisions[shape].box(0)
        rows: _Rows = torch.empty(first.sizes).as_subclass(_Rows)  # of which no page is touched
        rows.global_shape, rows.global_offsets = shape, [first.offset]
        rows.local_offsets, rows.local_sizes = [tuple(0 for _ in shape)], [first.sizes]
        state[name] = rows
    flat, every = flatten(state), range(len(tensors))
    numbers = Numbers(every, every, 0, [0] * len(tensors))
    document = PartDocument(
        encode_tree(flat.root, numbers),
        [leaf_type(data) for data in flat.data],
        [],
        {},
        np.zeros(len(tensors), dtype=np.bool_),
        True,
        tensors=[SavedTensor(leaf.kind, divisions[tuple(leaf.kind.shape)]) for leaf in flat.sharded],
        numbers=numbers,
    )
    return document.meta()


@dataclass(frozen=True)
class Layout:
    """Tensors that some ranks have saved and others restore; ranks of both read as many parts each."""

    shapes: tuple[tuple[int, ...], ...]
    parts: int
    ranks: int

    def reader(self, part: int) -> int:
        return part * self.ranks // self.parts

    def spans(self, part: int) -> npt.NDArray[np.void]:
        """The spans of a part: its rank's shards, each of them one box."""
        each = [(leaf, shard(shape, part, self.parts)) for leaf, shape in enumerate(self.shapes)]
        found = [(leaf, box.elements * _ITEM_BYTES) for leaf, box in each if box is not None]
        rows = np.zeros(len(found), dtype=SPAN_DTYPE)
        rows["table"], rows["box"], rows["leaf"] = SHARED_TABLE, part, [leaf for leaf, _ in found]
        rows["length"] = [nbytes for _, nbytes in found]
        rows["raw_offset"][1:] = np.cumsum(rows["length"])[:-1]
        return rows

    def wanted(self, rank: int) -> Iterator[tuple[int, range]]:
        """The leaves of which a rank needs any bytes, and the boxes with these."""
        for leaf, shape in enumerate(self.shapes):
            mine, each = shard(shape, rank, self.ranks), -(-shape[0] // self.parts)
            if mine is not None:
                yield leaf, range(mine.offset[0] // each, (mine.offset[0] + mine.sizes[0] - 1) // each + 1)

    def wanting(self, leaf: int, box: int) -> range:
        """The ranks that need bytes of a box."""
        rows, each = shard(self.shapes[leaf], box, self.parts), -(-self.shapes[leaf][0] // self.ranks)
        assert rows is not None
        return range(rows.offset[0] // each, (rows.offset[0] + rows.sizes[0] - 1) // each + 1)


class Replay(SingleComm):
    """One of many ranks, whose messages were made before.

    Attributes:
        received_bytes: what has come so far.
    """

    def __init__(self, layout: Layout, rank: int, exchanges: list[dict[int, bytes]]) -> None:
        super().__init__()
        self.rank, self.size = rank, layout.ranks
        self.received_bytes = 0
        self._layout, self._exchanges = layout, exchanges
        self._begun = 0

    def allgather(self, data: bytes) -> Operation[list[bytes]]:
        """Others have sent what this rank has, with the numbers of their parts."""
        begins = 8 + int.from_bytes(data[:8], "little")
        heads, rest = json.loads(data[8:begins]), data[begins:]
        messages = []
        for rank in range(self.size):
            step = (rank - self.rank) * self._layout.parts // self.size
            head = json.dumps([[part + step, *others] for part, *others in heads]).encode()
            messages.append(b"".join((len(head).to_bytes(8, "little"), head, rest)))
        self.received_bytes += sum(map(len, messages))
        return immediately(messages)

    def exchange(self, data: Sequence[bytes]) -> Operation[list[bytes]]:
        """What others have for this rank in the next exchange."""
        self._begun += 1
        sent = self._exchanges[self._begun - 1]
        self.received_bytes += sum(map(len, sent.values()))
        return immediately([sent.get(source, b"") for source in range(self.size)])


def immediately(value: T) -> Operation[T]:
    """An operation that has finished already."""
    yield from ()  # makes this a generator
    return value


def exchanges_of(layout: Layout, rank: int, keepers: Keepers) -> list[dict[int, bytes]]:
    """What others send a rank, by sender: spans to keep, boxes that they need, and spans of boxes that it needs."""
    spans: dict[int, list[tuple[int, int]]] = {}
    asked: dict[int, list[tuple[int, int]]] = {}
    answers: dict[int, list[tuple[int, int]]] = {}
    for leaf in range(len(layout.shapes)):
        for box in keepers.kept_by(rank, leaf):
            spans.setdefault(layout.reader(box), []).append((leaf, box))
            for other in layout.wanting(leaf, box):
                asked.setdefault(other, []).append((leaf, box))
    for leaf, boxes in layout.wanted(rank):
        for box in boxes:
            keeper = int(keepers.ranks_of(piece_keys([(leaf, box)]))[0])
            answers.setdefault(keeper, []).append((leaf, box))
    tables: dict[int, npt.NDArray[np.void]] = {}

    def rows(pieces: list[tuple[int, int]]) -> bytes:
        found = []
        for leaf, box in pieces:
            table = tables.setdefault(box, layout.spans(box)) if box not in tables else tables[box]
            found.append(table[table["leaf"] == leaf])
        kept = KeptSpans(np.concatenate(found), np.array([box for _, box in pieces], dtype=np.uint32))
        return kept.encode(np.arange(len(pieces)))

    return [
        {sender: rows(pieces) for sender, pieces in spans.items()},
        {sender: piece_keys(pieces).tobytes() for sender, pieces in asked.items()},
        {sender: rows(pieces) for sender, pieces in answers.items()},
    ]


def restore(layout: Layout, rank: int, meta: bytes, comm: Replay) -> int:
    """What a rank goes through; returns the bytes of the pieces in the chunks with bytes that it needs."""
    ranks = Ranks(comm, tuple(each // 8 for each in range(comm.size)), 60.0)
    with collection_paused():
        first = decode_meta(meta, "part 0")
        assert first.structure is not None
        complete = first.check(first.structure, "part 0")
    attempt: Any = SimpleNamespace(step=1, world_size=layout.parts)
    recovered: Any = recovered_by(layout, rank, attempt)
    saved = saved_step(attempt, Documents(first.structure, (first,), (complete,)), rank, comm.size)
    tables = share_tables(ranks, recovered, saved.documents.structure)
    held = check_spans(saved, tables, recovered, rank)
    memory = torch.empty(1)
    wanted = []
    for leaf, shape in enumerate(layout.shapes):
        box = shard(shape, rank, comm.size)
        if box is not None:
            live = LiveBox(memory.expand(box.sizes), box)
            wanted += [Wanted(source, live, _ITEM_BYTES, f"leaf {leaf}") for source in held.sources(leaf, box)]
    scatter = Scatter(wanted)
    pieces = piece_keys((each.source.leaf, each.source.number) for each in wanted)
    tables = fetch_spans(ranks, tables, pieces, "restore of step 1")
    assert not tables.lack(pieces)
    Delivery(ranks, recovered, tables, NodeCopies({}, frozenset()))
    found = 0
    for index in tables.indexes:
        for chunk in scatter.chunks(index.part, index.pieces):
            found += sum(chunk.pieces[number].length for number, _ in chunk.wants)
    return found


def recovered_by(layout: Layout, rank: int, attempt: Any) -> Any:
    """The parts that a rank leads, as it has read them."""
    reads = tuple(Read(part, layout.reader(part), SimpleNamespace(load_bytes=0)) for part in range(layout.parts))  # type: ignore[arg-type]
    led = [read.part for read in reads if read.reader == rank]
    mine = {}
    for part in led:
        spans = layout.spans(part)
        raw_bytes = int(spans["length"].sum())
        starts = np.append(np.arange(0, raw_bytes, CHUNK_BYTES, dtype=np.uint64), np.uint64(raw_bytes))
        chunks = np.zeros(len(starts) - 1, dtype=[("raw_length", "<u8")])
        chunks["raw_length"] = np.diff(starts)
        reader = SimpleNamespace(
            spans=spans, raw_starts=starts, chunks=chunks, marked_per_rank=np.zeros(len(chunks), dtype=np.bool_)
        )
        mine[part] = SimpleNamespace(reader=reader, place=None, read=None, chunks=None)
    return SimpleNamespace(
        attempt=attempt, reads=reads, mine=mine, reader=lambda part: mine[part].reader, led_by=lambda _: led
    )


def dcp_metadata(tensors: dict[str, tuple[int, ...]], ranks: int) -> bytes:
    """A `.metadata` file of DCP."""
    found: dict[str, Any] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    for number, (name, shape) in enumerate(tensors.items()):
        boxes = [box for rank in range(ranks) if (box := shard(shape, rank, ranks)) is not None]
        chunks = [ChunkStorageMetadata(torch.Size(box.offset), torch.Size(box.sizes)) for box in boxes]
        found[name] = TensorStorageMetadata(TensorProperties(dtype=torch.float32), torch.Size(shape), chunks)
        for rank, chunk in enumerate(chunks):
            places[MetadataIndex(name, chunk.offsets, rank)] = _StorageInfo(f"__{rank}_0.distcp", 256 * number, 256)
    return pickle.dumps(Metadata(found, storage_data=places))


def dcp_load(text: bytes, mine: dict[str, Box]) -> int:
    """What a rank of `dcp.load` goes through; returns how many items it reads for its shards."""
    metadata = pickle.loads(text)
    items = [
        create_read_items_for_chunk_list(
            name, metadata.state_dict_metadata[name], [ChunkStorageMetadata(torch.Size(b.offset), torch.Size(b.sizes))]
        )
        for name, b in mine.items()
    ]
    return sum(map(len, items))


def measured(call: Callable[[], int], expected: int, repeat: int) -> str:
    """Processor time and memory of calls."""
    found = []
    for _ in range(repeat):
        began = time.process_time()
        assert call() == expected
        found.append(time.process_time() - began)
    tracemalloc.start()
    call()
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return f"{median(found):.3f} s ({min(found):.3f}-{max(found):.3f}), {peak_bytes / 1e6:.1f} MB held"


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[512, 4096, 16384], help="ranks that have saved")
    parser.add_argument("--onto", type=float, default=1.0, help="ranks that restore, for each of these (default 1)")
    parser.add_argument("--model", choices=_MODELS, default="70B", help="(default 70B)")
    parser.add_argument("--dcp", type=int, default=0, help="up to this number of ranks, beside DCP (default 0)")
    parser.add_argument("--repeat", type=int, default=3, help="times (default 3)")
    options = parser.parse_args()
    tensors = tensors_of(options.model)
    console = Console(width=120)
    for parts in options.ranks:
        layout = Layout(tuple(tensors.values()), parts, max(int(parts * options.onto), 1))
        rank = layout.ranks // 3
        meta = document_of(tensors, parts)
        structure = decode_meta(meta, "part 0").structure
        assert structure is not None
        exchanges = exchanges_of(layout, rank, Keepers.of(structure, layout.ranks))
        mine = {name: box for name, shape in tensors.items() if (box := shard(shape, rank, layout.ranks)) is not None}
        own_bytes = sum(box.elements * _ITEM_BYTES for box in mine.values())
        comm = Replay(layout, rank, exchanges)
        restore(layout, rank, meta, comm)
        shards = sum(len(division) for division in structure.divisions.values())
        expected = restore(layout, rank, meta, Replay(layout, rank, exchanges))
        if options.onto == 1:
            assert expected == own_bytes
        ours = measured(lambda: restore(layout, rank, meta, Replay(layout, rank, exchanges)), expected, options.repeat)  # noqa: B023
        console.print(f"{parts} ranks onto {layout.ranks}, {shards} shards, {own_bytes / 1e6:.0f} MB of this rank")
        console.print(f"    deeppart {ours}, {comm.received_bytes / 1e6:.1f} MB received")
        if parts <= options.dcp:
            text = dcp_metadata(tensors, parts)
            theirs = measured(lambda: dcp_load(text, mine), dcp_load(text, mine), options.repeat)  # noqa: B023
            console.print(f"    DCP {theirs}, {len(text) / 1e6:.1f} MB received")


if __name__ == "__main__":
    main()
