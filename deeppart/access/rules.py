"""Decides whose directories and files may be used, by ``fstat`` and access control lists; like ssh's StrictModes.

Whoever owns a directory, or may write to it, can replace its entries; whoever owns a file can change it at any time.
docs/failure-model.md ("Other users") describes what each setting of ``permissions`` accepts.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

#: Values of ``Config.permissions``.
PERMISSIONS = ("private", "umask", "group", "unchecked")

_ROOT = 0
#: Stands for the group of a file whose access control list lets other users write.
_LISTED = -1
_ACL_NAME = "system.posix_acl_access"
#: linux/posix_acl_xattr.h: a version, then tag, permissions and id of each entry.
_ACL_VERSION, _ACL_ENTRY = struct.Struct("<I"), struct.Struct("<HHI")
_ACL_USER, _ACL_GROUP, _ACL_MASK, _ACL_WRITE = 0x02, 0x08, 0x10, 2


class ForeignAccessError(PermissionError):
    """Other users own a file or directory, or can write to it, and so could control what is read or written.

    Attributes:
        expected, found, todo: for an error message.
    """

    def __init__(self, path: Path | str, expected: str, found: str, todo: str) -> None:
        super().__init__(1, f"not used: {found}", str(path))
        self.expected, self.found, self.todo = expected, found, todo


@dataclass(frozen=True, slots=True)
class Identity:
    """The user and groups of this process.

    Attributes:
        uid: effective user.
        groups: all of its groups.
        own_group: the user's private group, or None: many systems give each user one, with a umask of 002.
        unmapped: the user id that a user namespace shows for users without a mapping, such as root; None outside of
            one.
    """

    uid: int
    groups: frozenset[int]
    own_group: int | None = None
    unmapped: int | None = None


def current_identity() -> Identity:
    """The current user and groups; changes of the effective user are noticed."""
    return _identity(os.geteuid())


@lru_cache(maxsize=8)
def _identity(uid: int) -> Identity:
    return Identity(uid, frozenset((os.getegid(), *os.getgroups())), _own_group(uid), _unmapped())


def _own_group(uid: int) -> int | None:
    try:
        user = pwd.getpwuid(uid)
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return None
    return group.gr_gid if group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name} else None


def _unmapped() -> int | None:
    """The user as which owners without a mapping are shown (``user_namespaces(7)``)."""
    try:
        inside, outside, count = (int(word) for word in Path("/proc/self/uid_map").read_text().split()[:3])
        if (inside, outside) == (0, 0) and count >= 1 << 31:
            return None
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Status:
    """The attributes that rules check: mode, owner, group and number of names."""

    mode: int
    uid: int
    gid: int
    names: int = 1

    @classmethod
    def of(cls, descriptor: int, found: os.stat_result | None = None) -> Status:
        """The status of an open directory or file.

        If an access control list lets a group write, that group replaces the file's group: with a list, the group
        permission bits are only its mask.
        """
        found = found or os.fstat(descriptor)
        group = found.st_gid
        if found.st_mode & stat.S_IWGRP:
            group = min(_listed_writers(descriptor), default=group)
        return cls(found.st_mode, found.st_uid, group, found.st_nlink)


def _listed_writers(descriptor: int) -> set[int]:
    """The groups that may write by an access control list; :data:`_LISTED` for other users and their groups."""
    try:
        data = os.getxattr(f"/proc/self/fd/{descriptor}", _ACL_NAME)  # a descriptor of O_PATH cannot be asked
    except OSError:  # there is no list, or there are none on this file system
        return set()
    me = current_identity()
    entries = list(_ACL_ENTRY.iter_unpack(data[_ACL_VERSION.size :]))
    mask = next((permissions for tag, permissions, _ in entries if tag == _ACL_MASK), _ACL_WRITE)
    writing = [(tag, name) for tag, permissions, name in entries if permissions & mask & _ACL_WRITE]
    groups = {name if name in me.groups else _LISTED for tag, name in writing if tag == _ACL_GROUP}
    users = {_LISTED for tag, name in writing if tag == _ACL_USER and name not in (me.uid, _ROOT)}
    return (groups | users) - {me.own_group}


@dataclass(frozen=True, slots=True)
class Rules:
    """What is accepted on the path to a directory and below it, and with which permissions entries are created.

    Attributes:
        permissions: as ``Config.permissions``.
        node: true for node-local storage: groups are not trusted, and the directory itself may be shared by users if it
            has the sticky bit, like ``/tmp``. Elsewhere, groups of this user may own directories above, and write.
        reading: true for commands that read: any owner is accepted, but links must not lead out of the directory.
    """

    permissions: str = "private"
    node: bool = False
    reading: bool = False

    @property
    def is_private(self) -> bool:
        """True if new entries are for their owner alone."""
        return self.node and self.permissions == "private"

    @property
    def trusts_all(self) -> bool:
        """True if owners and permissions are not checked."""
        return self.reading or self.permissions == "unchecked"

    def mode(self, *, directory: bool) -> int:
        """Mode for ``mkdir`` and ``open``, to which the umask applies. Never writable by everyone: refused later."""
        mode = 0o700 if self.is_private else 0o775
        return mode if directory else mode & 0o666

    def check(self, path: Path | str, status: Status, *, above: bool = False) -> None:
        """Raise ForeignAccessError if others own or can write to it; ``above``: for a directory above the root."""
        if self.trusts_all:
            return
        me = current_identity()
        if not self._is_owner_trusted(status, me, above):
            raise ForeignAccessError(path, *_owned(status, self.node))
        shared = above and status.mode & stat.S_ISVTX
        if status.mode & stat.S_IWOTH and not shared:
            raise ForeignAccessError(path, *_written(status, self.node, above))
        trusts_group = self.permissions == "group" or not self.node
        trusted = {_ROOT, me.own_group} | (me.groups if trusts_group else frozenset())
        if status.mode & stat.S_IWGRP and not shared and status.gid not in trusted:
            raise ForeignAccessError(path, *_written(status, self.node, above))

    def check_link(self, path: Path | str, status: os.stat_result) -> None:
        """Raise ForeignAccessError for a symbolic link on the path to the root that others own."""
        found = Status(status.st_mode, status.st_uid, status.st_gid)
        if not self.trusts_all and not self._is_owner_trusted(found, current_identity(), above=True):
            raise ForeignAccessError(path, *_owned(found, self.node))

    def check_over(self, path: Path | str, status: Status) -> None:
        """:meth:`check` a file before it is overwritten: it also must be this user's, and have only one name."""
        self.check(path, status)
        me = current_identity()
        mates = self.permissions == "group" and status.gid in me.groups
        if not (self.trusts_all or mates or status.uid == me.uid):
            found = f"owned by {_user(status.uid)}"
        elif status.names > 1:
            found = f"{status.names} names"
        else:
            return
        todo = "remove the file, or find out who has put it there"
        raise ForeignAccessError(path, "a file of this user with one name", found, todo)

    def _is_owner_trusted(self, status: Status, me: Identity, above: bool) -> bool:
        if status.uid in (me.uid, _ROOT) or (above and status.uid == me.unmapped):
            return True
        trusts_group = self.permissions == "group" or (above and not self.node)
        return trusts_group and status.gid in me.groups


#: For commands that read.
READING = Rules(reading=True)


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _group(gid: int) -> str:
    try:
        return f"{grp.getgrgid(gid).gr_name} (gid {gid})"
    except KeyError:
        return f"gid {gid}"


def _owned(status: Status, node: bool) -> tuple[str, str, str]:
    what = "local_dir" if node else "persistent_dir"
    return (
        f"owned by this user (uid {os.geteuid()}) or root: its owner decides what is found there",
        f"owned by {_user(status.uid)}, mode {stat.S_IMODE(status.mode):04o}",
        f"give `{what}` a directory of your own ($USER may be part of it); if its group is yours and you trust it, "
        'permissions = "group"; if the file system shows wrong owners (FUSE, NFS root squash, a user namespace), '
        'permissions = "unchecked"',
    )


def _written(status: Status, node: bool, above: bool) -> tuple[str, str, str]:
    what, trust = "local_dir" if node else "persistent_dir", ""
    if status.mode & stat.S_IWOTH:
        who, undo = "everyone", "chmod o-w"
    elif status.gid == _LISTED:
        who, undo = "somebody in its access control list", "setfacl -b"
    else:
        who, undo = f"group {_group(status.gid)}", "chmod g-w"
        trust = ', or trust the group: permissions = "group"'
    sticky = "give it the sticky bit (chmod +t), " if above else ""
    return (
        "nobody else to have write permission",
        f"{who} may write to it, mode {stat.S_IMODE(status.mode):04o}, owned by {_user(status.uid)}",
        f"take the permission away ({undo}), {sticky}or give `{what}` another directory{trust}. "
        'permissions = "unchecked" uses it all the same',
    )
