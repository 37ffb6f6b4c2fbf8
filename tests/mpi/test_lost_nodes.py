"""Nodes are lost; what partner and parity levels hold brings every byte back, on any number of ranks."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest

import deeppart
import deeppart.repair.heal
from deeppart.errors import CheckpointError, RestoreError
from tests.mpi.lost_nodes import PARITY, PARTNER, exchange, lose, one_after_another, restore, save, state
from tests.mpi.on_nodes import config
from tests.sampling import sampled

pytestmark = pytest.mark.mpi(min_size=4)


@pytest.mark.timeout(110)
@pytest.mark.parametrize("level", ["partner", "parity"])
def test_any_nodes_that_leave_one_of_each_pair_or_that_parity_tolerates(
    run_on: Any, shared_path: Path, level: str
) -> None:
    losses, told = [(0,), (1, 3), (0, 2), (2,), (3,)], "partner"
    if level == "parity":
        losses = sampled([*itertools.combinations(range(4), 2), (0,), (3,)], 2, kind=len)
        told = "rebuilt from parity"
    settings: dict[str, Any] = PARITY if level == "parity" else PARTNER
    for rank_results in run_on(4, one_after_another, shared_path, settings, losses):
        for nodes, (step, good, explanation) in rank_results:
            assert step == 2 and good, nodes
            assert f"{len(nodes)} of 4 parts {told}" in explanation[0]
            assert "rebuilding redundancy in the background" in explanation[1]


def on_fewer(comm: Any, directory: Path, name: str) -> list[Any]:
    """Two nodes are lost, and the job goes on with three ranks, then two, then one."""
    choices: dict[str, dict[str, Any]] = {"partner": PARTNER, "parity": PARITY}
    settings = choices[name]
    save(comm, directory, settings)
    lose(comm, directory, 1, 3)
    results = []
    for ranks in (3, 2, 1):
        fewer = comm.Split(0 if comm.rank < ranks else 1, comm.rank)
        if comm.rank < ranks:
            # The remaining nodes, under the names that the smaller job gives its own
            renamed = directory / "local" / f"node{ranks - 1}"
            last = directory / "local" / "node2"
            if comm.rank == 0 and not renamed.exists() and ranks < 3:
                last.rename(renamed)
            fewer.Barrier()
            results.append(restore(fewer, directory, {"every": {"persistent": 0}}))
        fewer.Free()
        comm.Barrier()
    return results


@pytest.mark.timeout(110)
@pytest.mark.parametrize("name", ["partner", "parity"])
def test_on_fewer_ranks(run_on: Any, shared_path: Path, name: str) -> None:
    results = run_on(4, on_fewer, shared_path, name)
    assert [len(each) for each in results] == [3, 2, 1, 0]
    for each in results:
        for step, good, _ in each:
            assert step == 2 and good
    assert ("rebuilt from parity" if name == "parity" else "partner") in results[0][0][2][0]


def three_ranks_on_a_node(comm: Any, directory: Path) -> tuple[dict[str, int], list[Any]]:
    """Either node is lost, one after the other."""
    settings = {"every": {"persistent": 0, "parity": 1}, "node_size": 3, "parity_group": 2}  # ranks 0-2 and rank 3
    written, found = save(comm, directory, settings), []
    for node in (0, 1):
        lose(comm, directory, node)
        found.append(restore(comm, directory, settings)[:2])
    return written, found


def test_uneven_ranks_per_node(run_on: Any, shared_path: Path) -> None:
    results = run_on(4, three_ranks_on_a_node, shared_path)
    assert all(found == [(2, True)] * 2 for _, found in results)
    parity = [written["parity"] for written, _ in results]
    assert sum(parity[:3]) == parity[3], "both nodes carry the same"
    partner = [written["partner"] for written, _ in results]
    assert partner[1] == partner[2] == 0 < partner[0] < partner[3], "one part goes one way, three the other"


def removed_while_running(
    comm: Any, directory: Path, settings: dict[str, Any], nodes: tuple[int, ...]
) -> tuple[int | None, bool, tuple[str, ...]]:
    """Nodes lose their directories between two checkpoints, and another one does at the end.

    A copy may refer to a file that has gone with its directory: that one fails.
    """
    levels = [level for level in ("local", "partner", "parity") if settings["every"].get(level, level != "parity")]
    with warnings.catch_warnings(), deeppart.Checkpointer(config(directory, **settings), comm) as ck:
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        for step in (1, 2, 3, 4):
            pending = ck.checkpoint({**state(step, comm.rank), "shared": state(4, 0)["shared"]}, step)
            for level in levels:
                with contextlib.suppress(*[CheckpointError] if (step, level) == (3, "partner") else []):
                    pending.wait(level, timeout=200)
            if step == 2:
                lose(comm, directory, *nodes)
    others = set(range(4)) - set(nodes)
    lose(comm, directory, min(others, default=0))
    return restore(comm, directory, settings)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("nodes", [(1,), (0, 1, 2, 3)])
@pytest.mark.parametrize("settings", [PARTNER, PARITY], ids=["partner", "parity"])
def test_a_directory_that_is_removed_is_made_again(
    run_on: Any, shared_path: Path, settings: dict[str, Any], nodes: tuple[int, ...]
) -> None:
    """And the levels on nodes are complete again: at the latest with the second checkpoint."""
    for step, good, explanation in run_on(4, removed_while_running, shared_path, settings, nodes):
        assert step == 4 and good and "3 of 4 parts local" in explanation[0], explanation


def too_many(comm: Any, directory: Path) -> list[str]:
    texts = []
    for settings, nodes in ((PARITY, (0, 1, 2)), (PARTNER, (1, 2))):
        place = directory / str(len(nodes))
        save(comm, place, settings, (5, 7))
        lose(comm, place, *nodes)
        for step in (None, 7):
            with deeppart.Checkpointer(config(place, **settings), comm) as ck, pytest.raises(RestoreError) as caught:
                ck.restore(state(0, comm.rank), step=step)
            texts.append(str(caught.value))
    return texts


def test_too_many_nodes_are_an_error_that_lists_what_is_lacking(run_on: Any, shared_path: Path) -> None:
    for texts in run_on(4, too_many, shared_path):
        for text in texts[:2]:
            assert "parts 0, 1, 2 of 4: found on no node" in text
            assert "of the 4 nodes of the set, 3 lack their part or parity; 2 may be lost" in text
            assert "not committed to the persistent level" in text
        for text in texts[2:]:
            assert "part 1 of 4: found on no node; not committed to the persistent level" in text


def under_wrong_names(comm: Any, directory: Path) -> tuple[Any, str]:
    """On a node of two ranks, their parts have each other's names: with copies, and where there are no others."""
    settings = {**PARTNER, "node_size": 2}
    save(comm, directory, settings, (1,))
    if comm.rank == 0:
        exchange(*(directory / "local" / "node0").glob("*/step-*/*.dpp"))
    comm.Barrier()
    with_copies = restore(comm, directory, settings)
    comm.Barrier()
    if comm.rank == 0:
        for copy in (directory / "local").glob("*/*/partner/step-*/*.dpp"):
            copy.unlink()
        exchange(*(directory / "local" / "node0").glob("*/step-*/*.dpp"))
    comm.Barrier()
    with deeppart.Checkpointer(config(directory, **settings), comm) as ck, pytest.raises(RestoreError) as caught:
        ck.restore(state(0, comm.rank))  # training does not start over
    return with_copies, str(caught.value)


def test_a_file_under_the_name_of_another_one_is_not_used_and_named(run_on: Any, shared_path: Path) -> None:
    told = "another file is in this place: part-00000-of-00004.dpp of step 1, which belongs at "
    for (step, good, explanation), refusal in run_on(4, under_wrong_names, shared_path):
        assert step == 1 and good
        assert any(told in line for line in explanation), explanation
        assert told in refusal
