"""What the operating system refuses: the number, the place, and what to do."""

from __future__ import annotations

import errno
from pathlib import Path

from deeppart.access import storage_error


def test_advice_and_what_the_caller_knows_better() -> None:
    path = Path("/some/part")
    full = storage_error("cannot write", OSError(errno.ENOSPC, "x"), path)
    assert full.errno == errno.ENOSPC and "free space" in str(full) and str(path) in str(full)
    assert "mounted read-only" in str(storage_error("cannot write", OSError(errno.EROFS, "x"), path))
    assert "look at the system log" in str(storage_error("cannot write", OSError("without a number"), path))
    assert "ask the owner" in str(storage_error("cannot write", OSError(errno.EIO, "x"), path, todo="ask the owner"))
