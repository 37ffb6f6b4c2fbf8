"""Access control lists (``acl(5)``): where there is one, the group's permission bits are its mask.

That the group may write then says nothing of who may: perhaps users whom the list names. The bits alone would pass,
where the group is one that nobody else is in.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass

from deeppart.access.rules import Identity, Status

_NAME = "system.posix_acl_access"
#: linux/posix_acl_xattr.h: a version, then tag, permissions and id of each entry.
_VERSION = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")
_USER, _GROUP, _MASK = 0x02, 0x08, 0x10
_WRITE = 2
_NOBODYS = -1


@dataclass(frozen=True, slots=True)
class ListedStatus:
    """A status with another group: one that may write by a list."""

    st_mode: int
    st_uid: int
    st_nlink: int
    st_gid: int


def status_of(descriptor: int, who: Identity) -> Status:
    """The result of ``fstat``; if an access control list lets others write, with their group, or a group of nobody."""
    status = os.fstat(descriptor)
    if status.st_mode & stat.S_IWGRP:
        writers = _groups_that_may_write(descriptor, who)
        if writers:
            return ListedStatus(status.st_mode, status.st_uid, status.st_nlink, min(writers))
    return status


def _groups_that_may_write(descriptor: int, who: Identity) -> set[int]:
    """Those that a list names; for users, and for groups that this user is not in, one that nobody is in."""
    try:
        data = os.getxattr(f"/proc/self/fd/{descriptor}", _NAME)  # a descriptor of O_PATH cannot be asked
    except OSError:  # there is no list, or there are none on this file system
        return set()
    entries = list(_ENTRY.iter_unpack(data[_VERSION.size :]))
    mask = next((permissions for tag, permissions, _ in entries if tag == _MASK), _WRITE)
    writing = [(tag, name) for tag, permissions, name in entries if permissions & mask & _WRITE]
    groups = {name if name in who.groups else _NOBODYS for tag, name in writing if tag == _GROUP}
    users = {_NOBODYS for tag, name in writing if tag == _USER and name not in (who.uid, 0)}
    return (groups | users) - {who.own_group}
