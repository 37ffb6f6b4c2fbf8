"""Descriptors of directories and files: the flags they are opened with, their mode, sync and close; and who we are."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from functools import lru_cache

from deeppart.access.rules import Identity, Rules

#: A directory to go on from: needs no permission to read it.
STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: A regular file, opened without waiting for whoever else has it open.
FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: The entries of a directory.
ENTRIES = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: Refusals of ``fsync`` on a directory that mean "cannot and need not".
_NO_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


@lru_cache(maxsize=8)
def _identity(uid: int) -> Identity:
    return Identity.current()


def who() -> Identity:
    """The user and groups that the kernel checks now; an effective user that changes is noticed."""
    return _identity(os.geteuid())


def close_descriptor(descriptor: int) -> None:
    """Nothing was written through it that is not synced: what closing it says, says nothing."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


def set_mode(descriptor: int, rules: Rules) -> None:
    """Give what was just made the mode that the umask may have taken from it, as far as the file system has modes."""
    mode = os.fstat(descriptor).st_mode
    wanted = rules.wanted_mode(mode)
    if wanted != stat.S_IMODE(mode):
        with contextlib.suppress(OSError):
            os.chmod(f"/proc/self/fd/{descriptor}", wanted)


def sync_entries(descriptor: int) -> None:
    """Make the entries of a directory durable, given any descriptor of it."""
    readable = os.open(".", ENTRIES, dir_fd=descriptor)
    try:
        os.fsync(readable)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        close_descriptor(readable)
