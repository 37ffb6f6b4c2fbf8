"""Node files in the life of a job: other ranks, other nodes, other settings, keys, damage, and what is not referred to.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.offline.inspect.verifying import choose_steps, verify
from tests.mpi.outcomes import LONG_S

pytestmark = [pytest.mark.mpi(min_size=4), pytest.mark.filterwarnings("ignore::deeppart.DeeppartWarning")]


def state(rank: int, step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    frozen = torch.arange(600_000, dtype=torch.int32)
    return {
        "w": torch.rand(900_001, generator=generator),
        "frozen": frozen,
        "own": torch.full((9,), rank),
        "step": step,
    }


def life(comm: Any, directory: Path, settings: dict[str, Any], steps: tuple[int, ...]) -> tuple[Any, bool, Any]:
    """Restore, compare, and save these steps; what was restored, and the report of the last."""
    config = deeppart.Config(persistent_dir=str(directory / "ckpt"), timeout=LONG_S, **settings)
    report: Any = None
    with deeppart.Checkpointer(config, comm) as checkpointer:
        live = state(0, 0)
        step = checkpointer.restore(live, per_rank="drop")
        good = step is None or torch.equal(live["w"], state(0, step)["w"])
        for number in steps:
            pending = checkpointer.checkpoint(state(comm.rank, number), number)
            for level in pending.report.levels:
                if pending.report.levels[level].state != "off":
                    pending.wait(level, timeout=LONG_S)
            report = pending.report
        if report is not None:
            remarks = report.compression["persistent"]
            report = remarks, {name: each.nbytes for name, each in report.levels.items()}
    return step, good, report


def names(directory: Path, step: int) -> list[str]:
    (found,) = (directory / "ckpt").glob(f"step-{step:012d}-*")
    return sorted(os.listdir(found))


def test_other_ranks_other_nodes_and_back(run_on: Any, shared_path: Path) -> None:
    """Each life reads what the one before has written, in whichever way."""
    lives: list[tuple[int, dict[str, Any], tuple[int, ...]]] = [
        (4, {"files": "node", "node_size": 2}, (1, 2)),
        (3, {"files": "rank", "node_size": 1}, (3,)),
        (2, {"files": "node", "node_size": 2}, (4,)),
        (4, {"files": "node", "node_size": 3}, (5,)),
        (1, {"files": "node"}, (6,)),
        (4, {"files": "rank"}, ()),
    ]
    before = None
    for ranks, settings, steps in lives:
        for step, good, _ in run_on(ranks, life, shared_path, settings, steps):
            assert (step, good) == (before, True)
        before = steps[-1] if steps else before
    assert names(shared_path, 5) == ["manifest", "node-00000-of-00004.dpn", "node-00003-of-00004.dpn"]
    assert names(shared_path, 4) == ["manifest", "node-00000-of-00002.dpn"]
    assert all(verify(each).state == "sound" for each in choose_steps(shared_path / "ckpt", every=True))
    assert [each.key.step for each in choose_steps(shared_path / "ckpt", every=True)] == [4, 5, 6], "keep is as ever"


def test_levels_on_nodes_refer_and_node_files_do_not(run_on: Any, shared_path: Path) -> None:
    local = {"local_dir": str(shared_path / "local" / "{node}"), "node_size": 2, "files": "node", "compression": "none"}
    reports = [report for _, _, report in run_on(4, life, shared_path, local, (1, 2))]
    refer = [remarks for remarks, nbytes in reports if nbytes["local"] < nbytes["persistent"]]
    assert refer, "some rank has chunks of what has not changed"
    assert all('unchanged chunks are written again: files = "node"' in remarks for remarks in refer)
    assert not list((shared_path / "ckpt").rglob("base-*")) and list((shared_path / "local").rglob("base-*"))
    nowhere = {"files": "node", "node_size": 2}
    assert [each[:2] for each in run_on(4, life, shared_path, nowhere, ())] == [(2, True)] * 4


def test_signed(run_on: Any, shared_path: Path) -> None:
    key = shared_path / "key"
    run_on(4, make_key, key)
    settings = {"files": "node", "node_size": 2, "sign_key_file": str(key)}
    run_on(4, life, shared_path, settings, (1,))
    assert [each[:2] for each in run_on(4, life, shared_path, settings, ())] == [(1, True)] * 4


def make_key(comm: Any, path: Path) -> None:
    if comm.rank == 0:
        path.write_bytes(bytes(range(40)))
        path.chmod(0o600)
    comm.Barrier()


def test_a_damaged_section_and_a_damaged_table_fall_back_to_the_nodes(run_on: Any, shared_path: Path) -> None:
    settings = {"local_dir": str(shared_path / "local" / "{node}"), "node_size": 2, "files": "node"}
    run_on(4, life, shared_path, settings, (1, 2))
    found = run_on(4, spoil, shared_path)
    assert found == [None] * 4
    for step, good, _ in run_on(4, life, shared_path, settings, ()):
        assert (step, good) == (2, True)
    bare = {"node_size": 2, "files": "node"}
    assert [each[:2] for each in run_on(4, life, shared_path, bare, ())] == [(1, True)] * 4, "the step before"


def spoil(comm: Any, directory: Path) -> None:
    if comm.rank == 0:
        one, other = sorted((directory / "ckpt").glob("step-000000000002-*/node-*"))
        for path, offset in ((one, 5000), (other, other.stat().st_size - 10)):
            with path.open("r+b") as file:
                file.seek(offset)
                byte = file.read(1)[0]
                file.seek(offset)
                file.write(bytes([byte ^ 1]))
    comm.Barrier()


def test_ranks_must_agree(run_on: Any, shared_path: Path) -> None:
    assert run_on(2, disagree, shared_path) == ["ranks were given different values for files"] * 2


def disagree(comm: Any, directory: Path) -> str:
    try:
        deeppart.Checkpointer(
            deeppart.Config(persistent_dir=str(directory / "ckpt"), files=("rank", "node")[comm.rank]), comm
        )
    except deeppart.ConfigError as error:
        return error.summary
    return ""
