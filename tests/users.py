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


#: Everything is imported before the user changes: the interpreter may lie where others cannot read it.
_BECOME = """
import importlib, os, pkgutil, sys
import deeppart
for module in pkgutil.walk_packages(deeppart.__path__, "deeppart."):
    if not module.name.endswith("__main__") and not module.name.startswith("deeppart.comm.mpi"):
        importlib.import_module(module.name)
uid, umask, groups, code = int(sys.argv[1]), int(sys.argv[2]), [int(each) for each in sys.argv[3].split()], sys.argv[4]
os.umask(umask)
os.setgroups(groups)
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
sys.argv[1:] = sys.argv[5:]
exec(code)
"""


def python_as(
    uid: int, code: str, directory: Path, *arguments: str, groups: tuple[int, ...] = (), umask: int = 0o022
) -> subprocess.CompletedProcess[str]:
    """Run Python code with this library as another user, in a directory; ``arguments`` are its ``sys.argv[1:]``."""
    root = str(Path(__file__).parents[1])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DEEPPART_")}
    given = (str(uid), str(umask), " ".join(map(str, groups)), code, *arguments)
    return subprocess.run(
        [sys.executable, "-c", _BECOME, *given],
        cwd=directory,
        env={**environment, "PYTHONPATH": root, "HOME": str(directory), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
