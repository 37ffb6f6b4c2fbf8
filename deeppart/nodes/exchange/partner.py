"""Copies part files to other nodes.

For each copy, a message with length and digest, then the file in blocks, of which two are in transfer at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import xxhash

from deeppart.comm import Comm, Operation, interleaved
from deeppart.errors import CorruptFileError, DeeppartError
from deeppart.nodes.exchange.memory import Arena, Bytes, PartBlocks, PartFile, Storing, json_head, paced
from deeppart.plan.redundancy import Copy
from deeppart.storage import DurableFile, RateLimit

#: Size of a message; measured fastest between processes of one machine (docs/benchmarks.md).
BLOCK_BYTES = 8 << 20
_IN_FLIGHT = 2
#: Lengths of the blocks that are sent and received at once.
_LENGTHS = [BLOCK_BYTES] * (2 * _IN_FLIGHT)
_HEAD_TAG, _DATA_TAG = 0, 1


#: Creates the file for a received part. Raises StorageError.
OpenCopy = Callable[[int], DurableFile]


def exchange_copies(
    comm: Comm,
    copies: Sequence[Copy],
    parts: Mapping[int, PartFile],
    open_copy: OpenCopy,
    arena: Arena,
    limit: RateLimit | None,
) -> Operation[list[DurableFile]]:
    """Send and receive this rank's copies concurrently, each in the order of ``copies``; for :func:`begin_together`.

    ``parts``: the files of the parts that this rank sends.
    """
    pieces = arena.cut(_LENGTHS)
    yield True
    sends = [(parts[copy.part], copy.target) for copy in copies if copy.source == comm.rank]
    receives = [copy for copy in copies if copy.target == comm.rank]
    files: list[DurableFile] = []
    problems: list[DeeppartError] = []
    try:
        yield from interleaved(
            [
                _send_all(comm, sends, pieces[:_IN_FLIGHT], limit, problems),
                _receive_all(comm, receives, pieces[_IN_FLIGHT:], open_copy, files, problems),
            ]
        )
        arena.give_back()
        if problems:
            raise problems[0]
    except BaseException:
        for file in files:
            file.abort()
        raise
    return files


def _send_all(
    comm: Comm,
    sends: Sequence[tuple[PartFile, int]],
    memory: list[Bytes],
    limit: RateLimit | None,
    problems: list[DeeppartError],
) -> Operation[None]:
    for part, to in sends:
        with closing(PartBlocks(part, problems)) as blocks:
            yield from _send(comm, part, blocks, to, memory, limit)


def _send(
    comm: Comm, part: PartFile, blocks: PartBlocks, to: int, memory: list[Bytes], limit: RateLimit | None
) -> Operation[None]:
    yield from comm.send(json_head([part.nbytes, part.digest]), to, _HEAD_TAG)
    flying: list[Operation[None]] = []
    for number, offset in enumerate(range(0, part.nbytes, BLOCK_BYTES)):
        if len(flying) == _IN_FLIGHT:
            yield from flying.pop(0)
        block = memory[number % _IN_FLIGHT][: min(BLOCK_BYTES, part.nbytes - offset)]
        block = blocks.get(offset, block.size, block)
        yield from paced(limit, block.size)
        flying.append(comm.send(block, to, _DATA_TAG))
        yield True
    for operation in flying:
        yield from operation


def _receive_all(
    comm: Comm,
    receives: Sequence[Copy],
    memory: list[Bytes],
    open_copy: OpenCopy,
    files: list[DurableFile],
    problems: list[DeeppartError],
) -> Operation[None]:
    for copy in receives:
        head = json_head([0, ""])
        yield from comm.receive_into(head, copy.source, _HEAD_TAG)
        yield True
        nbytes, digest = json.loads(head.tobytes())
        storing, found = Storing(partial(open_copy, copy.part), problems), xxhash.xxh3_128()
        if storing.file is not None:
            files.append(storing.file)
        flying: list[tuple[Operation[None], Bytes]] = []
        for number, offset in enumerate(range(0, nbytes, BLOCK_BYTES)):
            if len(flying) == _IN_FLIGHT:
                yield from _land(*flying.pop(0), storing, found)
            block = memory[number % _IN_FLIGHT][: min(BLOCK_BYTES, nbytes - offset)]
            flying.append((comm.receive_into(block, copy.source, _DATA_TAG), block))
        for flight in flying:
            yield from _land(*flight, storing, found)
        if not digest:
            error = f"there is no copy of part {copy.part}: rank {copy.source} cannot read its file"
            storing.fail(CorruptFileError(error))
        elif storing.file is not None and found.hexdigest() != digest:
            storing.fail(_other_bytes(copy, digest, found.hexdigest(), storing.file.path))


def _land(coming: Operation[None], block: Bytes, storing: Storing, digest: xxhash.xxh3_128) -> Operation[None]:
    yield from coming
    digest.update(block.data)
    storing.write(block.data)
    yield True


def _other_bytes(copy: Copy, expected: str, found: str, path: Path) -> CorruptFileError:
    return CorruptFileError(
        f"the copy of part {copy.part} is not what was written on its own node",
        expected=f"xxh3-128 {expected}",
        found=found,
        where=str(path),
        todo="suspect that node's storage, the network or memory",
    )
