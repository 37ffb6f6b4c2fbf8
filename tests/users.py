"""Other users of this machine, for tests that root runs: any number is a user to the kernel."""

from __future__ import annotations

import importlib
import os
import pkgutil
import traceback
from collections.abc import Callable

import pytest

import deeppart

#: Who tries to get at the files of another.
STRANGER = 61234
#: Who runs a job, where root is not to.
USER = 61235
#: Another one, who shares the group TEAM with USER.
MATE = 61236
TEAM = 61300

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")


def told_by(
    uid: int, function: Callable[[], object], *, groups: tuple[int, ...] = (), umask: int = 0o022
) -> tuple[bool, str]:
    """Call a function in a process of another user.

    The process is forked off this one: the interpreter and the library may lie where other users cannot read them, so
    all of the library is imported before.

    Returns:
        Whether it returned, and what, as text; otherwise its error.
    """
    for module in pkgutil.walk_packages(deeppart.__path__, "deeppart."):
        if not module.name.endswith("__main__") and not module.name.startswith("deeppart.comm.mpi"):
            try:
                importlib.import_module(module.name)
            except ImportError as error:  # a trainer that is not installed
                if str(error.name).startswith("deeppart"):
                    raise
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.umask(umask)
            os.setgroups(groups)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            text, code = str(function()), 0
        except BaseException:
            text, code = traceback.format_exc(), 1
        os.write(writing, text.encode()[-60_000:])
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return status == 0, text


def as_user(uid: int, function: Callable[[], object]) -> None:
    """The same; what it raises fails the test."""
    returned, text = told_by(uid, function)
    assert returned, text
