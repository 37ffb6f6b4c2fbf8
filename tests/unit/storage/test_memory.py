"""Staging memory that outlives its rank."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from deeppart.codec import EncodedChunk, RawCodec
from deeppart.mapped import lies_in_memory
from deeppart.model import Attempt
from deeppart.part import PartWriter
from deeppart.part.format import SPAN_DTYPE
from deeppart.session.open import memory_at_agent
from deeppart.storage import MemoryLevel, NodeContents
from tests.unit.cli_support import flip

LINEAGE = "0" * 32


def attempt(step: int) -> Attempt:
    return Attempt(LINEAGE, "1" * 32, step, step, 4)


def level(directory: Path, slot: int, slots: int = 4, said: list[str] | None = None) -> MemoryLevel:
    return MemoryLevel(directory, LINEAGE, slot, slots, (said if said is not None else []).append)


def save(memory: MemoryLevel, step: int, rank: int, content: bytes) -> None:
    room = memory.reserve(len(content))
    assert room is not None
    room[:] = content
    writer = PartWriter(memory.sink(), attempt(step), rank)
    writer.add_chunk(len(content), EncodedChunk(RawCodec.codec_id, room))
    spans = np.zeros(1, SPAN_DTYPE)
    spans["length"] = len(content)
    writer.finish(spans, b"{}")
    memory.name(attempt(step), rank)


def found(memory: MemoryLevel) -> list[tuple[int, int]]:
    stock = NodeContents()
    memory.take_stock(None, stock)
    assert not stock.notes
    return sorted((part.attempt.step, part.rank) for part in stock.parts)


def test_a_share_is_found_until_the_next_one_is_captured(memory: Path) -> None:
    mine = level(memory, 1)
    for step, content in ((1, b"a" * 5000), (2, b"b" * 5000), (3, b"c" * 9000), (4, b"d" * 10)):
        save(mine, step, 1, content)
        for after_the_rank in (mine, level(memory, 1)):
            assert found(after_the_rank) == [(step, 1)] and not after_the_rank.is_unused
        (part,) = memory.glob("memory/*/1/*/part*")
        assert part.read_bytes()[4096 : 4096 + len(content)] == content
    assert mine.reserve(10) is not None
    assert found(mine) == [] and not mine.is_unused  # what lies there may be being stored
    mine.drop()
    assert [each for each in memory.rglob("*") if each.is_file()] == []


def test_a_share_that_lies_elsewhere_is_none_of_this_memory(memory: Path) -> None:
    """As in pinned memory, once the state has moved to a device: the bytes here are those of an earlier step."""
    mine = level(memory, 0)
    room = mine.reserve(100)
    assert room is not None and mine.holds(np.frombuffer(room, np.uint8))
    assert not mine.holds(np.zeros(100, np.uint8)) and not mine.holds(np.frombuffer(room, np.uint8)[:50])
    assert mine.reserve(0) is not None and mine.holds(np.zeros(0, np.uint8))


def test_each_part_is_found_by_one_rank_on_any_number_of_them(memory: Path) -> None:
    for rank in range(4):
        save(level(memory, rank), 1, rank, b"x" * (rank + 1))
    for slots in (1, 2, 3, 4, 6):
        shares = [found(level(memory, slot, slots)) for slot in range(slots)]
        assert sorted(each for share in shares for each in share) == [(1, rank) for rank in range(4)]
        assert slots < 4 or shares[3] == [(1, 3)]
    assert level(memory, 0, 2).reserve(7) is not None  # makes room: of slots 0 and 2
    assert found(level(memory, 0, 2)) == [] and found(level(memory, 1, 2)) == [(1, 1), (1, 3)]


def test_without_room_it_is_said_once(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    said: list[str] = []
    mine = level(memory, 0, said=said)
    save(mine, 1, 0, b"x")
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert mine.reserve(100) is None and mine.reserve(100) is None and not mine.holds(np.zeros(100, np.uint8))
    assert len(said) == 1 and "no memory for 100 bytes" in said[0] and mine.is_unused


def test_a_directory_on_a_disk_is_no_memory(tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    for directory in (tmp_path, memory):
        monkeypatch.setenv("DEEPPART_AGENT", str(directory))
        assert (memory_at_agent("0" * 32) is not None) == lies_in_memory(directory)


JOB = """
import os, sys, time
from pathlib import Path
import torch
import deeppart

directory, phase = Path(sys.argv[1]), sys.argv[2]
settings = {"persistent_dir": str(directory / "ckpt")}
if phase == "save":
    settings["flush_bandwidth"] = 1000
else:
    settings["local_dir"] = str(directory / "local")
checkpointer = deeppart.Checkpointer(**settings)
state = {"x": torch.full((100_000,), 7.0 if phase == "save" else 0.0)}
if phase == "save":
    checkpointer.checkpoint(state, 5)
    while not list((directory / "agent").glob("memory/*/0/step-*/part-*")):
        time.sleep(0.01)
else:
    print(checkpointer.restore(state), state["x"].eq(7).all().item(), *checkpointer.explanation)
    while checkpointer.repairing:
        time.sleep(0.01)
os._exit(0)
"""


def run_job(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
    directory: Path,
    phase: str,
    *,
    agent: bool = True,
    code: int = 0,
) -> str:
    (directory / "agent").mkdir(mode=0o700, exist_ok=True)
    more = {"DEEPPART_AGENT": str(directory / "agent"), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} if agent else {}
    done = run_python(JOB, str(directory), phase, env=os.environ | more)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def test_a_step_from_memory_becomes_one_of_the_local_level(
    memory: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """The next checkpoint overwrites that memory."""
    run_job(run_python, memory, "save")
    said = run_job(run_python, memory, "memory")
    assert said.startswith("5 True") and "1 of 1 parts in memory" in said
    assert "rebuilding redundancy in the background: 1 part to storage" in said
    said = run_job(run_python, memory, "local", agent=False)
    assert said.startswith("5 True") and "1 of 1 parts local" in said


def test_memory_is_not_believed_without_its_digests(
    memory: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    run_job(run_python, memory, "save")
    (part,) = memory.glob("agent/memory/*/0/step-*/part-*")
    flip(part, 5000)
    said = run_job(run_python, memory, "memory", code=1)
    assert "RestoreError" in said and "digest" in said and "no other source for part 0" in said, said
