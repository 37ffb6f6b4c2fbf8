"""What exchanges between nodes share: memory reused, as fresh memory costs more than filling it; blocks of files."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from deeppart import access
from deeppart.comm import Comm, Operation
from deeppart.errors import CheckpointError
from deeppart.mapped import file_memory, lies_in_memory
from deeppart.part import FileSource
from deeppart.storage import RateLimit

Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")
_HEAD_BYTES = 256


class Arena:
    """One stretch of memory, handed out piece by piece; it grows to the most that was ever needed at a time.

    Whoever takes pieces gives them back when nothing is under way in them any more. Memory of an exchange that was
    given up is not handed out again: late messages may still arrive.
    """

    def __init__(self) -> None:
        self._memory = np.zeros(0, dtype=np.uint8)
        self._lent = False

    def reserve(self, lengths: Sequence[int]) -> None:
        """See that pieces of these lengths can be cut."""
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
        """Pieces of these lengths, on pages of their own, for one exchange at a time. Errors as of :meth:`reserve`."""
        self.reserve(lengths)
        ends = np.cumsum(list(map(_whole_pages, lengths))).tolist()
        self._lent = True
        return [self._memory[at : at + length] for at, length in zip([0, *ends], lengths, strict=False)]

    def give_back(self) -> None:
        """All pieces may be handed out again."""
        self._lent = False


def _whole_pages(length: int) -> int:
    return -(-length // mmap.PAGESIZE) * mmap.PAGESIZE


class NotBegunError(CheckpointError):
    """An exchange that this rank, or another one, could not begin."""


def begin_together(comm: Comm, begin: Callable[[], Operation[T]]) -> Operation[T]:
    """An exchange that all ranks begin, or none (collective): nobody waits for one that cannot take part.

    The operation reserves its memory before it yields for the first time, and sends nothing before that.
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
    """The first message of an exchange: JSON filled up with spaces to a length that the receiver knows."""
    return np.frombuffer(bytearray(json.dumps(document).encode().ljust(_HEAD_BYTES)), dtype=np.uint8)


class Blocks:
    """A file, block by block, for sending and for checking. A context manager.

    On a tmpfs, reading a block by ``pread`` costs as much as sending it; mapping costs nearly nothing. The mapping is
    one that could be written to, and never is: networks register memory for writing, whatever it is used for.
    """

    def __init__(self, path: Path) -> None:
        self.source = FileSource(path)
        self._fd = -1
        if lies_in_memory(str(path)):
            with contextlib.suppress(OSError):  # not ours to write: then it is read
                self._fd = access.open_file(path, os.O_RDWR, over=False)

    def get(self, offset: int, length: int, memory: Bytes) -> Bytes:
        """The bytes from ``offset``, in ``memory`` or where they lie; not to be written to."""
        there = file_memory(self._fd, offset, length) if self._fd >= 0 and length else None
        if there is not None:
            return there
        self.source.read_into(offset, memory[:length].data)
        return memory[:length]

    def close(self) -> None:
        """Close the file; blocks that were given out stay valid."""
        self.source.close()
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __enter__(self) -> Blocks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def paced(limit: RateLimit | None, nbytes: int) -> Operation[None]:
    """Wait until ``nbytes`` may leave this node."""
    delay_s = limit.reserve(nbytes) if limit is not None and nbytes else 0.0
    if delay_s <= 0:
        return
    until = time.monotonic() + delay_s
    while time.monotonic() < until:
        yield False
    yield True  # a wait of our own: nobody was waited for
