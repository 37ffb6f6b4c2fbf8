"""What a call comes to on one rank: a value or the name of an error."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deeppart

#: For waits that are to end in a timeout.
TIMEOUT_S = 3.0
#: For those that are not.
LONG_S = 100.0
#: What a busy machine may add; without a bound of the library's own these calls would never return.
PATIENCE_S = 100.0


def world() -> Any:
    from mpi4py import MPI

    return MPI.COMM_WORLD


def config(directory: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(directory / "ckpt"), **({"timeout": LONG_S} | settings))


def outcome(call: Callable[[], Any]) -> tuple[str, str, float]:
    """(error type or "", text or result, seconds)"""
    began = time.monotonic()
    try:
        result = call()
        return "", repr(result), time.monotonic() - began
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - began
