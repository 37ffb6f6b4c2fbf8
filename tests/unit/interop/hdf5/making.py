"""HDF5 files of others, and hostile ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

W = np.arange(12, dtype="<f4").reshape(3, 4)


def made(path: Path, fill: Callable[[Any], object]) -> Path:
    """A file that has ``w``, and what ``fill`` puts into it."""
    with h5py.File(path, "w") as file:
        file["w"] = W
        fill(file)
    return path
