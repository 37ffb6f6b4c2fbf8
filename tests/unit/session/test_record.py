"""One run of a job: which rank does what in its directories, and what is given back at the end."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deeppart import access
from deeppart.comm import SingleComm
from deeppart.errors import DirectoryInUseError
from deeppart.model import Attempt
from deeppart.session.topology import Topology

pytestmark = pytest.mark.usefixtures("working_directory")


def as_rank(rank: int) -> SingleComm:
    """This rank of several, for what only compares ranks."""
    comm = SingleComm()
    comm.rank = rank
    return comm


def leading(session: Any, topology: Topology) -> list[int]:
    """Which ranks lead their directory."""
    ranks = range(len(topology.node_of))
    return [rank for rank in ranks if replace(session, topology=topology, comm=as_rank(rank)).leads_directory]


def test_one_rank_of_each_directory_leads_it(opened: Any) -> None:
    session = opened()
    assert session.leads_directory
    one_each = Topology(("a", "a", "b", "b"), (0, 0, 1, 1), ("/l",) * 4, ("", ""))
    assert leading(session, one_each) == [0, 2]
    own = Topology(("a", "a", "b", "b"), (0, 0, 1, 1), ("/0", "/1", "/2", "/3"), ("", ""))
    assert leading(session, own) == [0, 1, 2, 3]
    assert leading(opened(persistent_dir=str(session.persistent.root) + "-2", local_dir=None), one_each) == []


def test_closing_gives_the_directory_and_descriptors_back(opened: Any, tmp_path: Path) -> None:
    opened().close()
    before = len(os.listdir("/proc/self/fd"))
    session = opened()
    assert len(os.listdir("/proc/self/fd")) > before
    with pytest.raises(DirectoryInUseError):
        opened()
    session.close()
    session.close()
    assert len(os.listdir("/proc/self/fd")) == before
    again = opened()
    assert again.lineage == session.lineage and again.session != session.session


@pytest.mark.parametrize("rank", [0, 1])
def test_spares_are_given_back_by_who_leads(opened: Any, tmp_path: Path, rank: int) -> None:
    session = opened()
    level = session.node_levels["local"]
    attempt = Attempt(session.lineage, session.session, 0, 1, 1)
    file = level.open_part(attempt, 0)
    file.write(os.urandom(1 << 20))
    file.commit()
    level.retire({attempt.key})
    (spare,) = [path for path in (tmp_path / "local").rglob("*") if path.is_file() and path.stat().st_size == 1 << 20]
    two = Topology(("a", "a"), (0, 0), ("/l", "/l"), ("",))
    replace(session, comm=as_rank(rank), topology=two).drop_spares()
    assert spare.exists() == (rank > 0)


def test_what_holds_in_the_directories_is_as_configured(opened: Any, tmp_path: Path) -> None:
    session = opened(permissions="group")
    for level, rules in (
        (session.persistent, access.Rules("group")),
        (session.node_levels["local"], access.Rules("group", node=True)),
    ):
        root = access.root_of(level.root)
        assert root is not None and root.rules == rules
        assert access.root_of(session.roots.at(str(level.root / "step"))) is root
