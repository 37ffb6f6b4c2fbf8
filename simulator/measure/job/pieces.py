"""Single operations, timed alone: codec, digests, messages between ranks, and ``torch.save``."""

from __future__ import annotations

import itertools
import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from deeppart.codec import ROOM_BYTES, tensor_codec
from deeppart.comm import Comm, finish
from deeppart.part import DEFAULT_CHUNK_BYTES

from .saves import TIMEOUT_S, meet

Bytes: TypeAlias = NDArray[np.uint8]

_SEED = 1
#: What each measurement takes about.
_SECONDS = 0.4
_LEAST_ROUNDS = 3
#: What is read from memory, a part after the other: several times the last cache of a core (32 to 96 MiB on an EPYC).
_PASS_BYTES = 256 << 20
#: A message long enough for bandwidth, and one short enough for latency, in bytes.
_LONG, _SHORT = 16 << 20, 8
_LONG_ROUNDS, _SHORT_ROUNDS = 8, 200
#: Buffers that are encoded into in turn: one thread's, one ahead.
_ROOMS = 2
#: What ``torch.save`` is timed on: tensors of 8 MiB, which do not fit into a cache together, and of 256 bytes.
_LARGE_TENSORS, _LARGE_ELEMENTS = 16, 2 << 20
_SMALL_TENSORS, _SMALL_ELEMENTS = 8192, 64


def measure_pieces(comm: Comm, dtypes: Sequence[str], directory: Path) -> dict[str, Any]:
    """Time each operation (collective)."""
    return {
        "codec": {dtype: _codec(dtype) for dtype in dtypes},
        "hash": _hash(),
        "serialize": _serialize(directory / "torch-save") if comm.size == 1 else None,
        "network": _network(comm) if comm.size > 1 else None,
    }


def _codec(dtype: str) -> dict[str, float]:
    kind: torch.dtype = getattr(torch, dtype)
    count = DEFAULT_CHUNK_BYTES // kind.itemsize
    values = torch.randn(count, generator=torch.Generator().manual_seed(_SEED)) * 0.05
    chunk = values.to(kind) if kind.is_floating_point else (values * 1000).to(kind)
    raw = chunk.view(torch.uint8).numpy()
    codec = tensor_codec(dtype)
    encoded = np.frombuffer(bytes(codec.encode(raw.data)), dtype=np.uint8)
    # As the library does it: from memory, into a few buffers in turn; and back into new memory for the whole part.
    copies = _PASS_BYTES // DEFAULT_CHUNK_BYTES // 4
    chunks = itertools.cycle(np.tile(raw, copies).reshape(copies, -1))
    rooms = itertools.cycle([memoryview(mmap.mmap(-1, raw.nbytes + ROOM_BYTES)) for _ in range(_ROOMS)])
    files = itertools.cycle(np.tile(encoded, copies).reshape(copies, -1))
    targets = _new_memory(copies, raw.nbytes)
    return {
        "ratio": min(1.0, encoded.nbytes / raw.nbytes),
        "encode": raw.nbytes / _timed(lambda: codec.encode(next(chunks).data, next(rooms)), time.thread_time),
        "decode": raw.nbytes
        / _timed(lambda: codec.decode(next(files).data, raw.nbytes, next(targets).data), time.thread_time),
    }


def _new_memory(pieces: int, nbytes: int) -> Iterator[Bytes]:
    """Memory that nobody has touched yet, without end: the first write to a page costs more than those after it."""
    while True:
        yield from np.empty((pieces, nbytes), dtype=np.uint8)


def _hash() -> float:
    """Of what lies in no cache, as what a job has just copied is for the operations that read it.

    One block again and again, but at addresses of its own, and caches know bytes by their address.
    """
    block = np.random.default_rng(_SEED).integers(0, 256, DEFAULT_CHUNK_BYTES, dtype=np.uint8)
    copies = _PASS_BYTES // DEFAULT_CHUNK_BYTES
    chunks = itertools.cycle(np.tile(block, copies).reshape(copies, -1))
    return DEFAULT_CHUNK_BYTES / _timed(lambda: xxhash.xxh3_128_digest(next(chunks).data), time.thread_time)


def _serialize(file: Path) -> dict[str, float]:
    """Large tensors tell the rate, small ones what a tensor takes."""

    def seconds(tensors: int, elements: int) -> float:
        state = {f"tensor{number}": torch.full((elements,), float(number)) for number in range(tensors)}
        return _timed(lambda: torch.save(state, file))  # noqa: TID251 - the baseline itself; nothing reads the file

    small = seconds(_SMALL_TENSORS, _SMALL_ELEMENTS) / _SMALL_TENSORS
    large = seconds(_LARGE_TENSORS, _LARGE_ELEMENTS)
    nbytes = 4 * _LARGE_TENSORS * _LARGE_ELEMENTS
    tensor = max(0.0, small - 4 * _SMALL_ELEMENTS * large / nbytes)
    return {"stream": nbytes / max(large - tensor * _LARGE_TENSORS, 1e-9), "tensor": tensor}


def _network(comm: Comm) -> dict[str, float]:
    """What a rank passes on to the next one while all ranks do, and ping and pong between ranks 0 and 1."""
    latency = _ping(comm)
    return {"bandwidth": _LONG / max(_ring(comm) - latency, 1e-9), "latency": latency}


def _ring(comm: Comm) -> float:
    """Seconds in which every rank sends a long message to the next one, and has that of the one before (collective)."""
    out, into = np.zeros(_LONG, dtype=np.uint8), np.zeros(_LONG, dtype=np.uint8)
    times = []
    for _ in range(_LONG_ROUNDS):
        meet(comm)
        began = time.perf_counter()
        operations = [
            comm.receive_into(into, (comm.rank - 1) % comm.size, 0), comm.send(out, (comm.rank + 1) % comm.size, 0),
        ]  # fmt: skip
        for operation in operations:
            _wait(comm, operation)
        times.append(time.perf_counter() - began)
    return median(times)


def _ping(comm: Comm) -> float:
    """Seconds of one short message, half of there and back, as rank 0 sees it (collective)."""
    buffer = np.zeros(_SHORT, dtype=np.uint8)
    times = []
    for _ in range(_SHORT_ROUNDS):
        meet(comm)
        began = time.perf_counter()
        if comm.rank == 0:
            _wait(comm, comm.send(buffer, 1, 0))
            _wait(comm, comm.receive_into(buffer, 1, 0))
        elif comm.rank == 1:
            _wait(comm, comm.receive_into(buffer, 0, 0))
            _wait(comm, comm.send(buffer, 0, 0))
        times.append((time.perf_counter() - began) / 2)
    return median(times)


def _wait(comm: Comm, operation: Any) -> None:
    finish(comm, operation, "measuring", TIMEOUT_S)


def _timed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Median seconds of doing something again and again."""
    times: list[float] = []
    ends = time.perf_counter() + _SECONDS
    while len(times) < _LEAST_ROUNDS or time.perf_counter() < ends:
        began = clock()
        work()
        times.append(clock() - began)
    return median(times)
