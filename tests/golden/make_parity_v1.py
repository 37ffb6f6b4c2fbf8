"""Makes the golden parity file of format version 1: ``python -m tests.golden.make_parity_v1 DIRECTORY``.

It protects the two golden parts, in a set of four members of which two may be lost: the last two have no part and only
store parity. The file is the share of member 2, which together with part 1 is enough to compute part 0. The bytes come
from ``forge``, field arithmetic included; :func:`write_parity` makes the same with the library. Like all files under
``tests/golden/v1`` it was made once and stays as it is.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np

from deeppart.model import ParityIdentity, ParityMember
from deeppart.part import ParityWriter, stripes_of
from tests.golden import forge
from tests.golden.make_v1 import ATTEMPT

GOLDEN = Path(__file__).parent / "v1"
#: Of all members, in order.
PARTS = [(GOLDEN / f"part-{rank:05d}-of-00002.dpp").read_bytes() for rank in range(2)] + [b"", b""]
LAYOUT = {"tolerate": 2, "block_bytes": 1024, "place": 2}
MEMBERS = [forge.parity_member(rank if data else None, data) for rank, data in enumerate(PARTS)]
SET_ID = forge.parity_set_id(MEMBERS, tolerate=2, block_bytes=1024, sequence=7, step=1200, world_size=2)
NAME = f"parity-{SET_ID}-002-of-004.dpy"
PAYLOAD, DIGESTS = forge.parity_share(PARTS, **LAYOUT)
IDENTITY = ParityIdentity(ATTEMPT, tuple(ParityMember(**member) for member in MEMBERS), **LAYOUT)


def forge_parity(*, head: dict[str, Any] | None = None, **wrong: Any) -> bytes:
    """Return the bytes of the golden file, with whatever is given put in its place; ``head``: fields of the header."""
    given = {"payload": PAYLOAD, "digests": DIGESTS, "members": MEMBERS}
    header = forge.parity_header(**{"set_id": SET_ID, **(head or {})})
    return forge.parity_file(head=header, **{**given, **wrong})


def write_parity() -> tuple[bytes, str]:
    """Return the bytes of the golden file and its index digest, from the same blocks, as the library writes them."""
    sink = io.BytesIO()
    writer = ParityWriter(sink, IDENTITY)
    stripes = stripes_of(IDENTITY)
    blocks = np.frombuffer(PAYLOAD, dtype=np.uint8)
    digests = np.frombuffer(DIGESTS, dtype=np.uint8).reshape(stripes.rows, 2, 4, 16)
    for row in range(stripes.rows):
        starts = [stripes.parity_start(row, index) for index in range(2)]
        writer.add_row([blocks[start : start + stripes.length(row)] for start in starts], digests[row])
    index_digest = writer.finish()
    return sink.getvalue(), index_digest


def main(directory: str) -> None:
    """Write the file into ``directory``; refuses to replace one."""
    with (Path(directory) / NAME).open("xb") as file:
        file.write(forge_parity())


if __name__ == "__main__":
    main(sys.argv[1])
