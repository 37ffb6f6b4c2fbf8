"""Makes the golden files of manifest version 4: ``python -m tests.golden.make_v4 DIRECTORY``.

Version 4 is that of manifests whose parts are sections of node files: the one of version 3, with the two parts of
version 1 in one node file. The files under ``tests/golden/v4`` were made once and stay as they are: later versions of
the library must read them.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from deeppart.part import (
    SECTION_ALIGNMENT,
    NodeTable,
    Section,
    decode_manifest,
    encode_manifest,
    node_file_name,
    section_file,
)
from tests.golden import make_v1, make_v3

NAME = node_file_name(0, 2)


def make_node_file() -> bytes:
    """Return the bytes of the golden node file."""
    parts = [make_v1.make_part(rank) for rank in range(2)]
    table = NodeTable(
        0,
        2,
        tuple(
            Section(rank, rank * SECTION_ALIGNMENT, summary.nbytes, summary.index_digest)
            for rank, (_, summary) in enumerate(parts)
        ),
    )
    data = bytearray(table.offset)
    for section, (part, _) in zip(table.sections, parts, strict=True):
        data[section.offset : section.end] = part
    return bytes(data) + table.encode()


def make_manifest() -> bytes:
    """Return the bytes of the golden manifest."""
    earlier = decode_manifest(make_v3.make_manifest(), where="of version 3")
    parts = tuple(replace(part, file=section_file(0, part.rank, 2)) for part in earlier.parts)
    return encode_manifest(replace(earlier, parts=parts))


def main(directory: str) -> None:
    """Write the files into ``directory``."""
    for name, data in (("manifest", make_manifest()), (NAME, make_node_file())):
        with (Path(directory) / name).open("xb") as file:
            file.write(data)


if __name__ == "__main__":
    main(sys.argv[1])
