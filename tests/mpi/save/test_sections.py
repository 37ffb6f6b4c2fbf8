"""Node files between ranks: whatever goes wrong on one of them ends the level on all, and leaves nothing behind.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import StorageError
from deeppart.part import FileSource, parse_node_file_name, parse_section_path, read_table
from deeppart.save import sections
from deeppart.save import write as writing
from deeppart.save.sections import SectionWriter
from deeppart.storage.files import DurableFile, Room, SectionFile
from deeppart.storage.persistent import PersistentLevel
from tests.mpi.outcomes import LONG_S

pytestmark = [pytest.mark.mpi(min_size=4), pytest.mark.filterwarnings("ignore::deeppart.PerRankNotice")]
NODE_FILES = ["node-00000-of-00004.dpn", "node-00002-of-00004.dpn"]


def config(directory: Path, **settings: Any) -> deeppart.Config:
    defaults: dict[str, Any] = {"files": "node", "node_size": 2, "timeout": LONG_S, "keep": {"persistent": 0}}
    return deeppart.Config(persistent_dir=str(directory / "ckpt"), **defaults | settings)


def state(rank: int, step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {
        "w": torch.rand(1_500_001, generator=generator),
        "own": torch.full((999,), 10.0 * step + rank),
        "step": step,
    }


def restored(comm: Any, directory: Path, **settings: Any) -> tuple[int | None, bool]:
    blank = state(0, 0)
    with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
        step = ck.restore(blank)
    expected = state(comm.rank, step or 0)
    return step, all(torch.equal(blank[name], expected[name]) for name in ("w", "own"))


def step_files(directory: Path, step: int) -> list[str]:
    (found,) = (directory / "ckpt").glob(f"step-{step:012d}-*")
    return sorted(os.listdir(found))


def saved(comm: Any, directory: Path, settings: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
            for step in (1, 2):
                pending = ck.checkpoint(state(comm.rank, step), step=step)
                pending.wait(timeout=LONG_S)
    return restored(comm, directory, **settings)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("compression", ["none", "zstd:1"])
@pytest.mark.parametrize("local", [False, True])
def test_a_file_for_each_node(run_on: Any, shared_path: Path, compression: str, local: bool) -> None:
    settings: dict[str, Any] = {"compression": compression}
    if local:
        settings["local_dir"] = str(shared_path / "local" / "{node}")
    assert run_on(4, saved, shared_path, settings) == [(2, True)] * 4
    assert step_files(shared_path, 2) == ["manifest", *NODE_FILES]
    (manifest,) = (shared_path / "ckpt").glob("step-000000000002-*/manifest")
    parts = json.loads(manifest.read_bytes().split(b"\n", 1)[1])["parts"]
    assert [part["file"] for part in parts] == [
        f"{NODE_FILES[rank // 2]}/part-{rank:05d}-of-00004.dpp" for rank in range(4)
    ]
    for part in parts:
        path = manifest.parent / part["file"]
        with FileSource(path) as source:
            assert source.size == part["nbytes"] and source.section is not None
            assert source.section.index_digest == part["index_digest"]


def in_turn(comm: Any, directory: Path) -> Any:
    """Ranks 0 and 2 on one node, 1 and 3 on another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deeppart.session.topology.node_name", lambda: f"host{comm.rank % 2}")
        return saved(comm, directory, {"node_size": None})


def test_ranks_of_a_node_that_do_not_follow_each_other(run_on: Any, shared_path: Path) -> None:
    assert run_on(4, in_turn, shared_path) == [(2, True)] * 4
    names = [name for name in step_files(shared_path, 2) if parse_node_file_name(name)]
    assert names == ["node-00000-of-00004.dpn", "node-00001-of-00004.dpn"]
    (path,) = (shared_path / "ckpt").glob(f"step-000000000002-*/{names[1]}")
    place = parse_section_path(path / "part-00003-of-00004.dpp")
    assert place is not None
    with FileSource(path) as source:
        assert [section.rank for section in read_table(source, place).sections] == [1, 3]


# --- what goes wrong --------------------------------------------------------------------------------------------------


def refuse(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "no space left")


def full(*_: Any, **__: Any) -> Any:
    raise StorageError("cannot write a checkpoint file", errno=errno.ENOSPC, found="No space left on device")


def unexpected(*_: Any, **__: Any) -> Any:
    raise MemoryError("no memory for this")


def only(real: Callable[..., Any], instead: Callable[..., Any], text: str = "") -> Callable[..., Any]:
    """Another function for files with this text in their names."""

    def choose(self: Any, *arguments: Any, **options: Any) -> Any:
        return (instead if text in str(getattr(self, "path", "")) else real)(self, *arguments, **options)

    return choose


def small(*_: Any, **__: Any) -> int:
    return 5000


def elsewhere(self: SectionWriter, *arguments: Any) -> Room:
    room = ROOM(self, *arguments)
    return Room(room.temporary.with_name("nowhere"), room.inode, room.offset, room.nbytes)


def other_inode(self: SectionWriter, *arguments: Any) -> Room:
    room = ROOM(self, *arguments)
    return Room(room.temporary, room.inode + 1, room.offset, room.nbytes)


ROOM = SectionWriter._room
#: What goes wrong: (rank, of what, its attribute, what is there instead), and what the error says.
FAULTS: dict[str, tuple[int, Any, str, Callable[..., Any], str]] = {
    "no file of the first node": (0, PersistentLevel, "open_node_file", full, "No space"),
    "no file of the second node": (2, PersistentLevel, "open_node_file", full, "No space"),
    "no memory before it begins": (1, SectionWriter, "_begin", unexpected, "MemoryError"),
    "no memory between the exchanges": (3, SectionWriter, "_fill", unexpected, "MemoryError"),
    "no place": (3, SectionWriter, "_room", elsewhere, "No such file"),
    "another file": (1, SectionWriter, "_room", other_inode, "inode"),
    "a section cannot be opened": (2, PersistentLevel, "open_section", full, "No space"),
    "a section of the lowest rank": (0, SectionFile, "write", full, "No space"),
    "a section of another rank": (3, SectionFile, "write", full, "No space"),
    "a section that does not become durable": (1, SectionFile, "commit", full, "No space"),
    "a part that outgrows its room": (3, sections, "most_part_bytes", small, "longer than the room"),
    "the file does not become durable": (2, DurableFile, "commit", only(DurableFile.commit, full, "node-"), "No space"),
    "no table": (0, sections, "complete", full, "No space"),
    "no report": (2, sections, "_lengths", unexpected, "MemoryError"),
}


def one_goes_wrong(comm: Any, directory: Path, name: str, local: bool) -> list[str]:
    rank, owner, attribute, instead, _ = FAULTS[name]
    settings = {"local_dir": str(directory / "local" / "{node}"), "incremental": False} if local else {}
    told = []
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        patch.setattr(writing, "RETRY_PAUSES_S", (0.01, 0.01))
        with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
            ck.checkpoint(state(comm.rank, 1), step=1).wait(timeout=LONG_S)
            with pytest.MonkeyPatch.context() as wrong:
                if comm.rank == rank:
                    wrong.setattr(owner, attribute, instead)
                pending = ck.checkpoint(state(comm.rank, 2), step=2)
                with pytest.raises(deeppart.CheckpointError) as caught:
                    pending.wait(timeout=LONG_S)
                told.append(str(caught.value))
                comm.Barrier()
            if comm.rank == 0:
                found = list((directory / "ckpt").glob("step-000000000002-*/*"))
                assert not found, f"left behind: {found}"
            comm.Barrier()
            ck.checkpoint(state(comm.rank, 3), step=3).wait(timeout=LONG_S)
    assert restored(comm, directory, **settings) == (3, True)
    return told


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", FAULTS)
def test_one_rank_fails(run_on: Any, shared_path: Path, name: str) -> None:
    rank, *_, text = FAULTS[name]
    for (told,) in run_on(4, one_goes_wrong, shared_path, name, len(name) % 2 == 0):
        assert f"rank {rank} failed" in told and text in told, told
    assert step_files(shared_path, 3) == ["manifest", *NODE_FILES]


def passing(comm: Any, directory: Path) -> int:
    """An error that passes, in the middle of a section: it is written again, and the neighbours do not notice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "RETRY_PAUSES_S", (0.01, 0.01))
        commit, failed = SectionFile.commit, list[int]()

        def once(self: SectionFile) -> None:
            if comm.rank in (1, 2) and not failed:
                failed.append(1)
                raise StorageError("it hung", errno=errno.EIO)
            commit(self)

        patch.setattr(SectionFile, "commit", once)
        with deeppart.Checkpointer(config(directory), comm) as ck:
            pending = ck.checkpoint(state(comm.rank, 1), step=1)
            pending.wait(timeout=LONG_S)
            retries = pending.report.retries
    assert restored(comm, directory) == (1, True)
    return retries


def test_an_error_that_passes(run_on: Any, shared_path: Path) -> None:
    assert run_on(4, passing, shared_path) == [0, 1, 1, 0]


def gives_up(comm: Any, directory: Path) -> list[str]:
    """An error outside of the work itself: the stage gives up, and the others are told in the exchange."""
    from deeppart.save import Pipeline

    told = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        with deeppart.Checkpointer(config(directory), comm) as ck:
            timed = Pipeline._timed
            with pytest.MonkeyPatch.context() as wrong:
                if comm.rank == 3:
                    wrong.setattr(Pipeline, "_timed", unexpected)
                pending = ck.checkpoint(state(comm.rank, 1), step=1)
                with pytest.raises(deeppart.CheckpointError) as caught:
                    pending.wait(timeout=LONG_S)
                told.append(str(caught.value))
                comm.Barrier()
            assert Pipeline._timed is timed
            ck.checkpoint(state(comm.rank, 2), step=2).wait(timeout=LONG_S)
    assert restored(comm, directory) == (2, True)
    return told


def test_a_stage_that_gives_up(run_on: Any, shared_path: Path) -> None:
    for (told,) in run_on(4, gives_up, shared_path):
        assert "rank 3 failed" in told and "MemoryError" in told
