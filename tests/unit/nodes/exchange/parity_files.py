"""The files of a parity set of four members, two of which have parts; made by hand, after docs/format.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deeppart.model import ParityIdentity
from deeppart.part import set_id, stripes_of
from deeppart.plan.restart import BlockFile, Rebuild
from tests.golden import forge
from tests.golden.make import IDENTITY, MEMBERS
from tests.golden.make import PROTECTED as PARTS

STRIPES = stripes_of(IDENTITY)
NAME = set_id(IDENTITY)


def write_parity(path: Path, place: int, *, sequence: int = 7, step: int = 1200) -> None:
    """The share of one member; of another checkpoint's set with another sequence or step."""
    payload, digests = forge.parity_share(PARTS, tolerate=2, block_bytes=1024, place=place)
    of: dict[str, Any] = {"sequence": sequence, "step": step, "world_size": 2}
    name = forge.parity_set_id(MEMBERS, tolerate=2, block_bytes=1024, **of)
    path.write_bytes(forge.parity_file(payload, digests, MEMBERS, forge.parity_header(name, place=place, **of)))


def write_all(directory: Path, readers: tuple[int, ...] = (0,)) -> Rebuild:
    """Both parts and all four shares of parity; what a rebuild of part 0 may use of them."""
    data, parity = [], []
    for place in range(4):
        if PARTS[place]:
            (directory / f"part-{place}").write_bytes(PARTS[place])
            data.append(BlockFile(place, str(directory / f"part-{place}"), readers))
        write_parity(directory / f"parity-{place}", place)
        parity.append(BlockFile(place, str(directory / f"parity-{place}"), readers))
    return Rebuild(ParityIdentity(IDENTITY.attempt, IDENTITY.members, 2, 1024, 0), tuple(data), tuple(parity))
