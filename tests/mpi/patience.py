"""Waiting for other ranks without taking a processor from them: a rank that waits inside MPI spins."""

from __future__ import annotations

import time
from typing import Any

#: A test that hangs is ended by its limit.
FOR_EVER_S = 1e9


def patient_barrier(comm: Any, most_s: float = FOR_EVER_S) -> bool:
    """Wait until all ranks of a communicator are here.

    Returns:
        Whether they came within so many seconds.
    """
    return patient(comm.Ibarrier(), most_s)


def patient_broadcast(comm: Any, value: bool) -> bool:
    """What rank 0 says, on all ranks."""
    said = bytearray([value])
    patient(comm.Ibcast(said, 0))
    return bool(said[0])


def patient(request: Any, most_s: float = FOR_EVER_S) -> bool:
    """Wait until a request is complete; returns whether it was within so many seconds."""
    deadline = time.monotonic() + most_s
    while not request.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True
