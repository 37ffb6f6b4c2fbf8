"""One process or torchrun, no MPI: what ``pip install .`` brings is enough to save, restore and load; and the commands.

Run by .ci/run in an environment of its own, outside the repository: ``python smoke.py README.md``.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import deeppart


def main(readme: Path) -> None:
    """Print what was shown, or end with an error."""
    assert importlib.util.find_spec("mpi4py") is None, "mpi4py is installed here: this would show nothing"
    with tempfile.TemporaryDirectory() as directory:
        round_trip(Path(directory) / "ckpt")
    print(f"saved, restored and loaded by {Path(deeppart.__file__).parent}, one process without MPI")
    with tempfile.TemporaryDirectory() as directory:
        two_ranks(Path(directory))
    text = readme.read_text()
    # `deeppart ls`, or a line of a code block that begins with it
    code = "\n".join([*re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL), *re.findall(r"`[^`\n]+`", text)])
    commands = sorted(set(re.findall(r"(?:`|^[ $]*)deeppart ([a-z]+)", code, re.MULTILINE)))
    for command in commands:
        subprocess.run(
            [Path(sys.prefix) / "bin" / "deeppart", command, "--help"], check=True, stdout=subprocess.DEVNULL
        )
    print(f"commands that {readme.name} names and that exist: {', '.join(commands)}")


def round_trip(path: Path) -> None:
    """Save a state, restore it in place in a second Checkpointer, and load it."""
    weight = torch.arange(100_000, dtype=torch.float32)
    config = deeppart.Config(persistent_dir=str(path))
    with deeppart.Checkpointer(config) as checkpointer:
        state = {"model": {"weight": weight.clone()}, "epoch": 3}
        checkpointer.checkpoint(state, step=1).wait("persistent", timeout=200)
    live: dict[str, Any] = {"model": {"weight": torch.zeros_like(weight)}, "epoch": 0}
    with deeppart.Checkpointer(config) as checkpointer:
        assert checkpointer.restore(live) == 1
    loaded = deeppart.load(str(path))
    for found in (live, loaded):
        assert torch.equal(found["model"]["weight"], weight)
        assert found["epoch"] == 3


RANK = """
import sys
import torch
import deeppart

with deeppart.Checkpointer(persistent_dir=sys.argv[1], timeout=100.0) as checkpointer:
    assert checkpointer.world_size == 2
    checkpointer.checkpoint({"w": torch.arange(100_000)}, step=1).wait("persistent")
"""


def two_ranks(directory: Path) -> None:
    """torchrun needs nothing else."""
    (directory / "rank.py").write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*command, str(directory / "rank.py"), str(directory / "ckpt")], check=True, timeout=200)
    assert torch.equal(deeppart.load(str(directory / "ckpt"))["w"], torch.arange(100_000))
    print("saved by two ranks under torchrun, loaded by one process")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
