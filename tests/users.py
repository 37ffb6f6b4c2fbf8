"""Other users of this machine, for tests that root runs: any number is a user to the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

#: Who tries to get at the files of another.
STRANGER = 61234
#: Who runs a job, where root is not to.
USER = 61235
#: Another one, who shares the group TEAM with USER.
MATE = 61236
TEAM = 61300

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")


def as_user(uid: int, function: Callable[[], object], groups: tuple[int, ...] = ()) -> None:
    """Call a function that uses the file system only, in a process of another user. What it raises fails the test."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.umask(0o022)
            os.setgroups(groups)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            function()
            os._exit(0)
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-60_000:])
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert status == 0, text


def python_as(
    uid: int, code: str, directory: Path, *, groups: tuple[int, ...] = (), umask: int = 0o022
) -> subprocess.CompletedProcess[str]:
    """Run Python code, with this library, as another user; skips where that user cannot read the library."""
    root = Path(__file__).parents[1]
    try:
        as_user(uid, lambda: (os.listdir(root), os.stat(sys.executable)))
    except AssertionError:
        pytest.skip("the library lies where other users cannot read it")
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=directory,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(root), "HOME": str(directory), "OMP_NUM_THREADS": "1"},
        user=uid,
        group=uid,
        extra_groups=groups,
        umask=umask,
        capture_output=True,
        text=True,
        timeout=120,
    )
