"""The options of ``deeppart elastic-run``. What it does: tests/unit/elastic/test_running.py, tests/elastic."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deeppart.cli import main
from tests.mpi.launchers import environment
from tests.packaging.test_cli_documents import is_explained, paths
from tests.unit.cli_support import save
from tests.unit.elastic.handlers import handlers_kept

pytestmark = [pytest.mark.timeout(100), pytest.mark.xdist_group("torchrun")]


@pytest.fixture(autouse=True)
def _handlers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with handlers_kept():
        yield


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["elastic-run", *map(str, arguments)], env={"DEEPPART_PERSISTENT_DIR": None})


def test_a_job_is_run_with_its_own_options(tmp_path: Path) -> None:
    """What comes after the command is the command's, also where it looks like an option of ours."""
    script = "import sys; open(sys.argv[2], 'w').write(sys.argv[1])"
    done = call("--max", "1", "--", sys.executable, "-I", "-S", "-c", script, "--json", tmp_path / "told")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "told").read_text() == "--json"
    assert "start ranks 1" in done.stderr and "end exit code 0" in done.stderr and not done.stdout


def test_ranks_are_told_where_checkpoints_are(tmp_path: Path) -> None:
    """Else a script that names no directory saves nothing, or elsewhere, and begins anew at each change."""
    script = "import os, sys; open(sys.argv[1], 'w').write(os.environ['DEEPPART_PERSISTENT_DIR'])"
    job = ["--", sys.executable, "-I", "-S", "-c", script, str(tmp_path / "told")]
    done = call("--max", "1", "--failures", "0", "--checkpoints", tmp_path / "ckpt", *job)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "told").read_text() == str(tmp_path / "ckpt")


def test_a_command_that_is_none_is_named_as_the_last_event(capfd: pytest.CaptureFixture[str]) -> None:
    done = call("--max", "2", "--json", "--", "/nowhere/train")
    start, end = map(json.loads, capfd.readouterr().out.splitlines())
    assert done.exit_code == 2 and (start["event"], end["event"]) == ("start", "end")
    assert end["error"]["kind"] == "LaunchError" and "/nowhere/train" in end["error"]["found"]


def test_progress_is_looked_for_where_the_job_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By deeppart.toml: the second failure is the first after a new step, the third is one too many."""
    (tmp_path / "deeppart.toml").write_text("persistent_dir = '$WHERE/there'")
    monkeypatch.setenv("WHERE", str(tmp_path))
    save(tmp_path / "made", 1)
    script = f"""
import os
if os.path.exists("tried"):
    os.path.exists("made") and os.rename("made", {str(tmp_path / "there")!r})
open("tried", "a").write("x")
raise SystemExit(9)
"""
    done = call("--max", "1", "--failures", "1", "--", sys.executable, "-I", "-S", "-c", script)
    assert done.exit_code == 2 and f"`deeppart ls {tmp_path / 'there'}`" in done.stderr
    assert (tmp_path / "tried").read_text() == "xxx"


def test_json_is_a_line_for_each_event_and_nothing_else(tmp_path: Path) -> None:
    """What ranks print is on stderr, and so is nothing of ours; the last event has the error."""
    script = "print('of the rank'); raise SystemExit(9)"
    options = ["--max", "1", "--failures", "0", "--json", "--log", str(tmp_path / "log")]
    done = subprocess.run(
        [sys.executable, "-m", "deeppart", "elastic-run", *options, "--", sys.executable, "-I", "-S", "-c", script],
        env=environment({}, 60.0), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "of the rank" in done.stderr and "elastic-run:" not in done.stderr
    assert (tmp_path / "log").read_text() == done.stdout
    start, ended, end = map(json.loads, done.stdout.splitlines())
    assert all(is_explained(path, "elastic-run") for event in (start, ended, end) for path in paths(event))
    assert start.keys() == {"time", "passed_s", "event", "ranks"} and start["event"] == "start"
    assert ended.keys() == {"time", "passed_s", "event", "rank", "exit_code", "asked"} and ended["exit_code"] == 9
    assert end.keys() == {"time", "passed_s", "event", "exit_code", "error"} and end["exit_code"] == 2
    assert end["error"]["kind"] == "LaunchError" and end["error"]["found"] == "rank 0 of 1: exit code 9"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max", "2", "--min", "3"], "--min 3 --max 2"),
        (["--max", "2", "--schedule", "0:5"], "--schedule 0:5"),
        (["--max", "2", "--size-file", "/nowhere/SIZE"], "/nowhere/SIZE"),
        (["--max", "2", "--size-file", "/dev/null"], "not a regular file"),
        (["--max", "2", "--log", "/nowhere/log"], "/nowhere/log"),
        (["--min", "2"], "--max"),
        (["--max", "2", "--grce", "5"], "No such option"),
    ],
)
def test_what_cannot_be_is_refused(options: list[str], said: str) -> None:
    done = call(*options, "--", "true")
    assert done.exit_code == 2 and said in done.stderr
    assert json.loads(call(*options, "--json", "--", "true").stdout)["error"]["exit_code"] == 2
