"""Completion, asked for as the shells do: by click's own variables, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from deeppart.cli import main
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
#: Nothing that takes long to import, and nothing of MPI; click ends the process itself.
SCRIPT = """
import sys
from deeppart.cli import main
try:
    main.main(prog_name="deeppart")
finally:
    slow = sorted({"torch", "h5py", "mpi4py"} & sys.modules.keys())
    print("imported:", *slow, file=sys.stderr)
"""


def completed(words: str) -> list[str]:
    """What is offered for the last word, in a process of its own; "dir" and "file" leave it to the shell."""
    count = len(words.split()) - (0 if words.endswith(" ") else 1)
    asked = {"_DEEPPART_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=ROOT,
    )
    assert done.returncode == 0 and done.stderr == "imported:\n", done.stderr
    return done.stdout.split()


def offered(*words: object) -> list[str]:
    """The same in this process: values, or the kind of files that the shell is to complete."""
    *arguments, incomplete = map(str, words)
    completion = ShellComplete(main, {}, "deeppart", "_DEEPPART_COMPLETE")
    found = completion.get_completions(arguments, incomplete)
    return [item.value if item.type == "plain" else f"{item.type}:{item.value}" for item in found]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("completion") / "ckpt"
    for step in (100, 120, 2000):
        forge(root, step, ranks=1)
    return root


def test_commands_options_directories_and_steps_in_a_process_of_their_own(root: Path) -> None:
    assert completed("deeppart ") == [f"plain,{name}" for name in NAMES]
    assert "plain,--npy" in completed("deeppart cat x y --")
    assert completed("deeppart verify ck") == ["dir,ck"]
    assert completed(f"deeppart export {root} --step ") == ["plain,100", "plain,120", "plain,2000"]
    assert completed(f"deeppart diff {root}@1") == [f"plain,{root}@100", f"plain,{root}@120"]


def test_in_a_real_bash(root: Path, tmp_path: Path) -> None:
    program = tmp_path / "deeppart"
    program.write_text(f"#!{sys.executable}\nfrom deeppart.cli import main\nmain(prog_name='deeppart')\n")
    program.chmod(0o755)
    script = f"""
        eval "$(_DEEPPART_COMPLETE=bash_source deeppart)"
        COMP_WORDS=(deeppart show {root} --step 1) COMP_CWORD=4
        _deeppart_completion deeppart
        echo "${{COMPREPLY[@]}}"
    """
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "100 120\n", done.stderr
