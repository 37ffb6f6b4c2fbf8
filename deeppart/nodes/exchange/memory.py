"""Shared by all exchanges between nodes: reusable memory (new memory costs more than filling it), and files to send.

A rank that cannot read or write continues to the end of an exchange with useless bytes, so that no rank waits for it,
and then raises: the others learn of it in the commit round.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from deeppart import access
from deeppart.comm import Comm, Operation
from deeppart.errors import CheckpointError, CorruptFileError, DeeppartError, as_error
from deeppart.mapped import file_memory, lies_in_memory
from deeppart.part import FileSource
from deeppart.storage import DurableFile, RateLimit

Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")
_HEAD_BYTES = 256


class Arena:
    """Contiguous memory that is handed out in pieces. It grows to the largest size ever needed at once.

    Give the pieces back when no transfer uses them any longer. The memory of an aborted exchange is not handed out
    again, because late messages may still arrive in it.
    """

    def __init__(self) -> None:
        self._memory = np.zeros(0, dtype=np.uint8)
        self._lent = False

    def reserve(self, lengths: Sequence[int]) -> None:
        """Allocate memory for pieces of these lengths; CheckpointError if there is none."""
        size = sum(map(_whole_pages, lengths))
        if size and (self._lent or size > self._memory.size):
            try:
                self._memory = np.frombuffer(mmap.mmap(-1, size), dtype=np.uint8)
            except Exception as error:
                raise CheckpointError(
                    "there is no memory for an exchange between nodes",
                    expected=f"{size} bytes",
                    found=f"{type(error).__name__}: {error}",
                    todo="leave more memory free beside training; the next checkpoint tries again",
                ) from error
            self._lent = False

    def cut(self, lengths: Sequence[int]) -> list[Bytes]:
        """Hand out page-aligned pieces of these lengths, for one exchange at a time. Errors as of :meth:`reserve`."""
        self.reserve(lengths)
        ends = np.cumsum(list(map(_whole_pages, lengths))).tolist()
        self._lent = True
        return [self._memory[at : at + length] for at, length in zip([0, *ends], lengths, strict=False)]

    def give_back(self) -> None:
        """Take back all pieces."""
        self._lent = False


def _whole_pages(length: int) -> int:
    return -(-length // mmap.PAGESIZE) * mmap.PAGESIZE


class NotBegunError(CheckpointError):
    """This rank or another one could not begin an exchange."""


def begin_together(comm: Comm, begin: Callable[[], Operation[T]]) -> Operation[T]:
    """Run an exchange that all ranks begin, or none (collective), so that no rank waits for one that cannot take part.

    The operation has to allocate its memory before its first ``yield``, and must not send anything before.
    """
    problem: Exception | None = None
    try:
        operation = begin()
        next(operation)
    except Exception as error:
        problem = error
    anywhere = yield from comm.maximum(np.array([problem is not None], np.int64))
    if anywhere[0]:
        received = yield from comm.allgather(f"{type(problem).__name__}: {problem}".encode() if problem else b"")
        texts = [f"rank {rank}: {text.decode()}" for rank, text in enumerate(received) if text]
        found = "\n".join(texts).replace("\n", "\n    ")
        raise NotBegunError("an exchange between nodes could not begin", found=found) from problem
    return (yield from operation)


def json_head(document: object) -> Bytes:
    """The first message of an exchange: JSON, padded with spaces to a fixed length."""
    return np.frombuffer(bytearray(json.dumps(document).encode().ljust(_HEAD_BYTES)), dtype=np.uint8)


class Blocks:
    """Reads a file block by block, for sending and checking.

    On a tmpfs, reading a block by ``pread`` costs as much as sending it, while mapping it costs nearly nothing. The
    mapping is writable, although it is never written to, because networks register memory for writing.
    """

    def __init__(self, path: Path) -> None:
        self.source = FileSource(path)
        self._fd = -1
        if lies_in_memory(str(path)):
            with contextlib.suppress(OSError):  # without permission to write, the file is read instead
                self._fd = access.open_file(path, os.O_RDWR, over=False)

    def get(self, offset: int, length: int, memory: Bytes) -> Bytes:
        """Bytes from ``offset``, padded with zeros to the length of ``memory``: in ``memory``, or mapped. Read-only."""
        if self._fd >= 0 and 0 < length == memory.size:
            there = file_memory(self._fd, offset, length)
            if there is not None:
                return there
        self.source.read_into(offset, memory[:length].data)
        memory[length:] = 0
        return memory

    def close(self) -> None:
        """Close the file; returned blocks stay valid."""
        self.source.close()
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)


@dataclass(frozen=True, slots=True)
class PartFile:
    """A part file that is to be protected by copies or parity on other nodes.

    Attributes:
        path: the file.
        nbytes: its length.
        index_digest: xxh3-128 of its index, 32 hex digits.
        digest: xxh3-128 of the whole file as written or checked, 32 hex digits; "" if it could not be checked.
        problem: why it could not be checked, or None.
    """

    path: Path
    nbytes: int
    index_digest: str
    digest: str
    problem: Exception | None = None


class PartBlocks:
    """Blocks of a part file for which other ranks wait. After an error, which is recorded, they are useless bytes."""

    def __init__(self, part: PartFile, problems: list[DeeppartError]) -> None:
        self._problems = problems
        self._blocks: Blocks | None = None
        try:
            if part.problem is not None:
                raise part.problem
            self._blocks = Blocks(part.path)
            if self._blocks.source.size != part.nbytes:
                found = f"{self._blocks.source.size} bytes instead of {part.nbytes}"
                raise CorruptFileError("a part file has changed its length", found=found, where=str(part.path))
        except Exception as error:
            self._fail(error)

    def get(self, offset: int, length: int, memory: Bytes) -> Bytes:
        """See :meth:`Blocks.get`."""
        if self._blocks is not None:
            try:
                return self._blocks.get(offset, length, memory)
            except Exception as error:
                self._fail(error)
        return memory

    def _fail(self, error: Exception) -> None:
        self._problems.append(as_error(error, "a part file could not be read"))
        self.close()

    def close(self) -> None:
        """Close the file."""
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            blocks.close()


class Storing:
    """Writes bytes received from other ranks to a file. After an error, which is recorded, further bytes are dropped.

    Attributes:
        file: the file; None if it could not be created.
    """

    def __init__(self, begin: Callable[[], DurableFile], problems: list[DeeppartError]) -> None:
        self._problems, self._failed = problems, False
        self.file: DurableFile | None = None
        try:
            self.file = begin()
        except Exception as error:  # of any type: other ranks send in any case
            self.fail(error)

    def write(self, buffer: memoryview | bytes, /) -> None:
        """Append to the file."""
        if self.file is not None and not self._failed:
            try:
                self.file.write(buffer)
            except Exception as error:
                self.fail(error)

    def abort(self) -> None:
        """Discard the file."""
        if self.file is not None:
            self.file.abort()

    def fail(self, error: Exception) -> None:
        """Record an error."""
        self._failed = True
        self._problems.append(as_error(error, "a file from other nodes could not be written"))


def paced(limit: RateLimit | None, nbytes: int) -> Operation[None]:
    """Wait until ``nbytes`` may leave this node."""
    delay_s = limit.reserve(nbytes) if limit is not None and nbytes else 0.0
    if delay_s <= 0:
        return
    until = time.monotonic() + delay_s
    while time.monotonic() < until:
        yield False
    yield True  # progress: no other rank was waited for
