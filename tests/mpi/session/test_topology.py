"""Ranks find out who is on which node, and whether all were given the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.comm import connect
from deeppart.errors import ConfigError
from deeppart.session import topology as module
from deeppart.session.topology import Topology, compare_settings

pytestmark = pytest.mark.mpi(min_size=4)


def compared(comm: Any, settings: dict[str, Any]) -> Topology | str:
    config = deeppart.Config(timeout=60.0, **settings)
    main = connect(comm, config.timeout)
    try:
        return compare_settings(main, config, None, "starting")[0]
    except ConfigError as error:
        return str(error)
    finally:
        main.release()


def with_switches(comm: Any) -> Topology | str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_TOPOLOGY_ADDR", f"root.s{comm.rank // 2}.n{comm.rank}")
        return compared(comm, {"node_size": 1})


def test_switches_are_known_by_node(run_on: Any) -> None:
    for topology in run_on(4, with_switches):
        assert topology.domains == ("root.s0", "root.s0", "root.s1", "root.s1")
        assert topology.node_names == ("node0", "node1", "node2", "node3")


def one_has_a_local_level(comm: Any, directory: Path) -> Topology | str:
    return compared(comm, {"local_dir": str(directory) if comm.rank == 1 else None, "every": "auto"})


def test_a_local_level_on_some_ranks_alone_is_refused(run_on: Any, shared_path: Path) -> None:
    """Where ``every`` is "auto", nothing else tells that they would take part in different rounds."""
    for text in run_on(3, one_has_a_local_level, shared_path):
        assert "different values for local_dir" in text and "None" in text and "one of its own on rank 1" in text


def one_is_of_another_version(comm: Any) -> Topology | str:
    """Whose message has other items, too."""
    with pytest.MonkeyPatch.context() as patch:
        if comm.rank == 1:
            patch.setattr(module, "LIBRARY", "deeppart 9.9.9")
            patch.setattr(module, "failure_domain", lambda: {"of another": "kind"})
        return compared(comm, {})


def test_ranks_of_different_versions_are_told_so(run_on: Any) -> None:
    for rank, text in enumerate(run_on(3, one_is_of_another_version)):
        assert "different versions of deeppart" in text and "deeppart 9.9.9' on rank 1" in text
        assert f"where: rank {rank}" in text
