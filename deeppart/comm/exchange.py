"""Everyone has something to tell everyone: a message from each rank to each other one, of any length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deeppart.comm.base import Comm, Operation, interleaved

#: So many pairs of ranks at once; each has a message there and one back under way.
_WINDOW = 16
_HEAD_TAG, _BODY_TAG = 2048, 2049


def exchange(comm: Comm, messages: Sequence[bytes]) -> Operation[list[bytes]]:
    """Give every rank its message, and get those of all (collective).

    Messages go straight from one to the other: ``2 * (size - 1)`` on each rank, of which those without a body are 8
    bytes long.
    """
    found = [b""] * comm.size
    found[comm.rank] = messages[comm.rank]
    for first in range(1, comm.size, _WINDOW):
        pairs = [_pair(comm, messages, distance, found) for distance in range(first, min(first + _WINDOW, comm.size))]
        yield from interleaved(pairs)
    return found


def _pair(comm: Comm, messages: Sequence[bytes], distance: int, found: list[bytes]) -> Operation[None]:
    """Send to the rank that is so many further, and receive from the one that is so many before."""
    to, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
    message = np.frombuffer(messages[to], dtype=np.uint8)
    head = np.frombuffer(len(message).to_bytes(8, "little"), dtype=np.uint8)
    theirs = np.zeros(8, dtype=np.uint8)
    yield from interleaved([comm.send(head, to, _HEAD_TAG), comm.receive_into(theirs, source, _HEAD_TAG)])
    body = np.empty(int.from_bytes(theirs.tobytes(), "little"), dtype=np.uint8)
    under_way = [comm.send(message, to, _BODY_TAG)] if len(message) else []
    if len(body):
        under_way.append(comm.receive_into(body, source, _BODY_TAG))
    yield from interleaved(under_way)
    found[source] = body.tobytes()
