"""Who may write by an access control list; real lists, on a file system that has them."""

from __future__ import annotations

import errno
import os
import stat
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from deeppart.access.path_walk import status_of
from deeppart.access.rules import Identity, Rules

OTHER, TEAM, STRANGERS = 54_321, 54_322, 54_323
WHO = Identity(os.getuid(), frozenset({os.getgid(), TEAM}), own_group=os.getgid())
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20


def give(path: Path, *entries: tuple[int, int, int], mask: int = 7) -> None:
    """As ``setfacl -m``: (tag, permissions, id)."""
    every = sorted([(_USER_OBJ, 7, -1), (_GROUP_OBJ, 5, -1), (_MASK, mask, -1), (_OTHER, 0, -1), *entries])
    packed = b"".join(struct.pack("<HHI", tag, bits, name & 0xFFFFFFFF) for tag, bits, name in every)
    try:
        os.setxattr(path, "system.posix_acl_access", struct.pack("<I", 2) + packed)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            pytest.skip("no access control lists here")
        raise


def is_used(path: Path, *, node: bool = False, permissions: str = "private", who: Identity = WHO) -> bool:
    descriptor = os.open(path, os.O_PATH)
    try:
        return Rules(permissions, node=node).inside(status_of(descriptor, who), who) is None
    finally:
        os.close(descriptor)


def test_permissions_of_ones_own_group_do_no_harm_without_a_list(memory: Path) -> None:
    memory.chmod(0o770)
    assert is_used(memory) and is_used(memory, node=True)


@pytest.mark.parametrize("node", [False, True])
def test_a_list_that_lets_another_user_write(memory: Path, node: bool) -> None:
    give(memory, (_USER, 7, OTHER))
    assert stat.S_IMODE(memory.stat().st_mode) == 0o770 and memory.stat().st_gid == os.getgid(), (
        "so they do not show it"
    )
    assert not is_used(memory, node=node) and not is_used(memory, node=node, permissions="group")
    assert is_used(memory, node=node, permissions="unchecked")


def test_lists_that_let_nobody_else_write(memory: Path) -> None:
    give(memory, (_USER, 5, OTHER), (_USER, 7, os.getuid()), (_GROUP, 4, STRANGERS))
    assert is_used(memory) and is_used(memory, node=True)
    give(memory, (_USER, 7, OTHER), mask=5)
    assert is_used(memory) and is_used(memory, node=True), "the mask takes it away"


def test_lists_that_let_a_group_write(memory: Path) -> None:
    """One's own team may in a persistent directory, as by the permissions, and on a node where it is trusted."""
    give(memory, (_GROUP, 7, TEAM))
    assert is_used(memory) and not is_used(memory, node=True) and is_used(memory, node=True, permissions="group")
    assert not is_used(memory, who=replace(WHO, groups=frozenset({os.getgid()})))
    give(memory, (_GROUP, 7, TEAM), (_GROUP, 7, STRANGERS))
    assert not is_used(memory) and not is_used(memory, node=True, permissions="group")
