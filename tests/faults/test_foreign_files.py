"""Links, pipes, sockets and devices of another user in the place of files, and his step directories.

As root, with users that are numbers (tests/users.py).
"""

from __future__ import annotations

import os
import socket
import stat
import warnings
from pathlib import Path

import pytest

import deeppart
from deeppart.errors import DeeppartError
from tests.faults.foreign import PART, config, run, state, step_directory
from tests.unit.cli_support import call_json
from tests.users import needs_root


def put(kind: str, path: Path, precious: Path) -> None:
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(precious)
    elif kind == "dangling":
        path.symlink_to(precious.with_name("new"))
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        there = os.getcwd()
        with socket.socket(socket.AF_UNIX) as server:
            os.chdir(path.parent)
            server.bind(path.name)
            os.chdir(there)
    else:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))


KINDS = ["link", "dangling", "fifo", "socket", pytest.param("device", marks=needs_root)]


@pytest.mark.parametrize("shared", ["disk"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [".deeppart.lock", "deeppart.json", "deeppart-runs.json"])
def test_things_in_the_place_of_records(shared: Path, precious: Path, kind: str, name: str) -> None:
    run(config(shared, every="auto"), 1)
    put(kind, shared / "persistent" / name, precious)
    if name == "deeppart-runs.json":  # of no importance: it is said, and replaced
        with pytest.warns(deeppart.DeeppartWarning, match=name):
            run(config(shared, every="auto"), 2)
    else:
        with pytest.raises(DeeppartError, match=name):
            run(config(shared, every="auto"), 2)
    assert not (shared / "new").exists()


@pytest.mark.parametrize("shared", ["disk"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["manifest", PART])
def test_things_in_the_place_of_a_checkpoints_files(shared: Path, precious: Path, kind: str, name: str) -> None:
    """Also a link to a sound file: it may lead to another one tomorrow."""
    run(config(shared), 1, 2)
    path = step_directory(shared / "persistent", 2) / name
    sound = path.rename(shared / "sound")
    put(kind, path, sound if kind == "link" else precious)
    if name == "manifest":
        with pytest.warns(deeppart.DeeppartWarning, match="step 2 is newer"):
            assert deeppart.load(shared / "persistent")["step"] == 1
    with pytest.raises(DeeppartError):
        deeppart.load(shared / "persistent", step=2)
    with deeppart.Checkpointer(config(shared)) as checkpointer:
        live = state(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", deeppart.DeeppartWarning)
            assert checkpointer.restore(live) == 1
        assert live["weight"][0] == 1
    assert not (shared / "new").exists()


@pytest.mark.parametrize("shared", ["disk"], indirect=True)
def test_a_step_directory_that_is_a_link(shared: Path) -> None:
    """What it leads to is neither read, nor removed by ``keep``."""
    run(config(shared), 1, 2)
    away = shared / "elsewhere"
    link = step_directory(shared / "persistent", 1)
    link.rename(away)
    link.symlink_to(away)
    before = sorted(os.listdir(away))
    states = {entry["step"]: entry["state"] for entry in call_json("ls", shared / "persistent")["steps"]}
    assert states == {1: "damaged", 2: "complete"}
    with pytest.raises(DeeppartError):
        deeppart.load(shared / "persistent", step=1)
    run(config(shared, keep={"persistent": 1}), 3, 4, 5)
    assert sorted(os.listdir(away)) == before and PART in before
    assert deeppart.load(shared / "persistent")["step"] == 5
