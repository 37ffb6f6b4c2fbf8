"""The command as a whole: exit codes, errors, JSON, pipes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import deeppart
from tests.unit.cli_support import call, call_json, flip, manifest_path, save

COMMANDS = (("ls",), ("show",), ("cat", "key"), ("verify",), ("prune", "--keep", "1", "--yes"))
ERROR_KEYS = {"kind", "summary", "expected", "found", "where", "tried", "todo", "exit_code"}


def test_version_and_help() -> None:
    assert deeppart.__version__ in call("--version")
    text = call("-h")
    assert all(name in text for name in ("ls", "show", "verify", "prune"))
    for name, *_ in COMMANDS:
        assert "--json" in call(name, "--help")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_nothing_there(command: tuple[str, ...], tmp_path: Path) -> None:
    name, *options = command
    text = call(name, tmp_path / "missing", *options, code=1)
    assert "error: there is no such checkpoint directory" in text
    assert "Traceback" not in text
    error = call_json(name, tmp_path / "missing", *options, code=1)["error"]
    assert error.keys() == ERROR_KEYS
    assert (error["kind"], error["exit_code"]) == ("RestoreError", 1)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("arguments", [("ls",), ("ls", "x", "--bad"), ("show", "x", "--step", "-1"), ("dance",)])
def test_bad_usage(arguments: tuple[str, ...]) -> None:
    assert "Usage:" in call(*arguments, code=2)
    error = call_json(*arguments, code=2)["error"]
    assert (error["kind"], error["exit_code"]) == ("UsageError", 2)
    assert error["summary"]


def test_damaged_manifest_is_an_error_of_show(tmp_path: Path) -> None:
    save(tmp_path, 1)
    flip(manifest_path(tmp_path, 1), 300)
    assert "digest of the manifest" in call("show", tmp_path, code=1)
    assert call_json("show", tmp_path, "--step", "1", code=1)["error"]["kind"] == "CorruptFileError"


def test_a_real_process_and_a_pipe_that_closes(tmp_path: Path) -> None:
    save(tmp_path, 1)
    command = [sys.executable, "-m", "deeppart.cli", "show", str(tmp_path), "--flat"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert (process.wait(60), errors) == (141, "")


def test_ls_and_prune_do_not_wait_for_torch(tmp_path: Path) -> None:
    """Where Python is on a cluster's file system, importing torch can take a minute."""
    save(tmp_path, 1)
    script = "import sys; from deeppart.cli import main; main.main(sys.argv[1:], standalone_mode=False)\n"
    script += "assert 'torch' not in sys.modules and 'mpi4py' not in sys.modules"
    for command in (["ls"], ["ls", "--json"], ["prune", "--keep", "1", "--dry-run"]):
        done = subprocess.run(
            [sys.executable, "-c", script, command[0], str(tmp_path), *command[1:]],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            cwd=Path(__file__).parents[3],
        )
        assert done.returncode == 0, done.stderr
