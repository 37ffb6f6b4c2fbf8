"""Parity on nodes: computed anew, and compared with the parts: a share may be sound, but made of other bytes.

A parity file holds the digests of all blocks that it was computed of. Such a share gives nothing back, and nothing in
it says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import xxhash

from deeppart.errors import FormatError, StorageError
from deeppart.model import Attempt, Level, ParityIdentity, ParityMember
from deeppart.nodes.erasure import ReedSolomon
from deeppart.part import FileSource, MemorySource, ParityReader, ParityWriter, stripes_of
from deeppart.plan.redundancy.stripes import Stripes
from deeppart.plan.restart import StoredParity, StoredPart
from deeppart.storage.steps import is_gone

#: [row, block] -> 16 digest bytes.
_Digests = list[list[bytes]]


def shares_of_other_bytes(parity: Sequence[StoredParity], parts: Sequence[StoredPart]) -> dict[Path, str]:
    """Parity files that were computed of other bytes than parts have, with what is wrong."""
    found: dict[Path, str] = {}
    known: dict[tuple[ParityIdentity, int], _Digests | None] = {}
    for share in parity:
        whole = replace(share.identity, place=0)
        try:
            with FileSource(share.path) as source:
                reader = ParityReader(source, where=share.path)
        except (FormatError, StorageError):  # a running job has retired it meanwhile
            continue
        for place, member in enumerate(share.identity.members):
            if (whole, place) not in known:
                known[whole, place] = _digests_of(share.identity, member, parts, reader.stripes)
            digests = known[whole, place]
            if digests is not None and (wrong := _first_wrong(reader, share.identity.place, place, digests)):
                found[Path(share.path)] = (
                    f"{share.path}: parity of other bytes than part {member.part} has, though both are sound: {wrong}"
                )
                break
    return found


def _digests_of(
    identity: ParityIdentity, member: ParityMember, parts: Sequence[StoredPart], stripes: Stripes
) -> _Digests | None:
    """Of the blocks of one member's part, filled up with zeros; None where the part is not there."""
    for part in parts:
        if (part.attempt, part.rank, part.index_digest) == (identity.attempt, member.part, member.index_digest):
            try:
                with FileSource(part.path) as source:
                    digests = [
                        [_digest(source, stripes, row, block, member.nbytes) for block in range(stripes.data_blocks)]
                        for row in range(stripes.rows)
                    ]
            except (FormatError, StorageError):
                continue
            if not is_gone(Path(part.path)):  # otherwise a running job may have written over it meanwhile
                return digests
    return None


def _digest(source: FileSource, stripes: Stripes, row: int, block: int, nbytes: int) -> bytes:
    memory = np.zeros(stripes.length(row), dtype=np.uint8)
    filled = stripes.filled(row, block, nbytes)
    if filled:
        source.read_into(stripes.start(row, block), memory[:filled].data)
    return xxhash.xxh3_128_digest(memory.data)


def _first_wrong(reader: ParityReader, keeper: int, place: int, digests: _Digests) -> str | None:
    """The first place at which a share and a member's part differ."""
    stripes = reader.stripes
    for index in range(stripes.tolerate):
        stripe = stripes.kept_stripe(keeper, index)
        for block in range(stripes.data_blocks):
            if stripes.source(stripe, block) != place:
                continue
            for row in range(stripes.rows):
                if reader.digests[row, index, block].tobytes() != digests[row][block]:
                    start = stripes.start(row, block)
                    return f"bytes {start} to {start + stripes.length(row)} of the part"
    return None


def parts_without_parity(parity: Sequence[StoredParity], parts: Sequence[StoredPart]) -> list[str]:
    """A line about each part that parity in reach was computed of, but not as the part is encoded now.

    It may have been restored from the persistent level, and is as good as ever; parity cannot tell.
    """
    members: dict[tuple[Attempt, int], set[str]] = {}
    for share in parity:
        for member in share.identity.members:
            if member.part is not None:
                members.setdefault((share.identity.attempt, member.part), set()).add(member.index_digest)
    return [
        f"{part.path}: sound, but changed since its parity was computed, which does not protect it: the next "
        "checkpoint is protected again"
        for part in parts
        if part.level == Level.LOCAL
        and part.index_digest not in members.get((part.attempt, part.rank), {part.index_digest})
    ]


def encode_share(
    identity: ParityIdentity, parts: Mapping[int, FileSource | MemorySource], writer: ParityWriter
) -> None:
    """Write one member's share of parity, row by row, from the parts of its set by their places."""
    stripes = stripes_of(identity)
    code = ReedSolomon(stripes.data_blocks, stripes.tolerate)
    for row in range(stripes.rows):
        length = stripes.length(row)
        blocks, digests = [], []
        for index in range(stripes.tolerate):
            stripe = stripes.kept_stripe(identity.place, index)
            data = [np.zeros(length, dtype=np.uint8) for _ in range(stripes.data_blocks)]
            for i, block in enumerate(data):
                place = stripes.source(stripe, i)
                filled = stripes.filled(row, i, identity.members[place].nbytes)
                if filled:
                    parts[place].read_into(stripes.start(row, i), block[:filled].data)
            parity = [np.zeros(length, dtype=np.uint8) for _ in range(stripes.tolerate)]
            code.encode(data, parity)
            blocks.append(parity[index])
            whole = b"".join(xxhash.xxh3_128_digest(each.data) for each in (*data, *parity))
            digests.append(np.frombuffer(whole, dtype=np.uint8).reshape(-1, 16))
        writer.add_row(blocks, np.stack(digests))
    writer.finish()
