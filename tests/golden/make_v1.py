"""Makes the golden files of format version 1: ``python -m tests.golden.make_v1 DIRECTORY``.

The files under ``tests/golden/v1`` were made once and stay as they are: later versions of the library must read them.
Everything in them is fixed, except that another zstd may compress part 1 into other (equally good) bytes.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np

from deeppart.codec import EncodedChunk, ZstdCodec
from deeppart.model import Attempt, Manifest
from deeppart.part import FLAG_PER_RANK, SPAN_DTYPE, PartSummary, PartWriter, encode_manifest, part_file_name

ATTEMPT = Attempt(
    lineage="000102030405060708090a0b0c0d0e0f",
    session="f0e1d2c3b4a5968778695a4b3c2d1e0f",
    sequence=7,
    step=1200,
    world_size=2,
)
META = ('{"leaves":["w","é"]}'.encode(), b"")
#: Raw stream of each rank: a ramp that does not compress worth mentioning, and one that does.
RAW = (bytes(i * 7 % 256 for i in range(300)), bytes(range(100)) + bytes(2000) + b"\xff" * 500)
#: (leaf, table, start, length, raw_offset)
SPANS = (
    [(0, 0, 0, 128, 0), (2, 0, 64, 100, 128), (0, 1, 0, 72, 228)],
    [(2, 0, 164, 600, 0), (3, 0, 0, 1996, 600), (1, 1, 8, 4, 2596)],
)


def make_part(rank: int) -> tuple[bytes, PartSummary]:
    """Return the bytes of one golden part: rank 0 stored raw, rank 1 raw and zstd."""
    raw = memoryview(RAW[rank])
    sink = io.BytesIO()
    writer = PartWriter(sink, ATTEMPT, rank)
    if rank == 0:
        writer.add_chunk(raw[:200], EncodedChunk(0, raw[:200]), dtype="float32")
        writer.add_chunk(raw[200:], EncodedChunk(0, raw[200:]), dtype="bfloat16", flags=FLAG_PER_RANK)
    else:
        writer.add_chunk(raw[:100], EncodedChunk(0, raw[:100]))
        writer.add_chunk(raw[100:], EncodedChunk(1, ZstdCodec(3).encode(raw[100:])), dtype="int64")
    summary = writer.finish(np.array(SPANS[rank], dtype=SPAN_DTYPE), META[rank])
    return sink.getvalue(), summary


def make_manifest(summaries: list[PartSummary]) -> bytes:
    """Return the bytes of the golden manifest."""
    parts = tuple(summary.record(ATTEMPT, rank) for rank, summary in enumerate(summaries))
    structure = {"kind": "dict", "leaves": [["w", 1, -2.5, None, True, "é☃"]]}
    return encode_manifest(Manifest(ATTEMPT, "2026-11-21T04:05:06+00:00", "deeppart 0.1.0", parts, structure))


def main(directory: str) -> None:
    """Write all golden files into ``directory``; refuses to replace one."""
    made = [make_part(rank) for rank in range(2)]
    files = {part_file_name(rank, 2): data for rank, (data, _) in enumerate(made)}
    files["manifest"] = make_manifest([summary for _, summary in made])
    for name, data in files.items():
        with (Path(directory) / name).open("xb") as file:
            file.write(data)


if __name__ == "__main__":
    main(sys.argv[1])
