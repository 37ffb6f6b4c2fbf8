"""Whose directories and files may be used: pure functions over what ``fstat`` says.

Others must not decide what is read or written. Whoever owns a directory, or may write to it, can put other things in
the place of what is in it; whoever owns a file can change it at any time. So both are asked of every directory on the
way to a file, and of the file.

What each setting of ``permissions`` accepts is in docs/failure-model.md ("Other users").
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

#: Values of ``Config.permissions``.
PERMISSIONS = ("private", "umask", "group", "unchecked")

_ROOT = 0
#: Whatever the umask says: what everyone may write to would be refused the next time.
_DIRECTORY, _FILE = 0o775, 0o664
_PRIVATE_DIRECTORY, _PRIVATE_FILE = 0o700, 0o600
#: With "group", the group may do what the owner may; what is made in a directory belongs to the directory's group.
_GROUP_DIRECTORY, _GROUP_FILE = stat.S_ISGID | 0o070, 0o060


class Status(Protocol):
    """The fields of ``os.stat_result`` that the rules use."""

    @property
    def st_mode(self) -> int: ...
    @property
    def st_uid(self) -> int: ...
    @property
    def st_gid(self) -> int: ...
    @property
    def st_nlink(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """The user and the groups of this process, as the file system sees them.

    Attributes:
        uid: effective user.
        groups: all of its groups.
        own_group: a group that nobody else is in, or None: many systems give each user one, and a umask of 002.
        unmapped: the user that stands for all whom a user namespace does not know, as root; None outside of one.
    """

    uid: int
    groups: frozenset[int]
    own_group: int | None = None
    unmapped: int | None = None

    @classmethod
    def current(cls) -> Identity:
        """That of this process."""
        uid = os.geteuid()
        return cls(uid, frozenset((os.getegid(), *os.getgroups())), _own_group(uid), _unmapped())


def _own_group(uid: int) -> int | None:
    try:
        user = pwd.getpwuid(uid)
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return None
    return group.gr_gid if group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name} else None


def _unmapped() -> int | None:
    """``user_namespaces(7)``: owners without a mapping are shown as this user."""
    try:
        inside, outside, count = (int(word) for word in Path("/proc/self/uid_map").read_text().split()[:3])
        if (inside, outside) == (0, 0) and count >= 1 << 31:
            return None
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Complaint:
    """The reason why a directory or file is not used: what was expected and found, and what to do."""

    expected: str
    found: str
    todo: str


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for what is accepted below a directory, and for how files are made there.

    Attributes:
        permissions: as ``Config.permissions``.
        node: on a node's own storage: nobody else has any business there. Otherwise the members of a group that the
            user is in may have.
        place: the directory itself may be one that users share (with a sticky bit), as ``/tmp``; what is made in it may
            not be used by others.
        reading: for commands that read: whose it is does not matter, only that no link leads out of it.
    """

    permissions: str = "private"
    node: bool = False
    place: bool = False
    reading: bool = False

    @property
    def is_private(self) -> bool:
        """True if only the owner may use what is made."""
        return self.node and self.permissions == "private"

    @property
    def directory_mode(self) -> int:
        """For ``mkdir``; the umask takes from it."""
        return _PRIVATE_DIRECTORY if self.is_private else _DIRECTORY

    @property
    def file_mode(self) -> int:
        """For ``open``; the umask takes from it."""
        return _PRIVATE_FILE if self.is_private else _FILE

    def wanted_mode(self, mode: int) -> int:
        """The permission bits that a file or directory just made, with ``mode``, is to have."""
        bits = stat.S_IMODE(mode)
        if self.permissions != "group":
            return bits
        return bits | (_GROUP_DIRECTORY if stat.S_ISDIR(mode) else _GROUP_FILE)

    @property
    def _trusts_all(self) -> bool:
        return self.reading or self.permissions == "unchecked"

    def _accepts_group(self, status: Status, who: Identity) -> bool:
        """True if the group may write without harm."""
        if status.st_gid in (_ROOT, who.own_group):
            return True
        return (not self.node or self.permissions == "group") and status.st_gid in who.groups

    def _accepts_owner(self, status: Status, who: Identity, *others: int | None) -> bool:
        if status.st_uid in (who.uid, *others):
            return True
        return self.permissions == "group" and status.st_gid in who.groups

    def above(self, status: Status, who: Identity) -> Complaint | None:
        """The reason not to go through a directory on the way to the one that is used, or None."""
        if self._trusts_all or (status.st_mode & stat.S_ISVTX and not self.node):
            return None
        if self.node and not self._accepts_owner(status, who, _ROOT, who.unmapped):
            return _owned(status, "another user could replace what is below it", self.node)
        if status.st_mode & stat.S_ISVTX:
            return None
        if status.st_mode & stat.S_IWOTH:
            return _written(status, self.node, sticky="give it the sticky bit (chmod +t), ")
        if self.node and status.st_mode & stat.S_IWGRP and not self._accepts_group(status, who):
            return _written(status, self.node, sticky="give it the sticky bit (chmod +t), ")
        return None

    def link(self, status: Status, directory: Status, who: Identity) -> Complaint | None:
        """The reason not to follow a symbolic link on the way to the directory that is used, as
        ``fs.protected_symlinks``, or None.
        """
        if self._trusts_all or self._accepts_owner(status, who, _ROOT, who.unmapped, directory.st_uid):
            return None
        return _owned(status, "a symbolic link of another user leads there", self.node)

    def root(self, status: Status, who: Identity) -> Complaint | None:
        """The reason not to use a directory, or None."""
        if self._trusts_all:
            return None
        if self.place:
            return self.above(status, who)
        return self._check(status, who, () if self.node else (_ROOT,))

    def inside(self, status: Status, who: Identity) -> Complaint | None:
        """The reason not to use a directory or file below the one that is used, or None: others made it or can change
        it.
        """
        if self._trusts_all:
            return None
        return self._check(status, who, (_ROOT,))

    def over(self, status: Status, who: Identity) -> Complaint | None:
        """The reason not to write over a file, or None: as for reading it, and it must have this name only."""
        refusal = self.inside(status, who)
        if refusal is not None:
            return refusal
        owned = self._trusts_all or self._accepts_owner(status, who)
        if owned and status.st_nlink == 1:
            return None
        found = f"owned by {owner(status)}" if not owned else f"{status.st_nlink} names"
        return Complaint(
            "a file of this user with one name", found, "remove the file, or find out who has put it there"
        )

    def _check(self, status: Status, who: Identity, others: tuple[int, ...]) -> Complaint | None:
        if not self._accepts_owner(status, who, *others):
            return _owned(status, "its owner decides what is in it", self.node)
        if status.st_mode & stat.S_IWOTH:
            return _written(status, self.node)
        if status.st_mode & stat.S_IWGRP and not self._accepts_group(status, who):
            return _written(status, self.node)
        return None


def planted(status: Status, who: Identity) -> Complaint | None:
    """The reason not to obey a file that was found and not named, asked of it and of its directory, or None: others
    may have written it.
    """
    complaint = Rules(node=True).inside(status, who)
    if complaint is None:
        return None
    return Complaint(
        f"a file, and a directory, of this user (uid {who.uid}) or root that nobody else may write to",
        complaint.found,
        "if the file is yours, make it and its directory your own (chown, chmod go-w), or say the same in DEEPPART_* "
        "variables and remove it; otherwise remove it, or work in a directory of your own",
    )


def node_rules(permissions: str) -> Rules:
    """For what is made on a node's own storage."""
    return Rules(permissions, node=True)


def node_place(permissions: str) -> Rules:
    """For ``local_dir`` itself, which users may share."""
    return Rules(permissions, node=True, place=True)


def persistent_rules(permissions: str) -> Rules:
    """For ``persistent_dir``."""
    return Rules(permissions)


#: For commands that read.
READING = Rules(reading=True)


def owner(status: Status) -> str:
    """A file's owner, for messages."""
    try:
        return f"{pwd.getpwuid(status.st_uid).pw_name} (uid {status.st_uid})"
    except KeyError:
        return f"uid {status.st_uid}"


def _owned(status: Status, reason: str, node: bool) -> Complaint:
    what = "local_dir" if node else "persistent_dir"
    return Complaint(
        f"owned by this user (uid {os.geteuid()}) or root: {reason}",
        f"owned by {owner(status)}, mode {stat.S_IMODE(status.st_mode):04o}",
        f"give `{what}` a directory of your own ($USER may be part of it); if its group is yours and you trust it, "
        'permissions = "group"; if the file system shows wrong owners (FUSE, NFS root squash, a user namespace), '
        'permissions = "unchecked"',
    )


def _written(status: Status, node: bool, sticky: str = "") -> Complaint:
    what, trust = "local_dir" if node else "persistent_dir", ""
    if status.st_mode & stat.S_IWOTH:
        who, undo = "everyone", "chmod o-w"
    elif status.st_gid < 0:
        who, undo = "somebody in its access control list", "setfacl -b"
    else:
        who, undo = f"group {_group(status)}", "chmod g-w"
        trust = ', or trust the group: permissions = "group"'
    return Complaint(
        "nobody else to have write permission",
        f"{who} may write to it, mode {stat.S_IMODE(status.st_mode):04o}, owned by {owner(status)}",
        f"take the permission away ({undo}), {sticky}or give `{what}` another directory{trust}. "
        'permissions = "unchecked" uses it all the same',
    )


def _group(status: Status) -> str:
    try:
        return f"{grp.getgrgid(status.st_gid).gr_name} (gid {status.st_gid})"
    except KeyError:
        return f"gid {status.st_gid}"
