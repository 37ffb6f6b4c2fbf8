"""The options of ``deeppart elastic-run``. What it does: tests/unit/elastic/test_running.py, tests/elastic."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deeppart.cli import main
from tests.unit.elastic.handlers import handlers_kept

pytestmark = [pytest.mark.timeout(60), pytest.mark.xdist_group("torchrun")]


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    with handlers_kept():
        yield


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["elastic-run", *map(str, arguments)], env={"DEEPPART_PERSISTENT_DIR": None})


def test_a_job_is_run_with_its_own_options(tmp_path: Path) -> None:
    """What comes after the command is the command's, also where it looks like an option of ours."""
    script = "import sys; open(sys.argv[2], 'w').write(sys.argv[1])"
    done = call("--max", "1", "--", sys.executable, "-I", "-S", "-c", script, "--max", tmp_path / "told")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "told").read_text() == "--max" and "start ranks 1" in done.stderr and "done" in done.stderr


def test_ranks_are_told_where_checkpoints_are(tmp_path: Path) -> None:
    """Else a script that names no directory saves nothing, or elsewhere, and begins anew at each change."""
    script = "import os, sys; open(sys.argv[1], 'w').write(os.environ['DEEPPART_PERSISTENT_DIR'])"
    job = ["--", sys.executable, "-I", "-S", "-c", script, tmp_path / "told"]
    done = call("--max", "1", "--failures", "0", "--checkpoints", tmp_path / "ckpt", *job)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "told").read_text() == str(tmp_path / "ckpt")


def test_a_job_that_fails_is_named() -> None:
    done = call("--max", "1", "--failures", "0", "--", sys.executable, "-I", "-S", "-c", "raise SystemExit(9)")
    assert done.exit_code == 2
    assert "rank 0 of 1: exit code 9" in done.stderr and "--checkpoints DIR" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max", "2", "--min", "3"], "--min 3 --max 2"),
        (["--max", "2", "--schedule", "0:5"], "--schedule 0:5"),
        (["--max", "2", "--size-file", "/nowhere/SIZE"], "/nowhere/SIZE"),
        (["--min", "2"], "--max"),
    ],
)
def test_what_cannot_be_is_refused(options: list[str], said: str) -> None:
    done = call(*options, "--", "true")
    assert done.exit_code == 2 and said in done.stderr
