"""Completion, asked for as the shells do: by click's own variables, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli_support import forge

NAMES = (
    "ls",
    "show",
    "cat",
    "diff",
    "verify",
    "explain",
    "export",
    "import",
    "prune",
    "watch",
    "halt",
    "advise",
    "run",
    "slurm",
)

ROOT = Path(__file__).parents[3]
#: What is offered for the last word of each line. Nothing that takes long to import, and nothing of MPI; click ends the
#: process itself.
SCRIPT = """
import os, sys
from contextlib import suppress
from deeppart.cli import main
for words in sys.argv[1:]:
    os.environ |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - (not words.endswith(" ")))}
    with suppress(SystemExit):
        main.main(prog_name="deeppart")
    print("---")
slow = sorted({"torch", "h5py", "mpi4py"} & sys.modules.keys())
print("imported:", *slow, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("completion") / "ckpt"
    for step in (100, 120, 2000):
        forge(root, step, ranks=1)
    return root


def test_commands_options_directories_and_steps_in_a_process_of_their_own(root: Path) -> None:
    """Values, or the kind of files that the shell is to complete."""
    expected = {
        "deeppart ": [f"plain,{name}" for name in NAMES],
        "deeppart verify ck": ["dir,ck"],
        f"deeppart export {root} --step ": ["plain,100", "plain,120", "plain,2000"],
        f"deeppart diff {root}@1": [f"plain,{root}@100", f"plain,{root}@120"],
        "deeppart cat x y --": None,
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *expected],
        env={**os.environ, "_DEEPPART_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0 and done.stderr == "imported:\n", done.stderr
    *offered, end = [each.split() for each in done.stdout.split("---\n")]
    assert not end
    for (line, those), found in zip(expected.items(), offered, strict=True):
        assert found == those if those is not None else "plain,--npy" in found, line
