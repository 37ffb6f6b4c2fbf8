"""The module-level functions: one default checkpointer, configured by the environment and ``deeppart.toml``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import ConfigError, DirectoryInUseError
from tests.unit.cli_support import block
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("workplace")


def state(value: float) -> dict[str, Any]:
    return {"x": torch.full((10,), value), "n": int(value)}


def test_the_three_lines_of_the_quick_start(workplace: Path) -> None:
    live = state(0)
    assert deeppart.restore(live) is None
    for step in (1, 2):
        deeppart.checkpoint(state(step), step=step).wait(timeout=200)
    assert deeppart.restore(live) == 2 and live["n"] == 2
    assert deeppart.load("ckpt")["n"] == 2
    assert list((workplace / "ckpt").glob("step-000000000002-*/manifest"))


def test_the_environment_and_the_file_configure_it(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("deeppart.toml").write_text('persistent_dir = "from-file"\nlocal_dir = "scratch"\nkeep = { persistent = 1 }\n')
    monkeypatch.setenv("DEEPPART_PERSISTENT_DIR", "from-{job}-{rank}")
    for step in (1, 2, 3):
        pending = deeppart.checkpoint(state(step), step)
        pending.wait("local", timeout=200)
        pending.wait("persistent", timeout=200)
    deeppart.close()
    assert not (workplace / "from-file").exists()
    (directory,) = workplace.glob("from-*-0")
    assert [path.name[:17] for path in directory.glob("step-*")] == ["step-000000000003"]
    assert len(list((workplace / "scratch").glob("*/step-*"))) == 1


@pytest.mark.parametrize("source", ["file", "environment"])
def test_a_keep_of_a_file_removes_no_steps_of_earlier_runs(
    source: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody may have looked at what a file says that lies there."""
    with deeppart.Checkpointer(persistent_dir="ckpt", keep={"persistent": 0}) as ck:
        for step in (1, 2, 3):
            ck.checkpoint(state(step), step)
    assert "settings from" not in capsys.readouterr().err
    if source == "file":
        Path("deeppart.toml").write_text("timeout = 100\nkeep = { persistent = 1 }\n")
    else:
        monkeypatch.setenv("DEEPPART_KEEP", "persistent=1")
    deeppart.restore(state(0))
    for step in (4, 5):
        deeppart.checkpoint(state(step), step)
    deeppart.close()
    kept = sorted(int(path.name[5:17]) for path in Path("ckpt").glob("step-*"))
    assert kept == ([1, 2, 3, 5] if source == "file" else [5])
    said = f"deeppart: settings from {Path.cwd()}/deeppart.toml: timeout, keep; this keep removes no steps"
    assert (said in capsys.readouterr().err) == (source == "file")


def test_a_bad_configuration_is_reported_and_can_be_mended() -> None:
    Path("deeppart.toml").write_text("tiemout = 3\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match="tiemout"):
            deeppart.checkpoint(state(1), 1)
    Path("deeppart.toml").write_text("timeout = 3\n")
    deeppart.checkpoint(state(1), 1).wait(timeout=200)


def test_close_gives_the_directory_back_and_the_next_call_begins_anew() -> None:
    deeppart.close()
    deeppart.checkpoint(state(1), 1)
    with pytest.raises(DirectoryInUseError):
        deeppart.Checkpointer(deeppart.Config())
    deeppart.close()
    deeppart.close()
    with deeppart.Checkpointer(deeppart.Config()) as ck:
        assert ck.restore(state(0)) == 1
    with pytest.raises(deeppart.errors.StepExistsError):
        deeppart.checkpoint(state(1), 1)
    deeppart.checkpoint(state(2), 2).wait(timeout=200)


def test_warnings_point_to_the_line_that_called(workplace: Path) -> None:
    deeppart.checkpoint(state(1), 1).wait(timeout=200)
    assert deeppart._default is not None
    block(deeppart._default, workplace / "ckpt", 2)
    pending = deeppart.checkpoint(state(2), 2)
    wait_until(lambda: pending.finished)
    with pytest.warns(deeppart.errors.BackgroundFailureWarning) as caught:
        deeppart.checkpoint(state(3), 3).wait(timeout=200)
        deeppart.close()
        with deeppart.Checkpointer(deeppart.Config()) as ck:
            block(ck, workplace / "ckpt", 4)
            ck.checkpoint(state(4), 4)
    with deeppart.Checkpointer(deeppart.Config()) as ck, pytest.warns(deeppart.DeeppartWarning) as newer:
        ck.restore(state(0), step=1)
    assert len(caught) == 2 and len(newer) == 1
    assert {Path(warning.filename) for warning in [*caught, *newer]} == {Path(__file__)}


def test_importing_takes_no_mpi_and_starts_nothing() -> None:
    script = """
import sys, threading, deeppart
assert "mpi4py" not in sys.modules and "hypothesis" not in sys.modules and threading.active_count() == 1
ck = deeppart.Checkpointer(deeppart.Config(persistent_dir="p"))
ck.checkpoint({"n": 1}, 1)
ck.close()
assert "mpi4py" not in sys.modules
"""
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2]), "HOME": "/tmp"}
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, "")
