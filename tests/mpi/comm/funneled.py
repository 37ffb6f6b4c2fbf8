"""Jobs under an MPI that leaves all calls to the training thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import deeppart

SETTINGS = {"MPI4PY_RC_THREAD_LEVEL": "funneled"}


def config(directory: Path, timeout: float = 200.0, **settings: Any) -> deeppart.Config:
    local = str(directory / "local" / "{node}")
    return deeppart.Config(
        persistent_dir=str(directory / "p"), local_dir=local, node_size=1, timeout=timeout, **settings
    )


def state(step: int) -> dict[str, Any]:
    return {"x": torch.full((300_000,), float(step)), "step": step}
