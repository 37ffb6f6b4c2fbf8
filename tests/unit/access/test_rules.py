"""Whose directories and files are used, as a function of owner, group and mode alone."""

from __future__ import annotations

import stat
from dataclasses import dataclass

import pytest

from deeppart.access import READING, Identity, Rules, node_place, node_rules, persistent_rules

ME, OTHER, TEAM, STRANGERS, OWN, NOBODY = 1000, 1001, 500, 501, 1000, 65534
WHO = Identity(ME, frozenset({OWN, TEAM}), OWN)
CONTAINED = Identity(ME, frozenset({OWN, TEAM}), None, NOBODY)
STICKY = stat.S_ISVTX


@dataclass(frozen=True)
class Status:
    st_mode: int
    st_uid: int = ME
    st_gid: int = OWN
    st_nlink: int = 1


def directory(mode: int, uid: int = ME, gid: int = OWN) -> Status:
    return Status(stat.S_IFDIR | mode, uid, gid)


def accepts(rules: Rules, role: str, status: Status, who: Identity = WHO) -> bool:
    return getattr(rules, role)(status, who) is None


NODE, PLACE, PERSISTENT = node_rules("private"), node_place("private"), persistent_rules("private")
NODE_TEAM, PERSISTENT_TEAM = node_rules("group"), persistent_rules("group")


@pytest.mark.parametrize(
    ("status", "node", "place", "persistent", "node_team", "persistent_team"),
    [
        # owner, mode                                   one's own lineage directory, local_dir, persistent_dir
        (directory(0o700), True, True, True, True, True),
        (directory(0o755), True, True, True, True, True),
        (directory(0o775), True, True, True, True, True),  # the group is this user's alone
        (directory(0o775, gid=TEAM), False, False, True, True, True),
        (directory(0o2770, gid=TEAM), False, False, True, True, True),
        (directory(0o775, gid=STRANGERS), False, False, False, False, False),
        (directory(0o777), False, False, False, False, False),
        (directory(STICKY | 0o777), False, True, False, False, False),
        (directory(0o755, uid=0, gid=0), False, True, True, False, True),
        (directory(0o775, uid=0, gid=0), False, True, True, False, True),
        (directory(0o2775, uid=0, gid=TEAM), False, False, True, True, True),
        (directory(0o777, uid=0, gid=0), False, False, False, False, False),
        (directory(STICKY | 0o777, uid=0, gid=0), False, True, False, False, False),
        (directory(0o755, uid=OTHER, gid=OTHER), False, False, False, False, False),
        (directory(0o2775, uid=OTHER, gid=TEAM), False, False, False, True, True),
        (directory(0o2777, uid=OTHER, gid=TEAM), False, False, False, False, False),
        (directory(STICKY | 0o777, uid=OTHER, gid=OTHER), False, False, False, False, False),
    ],
)
def test_directories_that_are_used(
    status: Status, node: bool, place: bool, persistent: bool, node_team: bool, persistent_team: bool
) -> None:
    assert accepts(NODE, "root", status) == node
    assert accepts(PLACE, "root", status) == place
    assert accepts(PERSISTENT, "root", status) == persistent
    assert accepts(NODE_TEAM, "root", status) == node_team
    assert accepts(PERSISTENT_TEAM, "root", status) == persistent_team
    for permissions in ("unchecked",):
        assert accepts(node_rules(permissions), "root", status) and accepts(
            persistent_rules(permissions), "root", status
        )
    assert accepts(READING, "root", status)


@pytest.mark.parametrize(
    ("status", "node", "persistent"),
    [
        (directory(0o755, uid=0, gid=0), True, True),
        (directory(0o777, uid=0, gid=0), False, False),
        (directory(STICKY | 0o777, uid=0, gid=0), True, True),
        (directory(0o755, uid=OTHER), False, True),  # what he puts in its place is not this user's: refused there
        (directory(0o2775, uid=0, gid=TEAM), False, True),
        (directory(0o777, uid=OTHER), False, False),
    ],
)
def test_directories_on_the_way(status: Status, node: bool, persistent: bool) -> None:
    assert accepts(NODE, "above", status) == node
    assert accepts(PERSISTENT, "above", status) == persistent


def test_below_the_directory_a_sticky_bit_is_not_enough() -> None:
    """It keeps others from removing what is there, not from making what is not."""
    assert accepts(PERSISTENT, "inside", directory(0o755))
    assert accepts(PERSISTENT, "inside", directory(0o755, uid=0, gid=0))
    assert not accepts(PERSISTENT, "inside", directory(0o755, uid=OTHER))
    assert not accepts(PERSISTENT, "inside", directory(STICKY | 0o777))
    assert accepts(PERSISTENT, "inside", Status(stat.S_IFREG | 0o664, st_gid=TEAM))
    assert not accepts(PERSISTENT, "inside", Status(stat.S_IFREG | 0o666))
    assert not accepts(PERSISTENT, "inside", Status(stat.S_IFREG | 0o644, OTHER, TEAM))
    assert accepts(PERSISTENT_TEAM, "inside", Status(stat.S_IFREG | 0o664, OTHER, TEAM))


def test_files_that_are_written_over() -> None:
    for rules in (NODE, PERSISTENT):
        assert accepts(rules, "over", Status(stat.S_IFREG | 0o600))
        assert not accepts(rules, "over", Status(stat.S_IFREG | 0o600, st_nlink=2))
        assert not accepts(rules, "over", Status(stat.S_IFREG | 0o644, uid := 0)) and uid == 0
        assert not accepts(rules, "over", Status(stat.S_IFREG | 0o644, OTHER))
    assert accepts(PERSISTENT_TEAM, "over", Status(stat.S_IFREG | 0o664, OTHER, TEAM))
    assert not accepts(PERSISTENT_TEAM, "over", Status(stat.S_IFREG | 0o664, OTHER, TEAM, 2))
    assert not accepts(persistent_rules("unchecked"), "over", Status(stat.S_IFREG | 0o600, st_nlink=2))


def test_links_that_are_followed() -> None:
    shared = directory(STICKY | 0o777, uid=0, gid=0)
    link = stat.S_IFLNK | 0o777
    for rules in (NODE, PERSISTENT):
        assert accepts_link(rules, Status(link), shared) and accepts_link(rules, Status(link, 0, 0), shared)
        assert not accepts_link(rules, Status(link, OTHER, OTHER), shared)
    assert accepts_link(READING, Status(link, OTHER, OTHER), shared)


def accepts_link(rules: Rules, link: Status, where: Status) -> bool:
    return rules.link(link, where, WHO) is None


def test_in_a_user_namespace_root_has_no_name() -> None:
    """What belongs to nobody known may be root's, and so a way, but nothing to write into."""
    system = directory(0o755, uid=NOBODY, gid=NOBODY)
    assert accepts(NODE, "above", system, CONTAINED) and not accepts(NODE, "above", system, WHO)
    assert not accepts(NODE, "root", system, CONTAINED) and not accepts(PERSISTENT, "root", system, CONTAINED)


@pytest.mark.parametrize(
    ("rules", "directories", "files"),
    [
        (NODE, 0o700, 0o600),
        (node_rules("umask"), 0o775, 0o664),
        (PERSISTENT, 0o775, 0o664),
        (NODE_TEAM, 0o775, 0o664),
        (PERSISTENT_TEAM, 0o775, 0o664),
    ],
)
def test_modes(rules: Rules, directories: int, files: int) -> None:
    assert (rules.directory_mode, rules.file_mode) == (directories, files)
    made = rules.wanted_mode(stat.S_IFDIR | 0o700), rules.wanted_mode(stat.S_IFREG | 0o600)
    assert made == ((0o2770, 0o660) if rules.permissions == "group" else (0o700, 0o600))


def test_a_refusal_says_who_what_and_the_way_out() -> None:
    refusal = NODE.root(directory(0o2775, uid=OTHER, gid=TEAM), WHO)
    assert refusal is not None and "uid 1001" in refusal.found and "2775" in refusal.found
    assert 'permissions = "group"' in refusal.todo and 'permissions = "unchecked"' in refusal.todo
    refusal = PERSISTENT.root(directory(0o777), WHO)
    assert refusal is not None and "everyone" in refusal.found and "chmod o-w" in refusal.todo
    assert 'permissions = "group"' not in refusal.todo, "that would not help"
