"""Checkpoints to export, and archives read by h5py alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

import deeppart


def written(directory: Path, state: Any, step: int = 1) -> Path:
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(directory), timeout=20.0)) as ck:
        ck.checkpoint(state, step).wait(timeout=200)
    return directory


def raw(item: h5py.Dataset) -> bytes:
    """The bytes as they are in the file."""
    octets = np.zeros(int(np.prod(item.shape)) * item.id.get_type().get_size(), dtype=np.uint8)
    if octets.size:
        item.id.read(h5py.h5s.ALL, h5py.h5s.ALL, octets, mtype=item.id.get_type())
    return octets.tobytes()
