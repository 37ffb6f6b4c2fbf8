"""Copies of part files to other nodes.

Per copy one message with length and digest, then the file in blocks, two on their way at a time. A rank that cannot
read or write goes on to the end with the exchange, so that nobody waits for it, and raises then: the commit round
tells the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from deeppart.comm import Comm, Operation, interleaved
from deeppart.errors import CorruptFileError, DeeppartError, as_error
from deeppart.nodes.exchange.memory import Arena, Blocks, Bytes, json_head, paced
from deeppart.storage import DurableFile, RateLimit

#: One message; measured fastest between processes of one machine (docs/benchmarks.md).
BLOCK_BYTES = 8 << 20
_IN_FLIGHT = 2
#: Of the blocks sent and received at once, in bytes.
_LENGTHS = [BLOCK_BYTES] * (2 * _IN_FLIGHT)
_HEAD_TAG, _DATA_TAG = 0, 1
_UNREADABLE, _UNWRITABLE = "a part file could not be read", "a copy could not be written"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A part file to send.

    Attributes:
        part: its number.
        path: the file.
        nbytes: its length.
        digest: xxh3-128 of the whole file, 32 hex digits: what the copy must have; "" where it cannot be read.
        to: the rank that stores the copy.
    """

    part: int
    path: Path
    nbytes: int
    digest: str
    to: int


@dataclass(frozen=True, slots=True)
class Incoming:
    """A part to be stored.

    Attributes:
        part: its number.
        source: the rank that sends it.
    """

    part: int
    source: int


#: Begins the file for what comes in. Raises StorageError.
OpenCopy = Callable[[Incoming], DurableFile]


def exchange_copies(
    comm: Comm,
    sends: Sequence[Outgoing],
    receives: Sequence[Incoming],
    open_copy: OpenCopy,
    arena: Arena,
    limit: RateLimit | None,
) -> Operation[list[DurableFile]]:
    """Send and receive part files side by side, each in the order given; for :func:`begin_together`."""
    pieces = arena.cut(_LENGTHS)
    yield True
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
    comm: Comm, sends: Sequence[Outgoing], memory: list[Bytes], limit: RateLimit | None, problems: list[DeeppartError]
) -> Operation[None]:
    for outgoing in sends:
        source: Blocks | None = None
        try:
            source = Blocks(outgoing.path)
        except Exception as error:  # of whatever kind: the receiver is waiting
            problems.append(as_error(error, _UNREADABLE))
        try:
            yield from _send(comm, outgoing, source, memory, limit, problems)
        finally:
            if source is not None:
                source.close()


def _send(
    comm: Comm,
    outgoing: Outgoing,
    source: Blocks | None,
    memory: list[Bytes],
    limit: RateLimit | None,
    problems: list[DeeppartError],
) -> Operation[None]:
    head = json_head({"part": outgoing.part, "nbytes": outgoing.nbytes, "digest": outgoing.digest})
    yield from comm.send(head, outgoing.to, _HEAD_TAG)
    flying: list[Operation[None]] = []
    for number, offset in enumerate(range(0, outgoing.nbytes, BLOCK_BYTES)):
        if len(flying) == _IN_FLIGHT:
            yield from flying.pop(0)
        block = memory[number % _IN_FLIGHT][: min(BLOCK_BYTES, outgoing.nbytes - offset)]
        if source is not None:
            try:
                block = source.get(offset, block.size, block)
            except Exception as error:
                problems.append(as_error(error, _UNREADABLE))
                source.close()
                source = None  # what is sent from now on is not what it should be, and the level fails
        yield from paced(limit, block.size)
        flying.append(comm.send(block, outgoing.to, _DATA_TAG))
        yield True
    for operation in flying:
        yield from operation


def _receive_all(
    comm: Comm,
    receives: Sequence[Incoming],
    memory: list[Bytes],
    open_copy: OpenCopy,
    files: list[DurableFile],
    problems: list[DeeppartError],
) -> Operation[None]:
    for incoming in receives:
        head = json_head({})
        yield from comm.receive_into(head, incoming.source, _HEAD_TAG)
        yield True
        told = json.loads(head.tobytes())
        sink = _Sink(incoming, open_copy, problems)
        if sink.file is not None:
            files.append(sink.file)
        flying: list[tuple[Operation[None], Bytes]] = []
        for number, offset in enumerate(range(0, told["nbytes"], BLOCK_BYTES)):
            if len(flying) == _IN_FLIGHT:
                yield from _land(flying.pop(0), sink)
            length = min(BLOCK_BYTES, told["nbytes"] - offset)
            block = memory[number % _IN_FLIGHT][:length]
            flying.append((comm.receive_into(block, incoming.source, _DATA_TAG), block))
        for flight in flying:
            yield from _land(flight, sink)
        sink.end(told["digest"])


def _land(flight: tuple[Operation[None], Bytes], sink: _Sink) -> Operation[None]:
    operation, block = flight
    yield from operation
    sink.write(block)
    yield True


class _Sink:
    """A copy being written. After an error it takes the rest and does nothing with it."""

    def __init__(self, incoming: Incoming, open_copy: OpenCopy, problems: list[DeeppartError]) -> None:
        self._part, self._source, self._problems, self._failed = incoming.part, incoming.source, problems, False
        self._digest = xxhash.xxh3_128()
        self.file: DurableFile | None = None
        try:
            self.file = open_copy(incoming)
        except Exception as error:  # of whatever kind: the sender is waiting
            self._fail(as_error(error, _UNWRITABLE))

    def write(self, block: Bytes) -> None:
        """Append a block."""
        if self._failed or self.file is None:
            return
        self._digest.update(block.data)
        try:
            self.file.write(block.data)
        except Exception as error:
            self._fail(as_error(error, _UNWRITABLE))

    def end(self, digest: str) -> None:
        if not digest:
            self._fail(
                CorruptFileError(f"there is no copy of part {self._part}: rank {self._source} cannot read its file")
            )
        elif not self._failed and self._digest.hexdigest() != digest:
            self._fail(
                CorruptFileError(
                    f"the copy of part {self._part} is not what was written on its own node",
                    expected=f"xxh3-128 {digest}",
                    found=self._digest.hexdigest(),
                    where=str(self.file and self.file.path),
                    todo="suspect that node's storage, the network or memory",
                )
            )

    def _fail(self, error: DeeppartError) -> None:
        self._failed = True
        self._problems.append(error)
