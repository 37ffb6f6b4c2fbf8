"""Jobs of tests: a function of a test's module, called on every rank that torchrun starts.

python -m tests.sharded.ranks MODULE:FUNCTION DIRECTORY ARGUMENT...
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.mpi.torchrun import torchrun
from tests.mpi.torchrun_job import tell
from tests.sharded.layouts import end_job


def run_job(
    ranks: int, job: Callable[..., dict[str, Any]], directory: Path, *arguments: str, **how: Any
) -> list[dict[str, Any]]:
    """Call ``job(directory, *arguments)`` on so many ranks, which are a process group.

    Args:
        how: of :func:`torchrun`.

    Returns:
        What each of them returned, as JSON has it, in rank order.
    """
    name = f"{job.__module__}:{job.__qualname__}"
    return torchrun(ranks, ["-m", __name__, name, str(directory), *arguments], directory, **how)


def _main(name: str, directory: Path, *arguments: str) -> None:
    module, _, function = name.partition(":")
    dist.init_process_group("gloo")
    tell(directory, **getattr(importlib.import_module(module), function)(directory, *arguments))
    end_job()


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
