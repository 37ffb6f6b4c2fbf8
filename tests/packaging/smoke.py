"""One process, no MPI: what ``pip install .`` brings is enough to save, restore and load, and for the commands.

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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
