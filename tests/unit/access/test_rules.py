"""Whose directories and files are used, as a function of owner, group, mode and access control list alone."""

from __future__ import annotations

import errno
import os
import stat
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from deeppart.access import READING, ForeignAccessError, Rules, rules
from deeppart.access.rules import Identity, Status, current_identity
from tests.users import STRANGER, needs_root, told_by
from tests.users import TEAM as A_TEAM

ME, OTHER, TEAM, STRANGERS, OWN, NOBODY = 1000, 1001, 500, 501, 1000, 65534
WHO = Identity(ME, frozenset({OWN, TEAM}), OWN)
CONTAINED = Identity(ME, frozenset({OWN, TEAM}), None, NOBODY)
NODE, PERSISTENT = Rules(node=True), Rules()
NODE_TEAM, PERSISTENT_TEAM = Rules("group", node=True), Rules("group")
UNCHECKED = (Rules("unchecked"), Rules("unchecked", node=True), READING)


@pytest.fixture(autouse=True)
def me(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "current_identity", lambda: WHO)


def directory(mode: int, uid: int = ME, gid: int = OWN) -> Status:
    return Status(stat.S_IFDIR | mode, uid, gid)


def accepts(rule: Rules, status: Status, *, above: bool = False, over: bool = False) -> bool:
    try:
        rule.check_over("path", status) if over else rule.check("path", status, above=above)
    except ForeignAccessError:
        return False
    return True


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        # on a node, persistent, on a node and persistent with permissions = "group": below the root
        (directory(0o700), "yes yes yes yes"),
        (directory(0o775), "yes yes yes yes"),  # the group is this user's alone
        (directory(0o2770, gid=TEAM), "no yes yes yes"),
        (directory(0o775, gid=STRANGERS), "no no no no"),
        (directory(0o777), "no no no no"),
        (directory(0o1777), "no no no no"),  # it keeps others from removing what is there, not from making what is not
        (directory(0o1777, uid=0, gid=0), "no no no no"),
        (directory(0o755, uid=0, gid=0), "yes yes yes yes"),
        (directory(0o775, uid=0, gid=0), "yes yes yes yes"),
        (directory(0o755, uid=OTHER, gid=OTHER), "no no no no"),
        (directory(0o2770, uid=OTHER, gid=TEAM), "no no yes yes"),
        (directory(0o755, uid=NOBODY, gid=NOBODY), "no no no no"),
        (Status(stat.S_IFREG | 0o664, OTHER, TEAM), "no no yes yes"),
        (Status(stat.S_IFREG | 0o666, ME, OWN), "no no no no"),
        (Status(stat.S_IFREG | 0o644, ME, OWN, 2), "yes yes yes yes"),  # reading it is no harm
    ],
)
def test_what_is_used(status: Status, expected: str) -> None:
    found = [accepts(rule, status) for rule in (NODE, PERSISTENT, NODE_TEAM, PERSISTENT_TEAM)]
    assert found == [word == "yes" for word in expected.split()]
    assert all(accepts(rule, status) for rule in UNCHECKED)


@pytest.mark.parametrize(
    ("status", "node", "persistent"),
    [
        (directory(0o755, uid=0, gid=0), True, True),
        (directory(0o777, uid=0, gid=0), False, False),
        (directory(0o1777, uid=0, gid=0), True, True),
        (directory(0o1777, uid=OTHER, gid=OTHER), False, False),
        (directory(0o755, uid=OTHER, gid=OTHER), False, False),
        (directory(0o2770, uid=OTHER, gid=TEAM), False, True),  # a project's directory, of who leads it
        (directory(0o2775, uid=0, gid=TEAM), False, True),
        (directory(0o2775, uid=0, gid=STRANGERS), False, False),
    ],
)
def test_directories_on_the_way(status: Status, node: bool, persistent: bool) -> None:
    assert accepts(NODE, status, above=True) == node
    assert accepts(PERSISTENT, status, above=True) == persistent
    assert all(accepts(rule, status, above=True) for rule in UNCHECKED)


def test_in_a_user_namespace_root_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What belongs to nobody known may be root's, and so a way, but nothing to write into."""
    system = directory(0o755, uid=NOBODY, gid=NOBODY)
    assert not accepts(NODE, system, above=True)
    monkeypatch.setattr(rules, "current_identity", lambda: CONTAINED)
    assert accepts(NODE, system, above=True) and not accepts(NODE, system) and not accepts(PERSISTENT, system)


def test_files_that_are_written_over() -> None:
    file = stat.S_IFREG | 0o644
    for rule in (NODE, PERSISTENT):
        assert accepts(rule, Status(file, ME, OWN), over=True)
        for status in (Status(file, ME, OWN, 2), Status(file, 0, 0), Status(file, OTHER, OTHER)):
            assert not accepts(rule, status, over=True)
    assert accepts(PERSISTENT_TEAM, Status(file, OTHER, TEAM), over=True)
    for rule in (PERSISTENT_TEAM, *UNCHECKED):
        assert not accepts(rule, Status(file, OTHER, TEAM, 2), over=True)


def test_a_refusal_says_who_what_and_the_way_out() -> None:
    with pytest.raises(ForeignAccessError) as caught:
        NODE.check("/a", directory(0o2775, uid=OTHER, gid=TEAM))
    refusal = caught.value
    assert refusal.filename == "/a" and "uid 1001" in refusal.found and "2775" in refusal.found
    assert "`local_dir`" in refusal.todo
    assert 'permissions = "group"' in refusal.todo and 'permissions = "unchecked"' in refusal.todo
    with pytest.raises(ForeignAccessError) as caught:
        PERSISTENT.check("/a", directory(0o777))
    refusal = caught.value
    assert "everyone" in refusal.found and "chmod o-w" in refusal.todo and "`persistent_dir`" in refusal.todo
    assert 'permissions = "group"' not in refusal.todo, "that would not help"


@needs_root
def test_another_effective_user_is_noticed_and_so_is_the_return() -> None:
    """As root that becomes a user for a while, in one process."""
    returned, text = told_by(
        STRANGER, lambda: (current_identity().uid, A_TEAM in current_identity().groups), groups=(A_TEAM,)
    )
    assert returned and text == str((STRANGER, True)), text
    before = current_identity()
    os.seteuid(STRANGER)
    try:
        assert current_identity().uid == STRANGER
    finally:
        os.seteuid(0)
    assert current_identity() == before and before.uid == 0


# --- access control lists, on a file system that has them -------------------------------------------------------------

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


@pytest.mark.parametrize(
    ("entries", "mask", "expected"),
    [
        # on a node, persistent, on a node with permissions = "group"
        ((), 7, "yes yes yes"),
        (((_USER, 7, OTHER),), 7, "no no no"),
        (((_USER, 7, OTHER),), 5, "yes yes yes"),  # the mask takes it away
        (((_USER, 5, OTHER), (_USER, 7, -2), (_GROUP, 4, STRANGERS)), 7, "yes yes yes"),  # -2: this user
        (((_GROUP, 7, TEAM),), 7, "no yes yes"),
        (((_GROUP, 7, TEAM), (_GROUP, 7, STRANGERS)), 7, "no no no"),
    ],
)
def test_who_may_write_by_a_list(
    memory: Path, monkeypatch: pytest.MonkeyPatch, entries: tuple[tuple[int, int, int], ...], mask: int, expected: str
) -> None:
    """The permissions do not show it: those of the group are the mask of the list."""
    mine = replace(WHO, uid=os.getuid(), groups=frozenset({os.getgid(), TEAM}), own_group=os.getgid())
    monkeypatch.setattr(rules, "current_identity", lambda: mine)
    give(memory, *((tag, bits, os.getuid() if name == -2 else name) for tag, bits, name in entries), mask=mask)
    descriptor = os.open(memory, os.O_PATH)
    try:
        status = Status.of(descriptor)
    finally:
        os.close(descriptor)
    found = [accepts(rule, status) for rule in (NODE, PERSISTENT, NODE_TEAM)]
    assert found == [word == "yes" for word in expected.split()]
    assert accepts(UNCHECKED[0], status)
