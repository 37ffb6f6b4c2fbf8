"""Nodes find out whether their local directories are one and the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.comm import connect
from deeppart.session.open import open_roots, shared_directories
from deeppart.session.topology import compare_settings

pytestmark = pytest.mark.mpi(min_size=4)


def looked_for(comm: Any, directory: Path, local: str, node_size: int) -> tuple[Any, list[str]]:
    """Pairs of nodes that share a directory, or the error; and what is left in the directories."""
    path = str(directory / local)
    config = deeppart.Config(persistent_dir=str(directory / "ckpt"), local_dir=path, node_size=node_size, timeout=60.0)
    main = connect(comm, config.timeout)
    topology, _ = compare_settings(main, config, None, "starting")
    _, root = open_roots(config, topology.names[main.rank], main.rank)
    try:
        found: Any = shared_directories(main, config, topology, "b" * 32, "starting", root)
    except deeppart.DeeppartError as error:
        found = (type(error).__name__, str(error))
    finally:
        main.release()
    comm.Barrier()
    left = [str(each.relative_to(directory)) for each in directory.rglob(".node-*")]
    comm.Barrier()
    return found, left


@pytest.mark.parametrize(
    ("local", "node_size", "pairs"),
    [
        ("{node}", 1, ()),
        ("{node}", 2, ()),
        ("{rank}", 2, ()),
        ("one", 1, ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))),
        ("one", 2, ((0, 1),)),
        ("one", 4, ()),  # one node: nobody to share with
    ],
)
def test_nodes_with_one_directory(
    run_on: Any, shared_path: Path, local: str, node_size: int, pairs: tuple[tuple[int, int], ...]
) -> None:
    assert run_on(4, looked_for, shared_path, local, node_size) == [(pairs, [])] * 4


def linked(comm: Any, directory: Path) -> tuple[Any, list[str]]:
    """By another name: node 2's directory is a link to node 1's."""
    if comm.rank == 0:
        os.mkdir(directory / "node1")
        (directory / "node2").symlink_to("node1")
        # Marks of another session are none of this one.
        (directory / "node1" / f".other-{'c' * 32}-3").touch()
    comm.Barrier()
    return looked_for(comm, directory, "{node}", 1)


def test_by_another_name_it_is_the_same(run_on: Any, shared_path: Path) -> None:
    assert run_on(4, linked, shared_path) == [(((1, 2),), [])] * 4
