"""Makes the golden files of signed checkpoints: ``python -m tests.golden.make_signed DIRECTORY``.

A manifest of version 3 with a signature, and a part of version 3: its first chunk lies in the golden part of version 1,
its second in the file. The key is fixed, and so is everything else. The files under ``tests/golden/signed`` were made
once and stay as they are: later versions of the library must read them.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np

from deeppart.codec import EncodedChunk
from deeppart.part import (
    SPAN_DTYPE,
    ChunkPlace,
    PartSummary,
    PartWriter,
    Signing,
    decode_manifest,
    encode_manifest,
    part_file_name,
    strong_digest,
)
from tests.golden import make_v1, make_v3
from tests.golden.make_v2 import BASE, LATER, LATER_RAW

#: 40 bytes that everyone knows.
SECRET = bytes(range(40))
SIGNING = Signing([SECRET])


def make_part() -> tuple[bytes, PartSummary]:
    """Return the bytes of the golden part."""
    sink = io.BytesIO()
    writer = PartWriter(sink, LATER, 0, refers=True, signing=SIGNING)
    first, second = LATER_RAW[:200], LATER_RAW[200:]
    chunk = make_v1.make_part(0)[1].chunks[0]
    digests = chunk["encoded_digest"].tobytes(), chunk["raw_digest"].tobytes()
    encoded = EncodedChunk(0, b"", *digests, strong_digest(first))
    writer.add_reference(len(first), ChunkPlace(int(chunk["offset"]), encoded, len(first), BASE), dtype="float32")
    writer.add_chunk(memoryview(second), EncodedChunk(0, second))
    span = np.array([(0, 0, 0, len(LATER_RAW), 0)], dtype=SPAN_DTYPE)
    summary = writer.finish(span, b'{"signed":true}')
    return sink.getvalue(), summary


def make_manifest() -> bytes:
    """Return the bytes of the golden manifest."""
    return encode_manifest(decode_manifest(make_v3.make_manifest(), where="of version 3"), SIGNING)


def main(directory: str) -> None:
    """Write the files into ``directory``."""
    for name, data in (("manifest", make_manifest()), (part_file_name(0, 2), make_part()[0])):
        with (Path(directory) / name).open("xb") as file:
            file.write(data)


if __name__ == "__main__":
    main(sys.argv[1])
