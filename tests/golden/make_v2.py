"""Makes the golden files of format version 2: ``python -m tests.golden.make_v2 DIRECTORY``.

Version 2 is that of manifests, and of parts with a base: the part of rank 0 refers to the golden part of version 1. The
part of rank 1 has version 1, and chunks that went through the tensor codec. The files under ``tests/golden/v2`` were
made once and stay as they are: later versions of the library must read them. Everything in them is fixed, except that
another zstd may compress planes into other (equally good) bytes.
"""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from deeppart.codec import EncodedChunk, TensorCodec
from deeppart.model import BaseRecord
from deeppart.part import (
    FLAG_PER_RANK,
    SPAN_DTYPE,
    ChunkPlace,
    PartSummary,
    PartWriter,
    base_file_name,
    part_file_name,
)
from tests.golden import make_v1
from tests.golden.make_v1 import ATTEMPT

COUNT = 3000


def _chunks() -> list[tuple[str, bytes]]:
    """One of each layout, and a folded plane: (dtype tag, raw bytes)."""
    mixed = np.arange(1, COUNT + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # splitmix64: the same everywhere
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    spread = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2**53 - 0.5
    single = spread.astype(np.float32)
    half_zero = (single.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    coarse = np.where(np.arange(COUNT) % 2 == 0, spread, spread.astype(np.float32))
    integers = np.arange(COUNT) * 7 - 1000
    return [
        ("bfloat16", (single.view(np.uint32) >> 16).astype(np.uint16).tobytes()),
        ("float16", single.astype(np.float16).tobytes()),
        ("float32", single.tobytes() + b"odd"),
        ("float32", half_zero.tobytes()),
        ("float32", np.abs(single).tobytes()),
        ("float64", np.copysign(np.sqrt(np.abs(spread)), spread).tobytes()),
        ("float64", coarse.tobytes()),
        ("int16", integers.astype(np.int16).tobytes()),
        ("int32", integers.astype(np.int32).tobytes()),
        ("int64", integers.astype(np.int64).tobytes()),
    ]


CHUNKS = _chunks()


def make_part() -> tuple[bytes, PartSummary]:
    """Return the bytes of the golden part of rank 1."""
    sink = io.BytesIO()
    writer = PartWriter(sink, ATTEMPT, 1)
    for dtype, raw in CHUNKS:
        encoded = TensorCodec(dtype).encode(memoryview(raw))
        assert len(encoded) < len(raw), dtype
        writer.add_chunk(memoryview(raw), EncodedChunk(TensorCodec.codec_id, encoded), dtype=dtype)
    span = np.array([(0, 0, 0, sum(len(raw) for _, raw in CHUNKS), 0)], dtype=SPAN_DTYPE)
    summary = writer.finish(span, b"")
    return sink.getvalue(), summary


#: The part of rank 0 is of a later step: its first chunk is as it was.
LATER = replace(ATTEMPT, sequence=8, step=1300)
LATER_RAW = make_v1.RAW[0][:200] + bytes(reversed(make_v1.RAW[0][200:]))
BASE = BaseRecord(make_v1.make_part(0)[1].index_digest, make_v1.make_part(0)[1].nbytes, ATTEMPT.step)


def make_later_part() -> tuple[bytes, PartSummary]:
    """Return the bytes of the golden part of rank 0."""
    raw, first = memoryview(LATER_RAW), make_v1.make_part(0)[1].chunks[0]
    sink = io.BytesIO()
    writer = PartWriter(sink, LATER, 0, refers=True)
    digest = first["raw_digest"].tobytes()
    place = ChunkPlace(int(first["offset"]), EncodedChunk(0, b"", digest, digest), 200, BASE)
    writer.add_reference(200, place, dtype="float32")
    writer.add_chunk(raw[200:], EncodedChunk(0, raw[200:]), dtype="bfloat16", flags=FLAG_PER_RANK)
    summary = writer.finish(np.array(make_v1.SPANS[0], dtype=SPAN_DTYPE), b"{}")
    return sink.getvalue(), summary


def main(directory: str) -> None:
    """Write all golden files into ``directory``; refuses to replace one."""
    part, _ = make_part()
    manifest = make_v1.make_manifest([make_v1.make_part(rank)[1] for rank in range(2)])
    files = {part_file_name(1, 2): part, "manifest": manifest}
    files |= {
        part_file_name(0, 2): make_later_part()[0],
        base_file_name(0, 2, BASE.index_digest): make_v1.make_part(0)[0],
    }
    for name, data in files.items():
        with (Path(directory) / name).open("xb") as file:
            file.write(data)


if __name__ == "__main__":
    main(sys.argv[1])
