"""Renames a file only to a free name, which fences sessions off from each other.

Everything relies on *create if absent*: of any number of processes on any number of hosts, exactly one creates a name,
and the others get an error. Three ways are tried in this order:

1. ``renameat2(2)`` with ``RENAME_NOREPLACE``: most local file systems, and Lustre.
2. ``link(2)`` and ``unlink(2)``: NFS, and other file systems with hard links.
3. ``open(2)`` with ``O_CREAT | O_EXCL`` of a *claim*, a temporary file whose name is derived from the final name; the
   process that has created it checks that the name is free, and renames: vfat, and FUSE file systems without links. The
   name never refers to an incomplete file. If a process dies with the claim, the claim stays and the name is taken.

Object stores have the same operation as a conditional put (``If-None-Match: *``).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from pathlib import Path

from deeppart import access

_RENAME_NOREPLACE = 1
#: Calls through ctypes release the GIL.
_LIBC = ctypes.CDLL(None, use_errno=True)
#: Errors that mean that the file system does not support this way.
_NOT_THIS_WAY = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM, errno.EMLINK})


def rename_new(temporary: Path, path: Path) -> None:
    """Rename a file within its directory to a free name; FileExistsError if the name is taken."""
    for way in (rename_noreplace, link_new):
        try:
            way(temporary, path)
            return
        except OSError as error:
            if error.errno not in _NOT_THIS_WAY:
                raise
    claim_new(temporary, path)


def rename_noreplace(source: Path, target: Path) -> None:
    """``renameat2(2)`` with ``RENAME_NOREPLACE``."""
    function = getattr(_LIBC, "renameat2", None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(source))
    names = os.fsencode(source.name), os.fsencode(target.name)
    with access.open_folder(source.parent) as here, access.open_folder(target.parent) as there:
        if function(here.fd, names[0], there.fd, names[1], ctypes.c_uint(_RENAME_NOREPLACE)) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(source), None, str(target))


def link_new(source: Path, target: Path) -> None:
    """Add the new name, then remove the old one; errors as of :func:`rename_new`."""
    try:
        access.link(source, target)
    except FileExistsError:
        # A network file system repeats a request whose answer was lost: then the link is ours.
        if not os.path.samestat(access.lstat(source), access.lstat(target)):
            raise
    with contextlib.suppress(OSError):  # a temporary name that stays does no harm
        access.remove(source)


def claim_new(source: Path, target: Path) -> None:
    """Rename while holding a claim; errors as of :func:`rename_new`."""
    claim = target.with_name(f".{target.name}.tmp-0")
    try:
        os.close(access.create(claim))
    except FileExistsError as error:
        todo = "another process gives this name to a file, or died when it did: if none does, remove"
        raise FileExistsError(errno.EEXIST, todo, str(claim)) from error
    try:
        if access.exists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        access.rename(source, target)
    finally:
        with contextlib.suppress(OSError):
            access.remove(claim)
