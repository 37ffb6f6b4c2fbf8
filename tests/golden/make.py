"""Makes the golden files: ``python -m tests.golden.make DIRECTORY``.

The files under ``tests/golden/files`` were made once for this version of the format. What reads or writes it in another
way changes the format, and needs another version number. Everything in them is fixed, except that another zstd may
compress chunks into other (equally good) bytes, and for the names of the checkpoint in ``ckpt``:

- ``parts``: two parts, their manifest, and parity of them, which with part 1 is enough to compute part 0;
- ``later``: a step with a part that refers to part 0 as its base, which lies in the step before beside it, and one
  whose chunks went through the tensor codec;
- ``signed``: a part and a manifest with signatures;
- ``runs.json``: containers of small values;
- ``ckpt``: a checkpoint of a state that has everything (:mod:`tests.golden.states`). Its job's lock file was left out.
"""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_128_digest

from deeppart.codec import EncodedChunk, TensorCodec, ZstdCodec
from deeppart.model import Attempt, BaseRecord, ComparedEarlier, Manifest, ParityIdentity, ParityMember
from deeppart.part import (
    FLAG_PER_RANK,
    SPAN_DTYPE,
    ChunkPlace,
    ParityWriter,
    PartSummary,
    PartWriter,
    Signing,
    encode_manifest,
    part_file_name,
    step_name,
    stripes_of,
    strong_digest,
)
from tests.golden import forge

FILES = Path(__file__).parent / "files"
PARTS, SIGNED = FILES / "parts", FILES / "signed"

# --- parts, and their manifest ----------------------------------------------------------------------------------------

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
#: (leaf, table, box, start, length, raw_offset)
SPANS = (
    [(0, 0, 0, 0, 128, 0), (2, 0, 5, 64, 100, 128), (0, 1, 0, 0, 72, 228)],
    [(2, 0, 0, 164, 600, 0), (3, 0, 1 << 40, 0, 1996, 600), (1, 1, 0, 8, 4, 2596)],
)
COMPARED = (ComparedEarlier(None, ((3, 1),)), ComparedEarlier(1100, ((0, 1), (5, 20))))


def make_part(rank: int) -> tuple[bytes, PartSummary]:
    """Rank 0 stored raw, rank 1 raw and zstd."""
    raw = memoryview(RAW[rank])
    sink = io.BytesIO()
    writer = PartWriter(sink, ATTEMPT, rank)
    if rank == 0:
        writer.add_chunk(200, EncodedChunk(0, raw[:200]), dtype="float32")
        writer.add_chunk(len(raw) - 200, EncodedChunk(0, raw[200:]), dtype="bfloat16", flags=FLAG_PER_RANK)
    else:
        writer.add_chunk(100, EncodedChunk(0, raw[:100]))
        second = EncodedChunk(1, ZstdCodec(3).encode(raw[100:]), raw_digest=xxh3_128_digest(raw[100:]))
        writer.add_chunk(len(raw) - 100, second, dtype="int64")
    summary = writer.finish(np.array(SPANS[rank], dtype=SPAN_DTYPE), META[rank])
    return sink.getvalue(), summary


def make_manifest(signing: Signing | None = None) -> bytes:
    """Of both parts."""
    parts = tuple(make_part(rank)[1].record(ATTEMPT, rank) for rank in range(2))
    structure = {"kind": "dict", "leaves": [["w", 1, -2.5, None, True, "é☃"]]}
    manifest = Manifest(ATTEMPT, "2026-11-21T04:05:06+00:00", "deeppart 0.1.0", parts, structure, COMPARED)
    return encode_manifest(manifest, signing)


# --- a later step: a base, and the tensor codec -----------------------------------------------------------------------

_COUNT = 3000


def _chunks() -> list[tuple[str, bytes]]:
    """One of each layout, and a folded plane: (dtype tag, raw bytes)."""
    mixed = np.arange(1, _COUNT + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # splitmix64: the same everywhere
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    spread = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2**53 - 0.5
    single = spread.astype(np.float32)
    half_zero = (single.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    coarse = np.where(np.arange(_COUNT) % 2 == 0, spread, spread.astype(np.float32))
    integers = np.arange(_COUNT) * 7 - 1000
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
LATER = replace(ATTEMPT, sequence=8, step=1300)
LATER_FILES = FILES / "later" / step_name(LATER.key)
#: Of rank 0: its first chunk is as it was.
LATER_RAW = RAW[0][:200] + bytes(reversed(RAW[0][200:]))
BASE = BaseRecord(make_part(0)[1].index_digest, make_part(0)[1].nbytes, ATTEMPT.step, ATTEMPT.sequence)


def make_later_part() -> bytes:
    """Of rank 0, with a chunk in its base."""
    raw, first = memoryview(LATER_RAW), make_part(0)[1].chunks[0]
    sink = io.BytesIO()
    writer = PartWriter(sink, LATER, 0)
    digest = first["raw_digest"].tobytes()
    place = ChunkPlace(int(first["offset"]), EncodedChunk(0, b"", digest, digest), 200, BASE)
    writer.add_reference(200, place, dtype="float32")
    writer.add_chunk(len(raw) - 200, EncodedChunk(0, raw[200:]), dtype="bfloat16", flags=FLAG_PER_RANK)
    writer.finish(np.array(SPANS[0], dtype=SPAN_DTYPE), b"{}")
    return sink.getvalue()


def make_tensor_part() -> bytes:
    """Of rank 1, through the tensor codec."""
    sink = io.BytesIO()
    writer = PartWriter(sink, LATER, 1)
    for dtype, raw in CHUNKS:
        encoded = TensorCodec(dtype).encode(memoryview(raw))
        assert len(encoded) < len(raw), dtype
        chunk = EncodedChunk(TensorCodec.codec_id, encoded, raw_digest=xxh3_128_digest(raw))
        writer.add_chunk(len(raw), chunk, dtype=dtype)
    writer.finish(np.array([(0, 0, 0, 0, sum(len(raw) for _, raw in CHUNKS), 0)], dtype=SPAN_DTYPE), b"")
    return sink.getvalue()


# --- signed -----------------------------------------------------------------------------------------------------------

#: 40 bytes that everyone knows.
SECRET = bytes(range(40))
SIGNING = Signing([SECRET])


def make_signed_part() -> bytes:
    """Its first chunk lies in part 0, its second in the file."""
    sink = io.BytesIO()
    writer = PartWriter(sink, LATER, 0, signing=SIGNING)
    first, second = LATER_RAW[:200], LATER_RAW[200:]
    chunk = make_part(0)[1].chunks[0]
    digests = chunk["encoded_digest"].tobytes(), chunk["raw_digest"].tobytes()
    encoded = EncodedChunk(0, b"", *digests, strong_digest(first))
    writer.add_reference(len(first), ChunkPlace(int(chunk["offset"]), encoded, len(first), BASE), dtype="float32")
    writer.add_chunk(len(second), EncodedChunk(0, second))
    writer.finish(np.array([(0, 0, 0, 0, len(LATER_RAW), 0)], dtype=SPAN_DTYPE), b'{"signed":true}')
    return sink.getvalue()


# --- parity -----------------------------------------------------------------------------------------------------------

#: Of a set of four members of which two may be lost, in order: the last two have no part and only store parity.
PROTECTED = [make_part(0)[0], make_part(1)[0], b"", b""]
LAYOUT = {"tolerate": 2, "block_bytes": 1024, "place": 2}
MEMBERS = [forge.parity_member(rank if data else None, data) for rank, data in enumerate(PROTECTED)]
SET_ID = forge.parity_set_id(MEMBERS, tolerate=2, block_bytes=1024, sequence=7, step=1200, world_size=2)
PARITY_NAME = f"parity-{SET_ID}-002-of-004.dpy"
PAYLOAD, DIGESTS = forge.parity_share(PROTECTED, **LAYOUT)
IDENTITY = ParityIdentity(ATTEMPT, tuple(ParityMember(**member) for member in MEMBERS), **LAYOUT)


def forge_parity(*, head: dict[str, Any] | None = None, **wrong: Any) -> bytes:
    """The share of member 2 by hand, field arithmetic included; with whatever is given put in its place."""
    given = {"payload": PAYLOAD, "digests": DIGESTS, "members": MEMBERS}
    header = forge.parity_header(**{"set_id": SET_ID, **(head or {})})
    return forge.parity_file(head=header, **{**given, **wrong})


def write_parity() -> tuple[bytes, str]:
    """The same from the same blocks as the library writes them, and its index digest."""
    sink = io.BytesIO()
    writer = ParityWriter(sink, IDENTITY)
    stripes = stripes_of(IDENTITY)
    blocks = np.frombuffer(PAYLOAD, dtype=np.uint8)
    digests = np.frombuffer(DIGESTS, dtype=np.uint8).reshape(stripes.rows, 2, 4, 16)
    for row in range(stripes.rows):
        starts = [stripes.parity_start(row, index) for index in range(2)]
        writer.add_row([blocks[start : start + stripes.length(row)] for start in starts])
    index_digest = writer.finish(digests)
    return sink.getvalue(), index_digest


def main(directory: str) -> None:
    """Write everything into ``directory``, which must not be there."""
    from tests.golden import states
    from tests.unit.sharded_states import save

    root = Path(directory)
    files = {
        f"parts/{part_file_name(0, 2)}": make_part(0)[0],
        f"parts/{part_file_name(1, 2)}": make_part(1)[0],
        "parts/manifest": make_manifest(),
        f"parts/{PARITY_NAME}": forge_parity(),
        f"later/{step_name(LATER.key)}/{part_file_name(0, 2)}": make_later_part(),
        f"later/{step_name(ATTEMPT.key)}/{part_file_name(0, 2)}": make_part(0)[0],
        f"later/{step_name(LATER.key)}/{part_file_name(1, 2)}": make_tensor_part(),
        f"signed/{part_file_name(0, 2)}": make_signed_part(),
        "signed/manifest": make_manifest(SIGNING),
        "runs.json": json.dumps(states.encoded_runs(), indent=0).encode(),
    }
    root.mkdir()
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    save(root / "ckpt", states.make_states(), step=9, status="none")
    (root / "ckpt" / ".deeppart.lock").unlink()
    record = root / "ckpt" / "deeppart.json"  # of the directory that it names, another one would be a copy
    record.write_text(json.dumps({"lineage": json.loads(record.read_text())["lineage"]}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
