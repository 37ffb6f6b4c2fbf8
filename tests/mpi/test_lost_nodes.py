"""Nodes are lost; what partner and parity levels hold brings every byte back, on any number of ranks.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
import deeppart.repair.heal
import deeppart.storage.straightening
from deeppart.comm.mpi import MpiComm
from deeppart.errors import CheckpointError, RestoreError, StorageError
from deeppart.nodes.exchange.memory import Arena
from deeppart.offline.inspect.planning import plan_together

pytestmark = pytest.mark.mpi(min_size=4)

PARTNER = {"every": {"persistent": 0}}
PARITY = {"every": {"persistent": 0, "partner": 0, "parity": 1}, "parity_group": 4, "parity_tolerate": 2}


def config(directory: Path, **settings: Any) -> deeppart.Config:
    local = str(directory / "local" / "{node}")
    settings = {"local_dir": local, "node_size": 1, "timeout": 200.0, **settings}
    return deeppart.Config(persistent_dir=str(directory / "ckpt"), **settings)


def state(step: int, rank: int, elements: int = 300_000) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    shared = {f"w{number}": torch.rand(elements // (number + 1), generator=generator) for number in range(3)}
    return {"shared": shared, "own": torch.full((50 + rank,), float(100 * step + rank)), "step": step}


def save(comm: Any, directory: Path, settings: dict[str, Any], steps: tuple[int, ...] = (1, 2)) -> dict[str, int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.PerRankNotice)
        with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
            for step in steps:
                pending = ck.checkpoint(state(step, comm.rank), step)
                for level, report in pending.report.levels.items():
                    if report.state != "off":
                        pending.wait(level, timeout=200)
    comm.Barrier()  # no rank looks at what another one is still removing
    return {level: report.nbytes for level, report in pending.report.levels.items() if report.state == "done"}


def restore(comm: Any, directory: Path, settings: dict[str, Any]) -> tuple[int | None, bool, tuple[str, ...]]:
    """(step, whether every byte is right, explanation); redundancy has been rebuilt when this returns."""
    live = state(0, comm.rank)
    saved_by = 4
    with deeppart.Checkpointer(config(directory, **settings), comm) as ck, warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.PerRankNotice)
        step = ck.restore(live, per_rank="strict" if comm.size == saved_by else "drop")
        explanation = ck.explanation
    if step is None:
        return None, False, explanation
    right = state(step, comm.rank)
    good = all(torch.equal(live["shared"][name], right["shared"][name]) for name in right["shared"])
    own = right["own"] if comm.size == saved_by else state(0, comm.rank)["own"]
    return step, good and torch.equal(live["own"], own), explanation


def lose(comm: Any, directory: Path, *nodes: int) -> None:
    comm.Barrier()
    if comm.rank == 0:
        for node in nodes:
            shutil.rmtree(directory / "local" / f"node{node}", ignore_errors=True)
    comm.Barrier()


def one_after_another(
    comm: Any, directory: Path, settings: dict[str, Any], losses: list[tuple[int, ...]]
) -> list[tuple[tuple[int, ...], Any]]:
    """Whichever nodes are lost, they are back when the next ones are."""
    save(comm, directory, settings)
    results = []
    for nodes in losses:
        lose(comm, directory, *nodes)
        results.append((nodes, restore(comm, directory, settings)))
    return results


@pytest.mark.timeout(110)
def test_any_nodes_that_parity_tolerates(run_on: Any, shared_path: Path) -> None:
    losses = [*itertools.combinations(range(4), 2), (0,), (3,)]
    for rank_results in run_on(4, one_after_another, shared_path, PARITY, losses):
        for nodes, (step, good, explanation) in rank_results:
            assert step == 2 and good, nodes
            assert f"{len(nodes)} of 4 parts rebuilt from parity" in explanation[0]
            assert "rebuilding redundancy in the background" in explanation[1]


@pytest.mark.timeout(110)
def test_any_nodes_that_leave_one_of_each_pair(run_on: Any, shared_path: Path) -> None:
    losses = [(0,), (1, 3), (0, 2), (2,), (3,)]
    for rank_results in run_on(4, one_after_another, shared_path, PARTNER, losses):
        for nodes, (step, good, explanation) in rank_results:
            assert step == 2 and good, nodes
            assert f"{len(nodes)} of 4 parts partner" in explanation[0]


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


def two_ranks_on_a_node(comm: Any, directory: Path) -> tuple[dict[str, int], Any]:
    settings = {"every": {"persistent": 0, "parity": 1}, "node_size": 3, "parity_group": 2}  # ranks 0-2 and rank 3
    written = save(comm, directory, settings)
    lose(comm, directory, 0)
    return written, restore(comm, directory, settings)


def test_uneven_ranks_per_node(run_on: Any, shared_path: Path) -> None:
    results = run_on(4, two_ranks_on_a_node, shared_path)
    assert all(outcome[:2] == (2, True) for _, outcome in results)
    parity = [written["parity"] for written, _ in results]
    assert sum(parity[:3]) == parity[3], "both nodes carry the same"
    partner = [written["partner"] for written, _ in results]
    assert partner[1] == partner[2] == 0 < partner[0] < partner[3], "one part goes one way, three the other"


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


def flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0xFF]))


def damaged_pieces(comm: Any, directory: Path) -> list[Any]:
    """Files with a bad block here and there: their good blocks still help."""
    save(comm, directory, PARITY, (1,))
    local = directory / "local"
    results = []
    for place, nodes in ((5000, (0,)), (200_000, (0, 1)), (9000, (0, 1, 2, 3))):
        if comm.rank == 0:
            for node in nodes:  # a part's and a parity's byte, in other stripes
                flip(next((local / f"node{node}").glob("*/step-*/*.dpp")), place + 30_000 * node)
            flip(next((local / "node3").glob("*/parity/*/*.dpy")), place)
        comm.Barrier()
        results.append(restore(comm, directory, PARITY))
    return results


@pytest.mark.timeout(110)
def test_damaged_pieces_still_help_with_their_good_blocks(run_on: Any, shared_path: Path) -> None:
    for results in run_on(4, damaged_pieces, shared_path):
        for step, good, explanation in results:
            assert step == 1 and good, explanation
        assert "4 of 4 parts rebuilt from parity" in results[2][2][-2]


def put_in_a_wrong_place(directory: Path, kind: str) -> None:
    """The only other file of part 1, or a share of parity, comes to lie where another one belongs."""
    local = directory / "local"
    if kind == "part":
        (copy,) = (local / "node2").glob("*/partner/step-*/part-00001-*")
        (place,) = (local / "node2").glob("*/step-*/part-00002-*")
    else:
        (copy,) = (local / "node2").glob("*/parity/step-*/*-002-of-004.dpy")
        place = copy.with_name(copy.name.replace("-002-", "-003-"))
    copy.rename(place)


def misplaced(comm: Any, directory: Path, kind: str) -> list[Any]:
    """What is found in the wrong place is used, and written over when what belongs there is rebuilt."""
    settings = PARTNER if kind == "part" else PARITY
    save(comm, directory, settings, (1,))
    if comm.rank == 0:
        put_in_a_wrong_place(directory, kind)
    comm.Barrier()
    results = [restore(comm, directory, settings)]
    for nodes in ((1,), (2,)) if kind == "part" else ((0, 1), (2, 3)):
        lose(comm, directory, *nodes)
        results.append(restore(comm, directory, settings))
    return results


@pytest.mark.timeout(110)
@pytest.mark.parametrize("kind", ["part", "parity"])
def test_what_lies_in_a_wrong_place_is_no_redundancy(run_on: Any, shared_path: Path, kind: str) -> None:
    for results in run_on(4, misplaced, shared_path, kind):
        assert [(step, good) for step, good, _ in results] == [(1, True)] * 3, results


def without_its_lineage(comm: Any, directory: Path) -> tuple[Any, set[str]]:
    """The record of the lineage is lost: what is restored then, and what the nodes gain."""
    settings = {"every": {"persistent": 1}}
    save(comm, directory, settings)
    before = {str(path) for path in directory.glob("local/*/*/**/*.dpp")}
    comm.Barrier()
    if comm.rank == 0:
        (directory / "ckpt" / "deeppart.json").unlink()
    comm.Barrier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        restored = restore(comm, directory, settings)
    comm.Barrier()
    return restored, {str(path) for path in directory.glob("local/*/*/**/*.dpp")} - before


def test_no_redundancy_that_would_not_count_is_made_of_a_step_of_another_lineage(
    run_on: Any, shared_path: Path
) -> None:
    for (step, good, explanation), gained in run_on(4, without_its_lineage, shared_path):
        assert step == 2 and good
        assert any("its redundancy is not rebuilt: it was saved under another lineage" in line for line in explanation)
        assert not gained


def exchange(one: Path, other: Path) -> None:
    """Each file gets the other one's name."""
    one.rename(one.with_suffix(".moved"))
    other.rename(one)
    one.with_suffix(".moved").rename(other)


def short(*arguments: Any, **options: Any) -> None:
    """There is no memory."""
    raise MemoryError


def in_each_others_places(comm: Any, directory: Path, settings: dict[str, Any], fault: str) -> list[Any]:
    """On each node, of which only one file of each part is left, two parts lie in each other's places."""
    save(comm, directory, settings, (1,))
    if comm.rank == 0:
        local = directory / "local"
        for copy in local.glob("*/*/partner/step-*/*.dpp"):
            copy.unlink()
        for node in range(2):
            exchange(*sorted((local / f"node{node}").glob("*/step-*/*.dpp")))
    comm.Barrier()
    results = []
    if fault != "none":
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", deeppart.BackgroundFailureWarning)
            refuse_on(comm.rank, fault, patch)
            results += [restore(comm, directory, settings), restore(comm, directory, settings)]
    results.append(restore(comm, directory, settings))
    for node in range(2):
        lose(comm, directory, node)
        results.append(restore(comm, directory, settings))
    return results


def refuse_on(rank: int, fault: str, patch: pytest.MonkeyPatch) -> None:
    """Names cannot be exchanged; with "full", one rank of each node cannot write either."""

    def refuse(*paths: Any) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def full(file: Any, pieces: Any) -> None:
        file.abort()
        raise StorageError("cannot write a checkpoint file", found="No space left on device (errno 28)")

    patch.setattr(deeppart.storage.straightening, "exchange_names", refuse)
    if fault == "full" and rank % 2:
        patch.setattr(deeppart.repair.heal, "fill", full)


@pytest.mark.timeout(110)
@pytest.mark.parametrize("fault", ["none", "no exchange", "full"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_part_in_the_place_of_another_one_is_never_written_over(
    run_on: Any, shared_path: Path, compression: str, fault: str
) -> None:
    settings = {**PARTNER, "node_size": 2, "compression": compression}
    for results in run_on(4, in_each_others_places, shared_path, settings, fault):
        assert {(step, good) for step, good, _ in results} == {(1, True)}, results


def planned(comm: Any, directory: Path) -> tuple[bool, int]:
    """``restore --dry-run`` on the nodes, where files lie in each other's places."""
    save(comm, directory, PARTNER, (1,))
    local = directory / "local" / f"node{comm.rank}"
    (mine,) = local.glob("*/step-*/*.dpp")
    (copy,) = local.glob("*/partner/step-*/*.dpp")
    mine.rename(mine.with_name(copy.name))
    before = sorted(str(path) for path in local.glob("*/*/**/*"))
    lineage = mine.parents[1].name
    plan = plan_together(MpiComm(comm), directory / "ckpt", lineage, local, (0, 1, 2, 3), 200.0, None)
    assert plan.candidate is not None
    return sorted(str(path) for path in local.glob("*/*/**/*")) == before, plan.candidate.attempt.step


@pytest.mark.timeout(110)
def test_planning_a_restore_renames_nothing(run_on: Any, shared_path: Path) -> None:
    assert run_on(4, planned, shared_path) == [(True, 1)] * 4


def without_memory(comm: Any, directory: Path) -> list[Any]:
    """All nodes are lost, and one rank has not the memory to write its part back."""
    settings = {"every": {"persistent": 1, "partner": 1}}
    save(comm, directory, settings, (1,))
    lose(comm, directory, 0, 1, 2, 3)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if comm.rank == 1:
            patch.setattr(deeppart.repair.heal, "fill", short)
        began = time.monotonic()
        results = [restore(comm, directory, settings)[:2], time.monotonic() - began < 100.0]
    told = [str(each.message) for each in caught if each.category is deeppart.BackgroundFailureWarning]
    return [*results, told, restore(comm, directory, settings)[:2]]


@pytest.mark.timeout(110)
def test_what_goes_wrong_on_one_rank_keeps_no_other_one_waiting(run_on: Any, shared_path: Path) -> None:
    results = run_on(4, without_memory, shared_path)
    assert {(first, fast, last) for first, fast, _, last in results} == {((1, True), True, (1, True))}
    assert any("rank 1 failed: MemoryError" in text for text in results[0][2]), results[0][2]


def without_memory_to_read(comm: Any, directory: Path, settings: dict[str, Any]) -> list[Any]:
    """A node is lost, and one rank has not the memory to read what copies, or parity, are to be made of."""
    save(comm, directory, settings, (1,))
    lose(comm, directory, 0)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.BackgroundFailureWarning)
        if comm.rank == 1:
            patch.setattr(deeppart.repair.heal, "PartReader", short)
        began = time.monotonic()
        results = [restore(comm, directory, settings)[:2], time.monotonic() - began < 100.0]
    return [*results, restore(comm, directory, settings)[:2]]


@pytest.mark.timeout(110)
@pytest.mark.parametrize("settings", [PARTNER, PARITY], ids=["copies", "parity"])
def test_what_cannot_be_read_on_one_rank_keeps_no_other_one_waiting(
    run_on: Any, shared_path: Path, settings: dict[str, Any]
) -> None:
    assert run_on(4, without_memory_to_read, shared_path, settings) == [[(1, True), True, (1, True)]] * 4


def without_memory_to_exchange(comm: Any, directory: Path, settings: dict[str, Any]) -> list[Any]:
    """One rank has not the memory for what is under way between nodes: when a step is saved, and at a restore."""
    level = "parity" if settings is PARITY else "partner"

    results: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.errors.DeeppartWarning)
        with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
            for step in (1, 2):
                with pytest.MonkeyPatch.context() as patch:
                    if step == 1 and comm.rank == 1:
                        patch.setattr(Arena, "reserve", short)
                    began = time.monotonic()
                    pending = ck.checkpoint(state(step, comm.rank), step)
                    try:
                        pending.wait(level)
                        results.append("complete")
                    except CheckpointError as error:
                        results.append("there is no memory for an exchange" in str(error))
                    results.append(time.monotonic() - began < 60.0)
    lose(comm, directory, 2)
    with pytest.MonkeyPatch.context() as patch:
        if comm.rank == 1:
            patch.setattr(Arena, "reserve", short)
        began = time.monotonic()
        try:
            results.append(restore(comm, directory, settings)[:2])
        except deeppart.DeeppartError as error:
            results.append("there is no memory for an exchange" in str(error))
        results.append(time.monotonic() - began < 60.0)
    return [*results, restore(comm, directory, settings)[:2]]


@pytest.mark.timeout(110)
@pytest.mark.filterwarnings("ignore::deeppart.errors.DeeppartWarning")
@pytest.mark.parametrize(("settings", "at_restore"), [(PARTNER, (2, True)), (PARITY, True)], ids=["copies", "parity"])
def test_a_rank_without_memory_keeps_no_other_one_waiting(
    run_on: Any, shared_path: Path, settings: dict[str, Any], at_restore: Any
) -> None:
    """A part that is rebuilt needs the exchange before it is restored, one of which there is a copy only afterwards."""
    saved = [True, True, "complete", True]
    for results in run_on(4, without_memory_to_exchange, shared_path, settings):
        assert results == [*saved, at_restore, True, (2, True)]


def in_a_shared_directory(comm: Any, directory: Path) -> tuple[int, tuple[int | None, bool]]:
    """All nodes have one local directory, in which two parts lie in each other's places; renaming takes its time."""
    settings = {"local_dir": str(directory / "local"), "every": {"persistent": 0, "partner": 0}}
    save(comm, directory, settings, (1,))
    if comm.rank == 0:
        exchange(*sorted((directory / "local").glob("*/step-*/part-0000[01]-*")))
    comm.Barrier()
    renamed, exchange_names = [], deeppart.storage.straightening.exchange_names  # type: ignore[attr-defined]

    def slowly(*paths: Any) -> None:
        renamed.append(paths)
        time.sleep(0.2)
        exchange_names(*paths)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deeppart.storage.straightening, "exchange_names", slowly)
        found = restore(comm, directory, settings)[:2]
    return len(renamed), found


def test_nodes_that_share_a_directory_do_not_rename_its_files_at_once(run_on: Any, shared_path: Path) -> None:
    results = run_on(4, in_a_shared_directory, shared_path)
    assert sorted(results) == [(0, (1, True))] * 3 + [(1, (1, True))]


def with_nodes_exchanged(comm: Any, directory: Path) -> list[Any]:
    """Two nodes come back with each other's storage: what each part's partner is has changed."""
    save(comm, directory, PARTNER, (1,))
    if comm.rank == 0:
        one, other = directory / "local" / "node0", directory / "local" / "node1"
        one.rename(directory / "moved")
        other.rename(one)
        (directory / "moved").rename(other)
    comm.Barrier()
    results = [restore(comm, directory, PARTNER)]
    for nodes in ((1, 3), (0, 2), (1, 3)):
        lose(comm, directory, *nodes)
        results.append(restore(comm, directory, PARTNER))
    return results


@pytest.mark.timeout(110)
def test_copies_are_on_the_next_node_again_after_nodes_were_exchanged(run_on: Any, shared_path: Path) -> None:
    for results in run_on(4, with_nodes_exchanged, shared_path):
        assert [(step, good) for step, good, _ in results] == [(1, True)] * 4, results


def only_one_has_leaves_of_its_own(comm: Any, directory: Path, owner: int) -> list[bool]:
    """Its node is lost: what it alone has comes from a rank that has nothing of its own."""
    settings = {"replicated": {"own": "none"}, "timeout": 60.0, **PARTNER}
    own = {"leaf": torch.full((500,), 7.0)} if comm.rank == owner else {}
    with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
        ck.checkpoint({"w": torch.arange(1000.0), "own": own}, 1).wait("partner", timeout=200)
    lose(comm, directory, owner)
    found = []
    for live in ({"leaf": torch.zeros(500)} if comm.rank == owner else {}, {}):
        with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
            state: dict[str, Any] = {"w": torch.zeros(1000), "own": live}
            found.append(ck.restore(state) == 1 and torch.equal(state["w"], torch.arange(1000.0)))
            right = torch.full((500,), 7.0)
            found.append(torch.equal(live["leaf"], right) if comm.rank == owner else not live)
    return found


@pytest.mark.parametrize("owner", [0, 1])
def test_a_rank_without_leaves_of_its_own_has_those_of_another_one(run_on: Any, shared_path: Path, owner: int) -> None:
    assert run_on(2, only_one_has_leaves_of_its_own, shared_path, owner) == [[True] * 4] * 2
