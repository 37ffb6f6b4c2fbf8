"""Makes the golden file of format version 3: ``python -m tests.golden.make_v3 DIRECTORY``.

Version 3 is that of manifests which say when leaves were last compared: the one of version 2, and that. The file under
``tests/golden/v3`` was made once and stays as it is: later versions of the library must read it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from deeppart.model import ComparedEarlier
from deeppart.part import decode_manifest, encode_manifest
from tests.golden import make_v1

COMPARED = (ComparedEarlier(None, ((3, 1),)), ComparedEarlier(1100, ((0, 1), (5, 20))))


def make_manifest() -> bytes:
    """Return the bytes of the golden manifest."""
    data = make_v1.make_manifest([make_v1.make_part(rank)[1] for rank in range(2)])
    earlier = decode_manifest(data, where="of version 1")
    return encode_manifest(replace(earlier, compared=COMPARED))


def main(directory: str) -> None:
    """Write the file into ``directory``."""
    with (Path(directory) / "manifest").open("xb") as file:
        file.write(make_manifest())


if __name__ == "__main__":
    main(sys.argv[1])
