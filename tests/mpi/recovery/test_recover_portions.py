"""Parts that several ranks read a stretch of each: the bytes of the checkpoint, and no chunk is read twice."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.plan.restart import reading
from deeppart.recovery.parts import CheckedPart
from tests.unit.cli_support import flip
from tests.unit.sharded_states import rows

pytestmark = pytest.mark.mpi(min_size=4)

MIB = 1 << 20
#: How the ranks of a job save: every way in which chunks are brought into memory.
WAYS: dict[str, dict[str, Any]] = {
    "raw": {"compression": "none", "incremental": False},
    "encoded": {"compression": "zstd"},
    "incremental": {"compression": "none", "incremental": True, "keep": {"persistent": 3}},
    "local": {"compression": "none", "incremental": False, "local_dir": "{directory}/local"},
}


@pytest.fixture(autouse=True)
def short_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LEAST_PORTION_BYTES", MIB)


def global_state(step: int) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(step)
    found = {f"w{number}": torch.randn(600, 512, generator=drawn) for number in range(9)}  # 1.2 MB each
    return found | {"steady": torch.arange(3.0 * MIB).view(-1, 64), "small": torch.arange(5.0)}


def state_of(rank: int, ranks: int, step: int) -> dict[str, Any]:
    """Replicated, sharded and per-rank leaves; what does not depend on the step stays as it was from save to save."""
    whole = global_state(step)
    return {
        "replicated": {name: x.clone() for name, x in whole.items()},
        "sharded": {name: rows(x, rank, ranks) for name, x in whole.items()},
        "own": torch.full((400_000,), float(100 * rank + step)),
    }


def config(directory: Path, way: str, **more: Any) -> deeppart.Config:
    settings = {name: _in(value, directory) for name, value in WAYS[way].items()}
    return deeppart.Config(persistent_dir=str(directory / "ckpt"), timeout=20.0, **settings | more)


def _in(value: Any, directory: Path) -> Any:
    return value.format(directory=directory) if isinstance(value, str) else value


def save(comm: Any, directory: Path, way: str, **more: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.errors.PerRankNotice)
        with deeppart.Checkpointer(config(directory, way, **more), comm) as ck:
            for step in (1, 2):
                ck.checkpoint(state_of(comm.rank, comm.size, step), step=step).wait(timeout=200)


def cycle(path: str, old: Sequence[Any], rank: int, size: int) -> Any:
    return old[rank % len(old)]


def restore(
    comm: Any, directory: Path, way: str, step: int = 2, **more: Any
) -> tuple[list[str], list[tuple[int, int, int]], str]:
    """What is not as it was saved, the chunks that this rank has read with their lengths, and the explanation."""
    state = state_of(comm.rank, comm.size, 0)
    chunks: list[tuple[int, int, int]] = []
    check = CheckedPart.check

    def recording(self: Any, *what: Any) -> None:
        check(self, *what)
        lengths = self.reader.chunks["encoded_length"].tolist()
        chunks.extend((self.reader.rank, chunk, lengths[chunk]) for chunk in self._chunks)

    with pytest.MonkeyPatch.context() as patch, deeppart.Checkpointer(config(directory, way, **more), comm) as ck:
        patch.setattr(CheckedPart, "check", recording)
        assert ck.restore(state, per_rank=cycle) == step
        wrong = [name for name, x in global_state(step).items() if not torch.equal(state["replicated"][name], x)]
        for name, x in global_state(step).items():
            mine, expected = state["sharded"][name], rows(x, comm.rank, comm.size)
            if not torch.equal(mine.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor)):
                wrong.append(f"shard of {name}")
        owner = state["own"][0].item()
        if (state["own"] != owner).any() or owner % 100 != step:
            wrong.append(f"own: {owner}")
        return wrong, chunks, "\n".join(ck.explanation)


def restore_on(comm: Any, directory: Path, way: str, node_size: int | None) -> Any:
    return restore(comm, directory, way, node_size=node_size)


@pytest.mark.sweep(2, kinds=("way",))
@pytest.mark.parametrize(
    ("way", "before", "after", "node_size"),
    [
        ("raw", 4, 3, None),
        ("raw", 1, 4, 2),
        ("encoded", 3, 4, 1),
        ("encoded", 4, 3, None),
        ("incremental", 2, 3, 1),
        ("incremental", 1, 4, 2),
        ("local", 4, 3, None),
        ("local", 3, 4, None),
    ],
)
def test_every_chunk_is_read_by_one_rank(
    run_on: Any, shared_path: Path, way: str, before: int, after: int, node_size: int | None
) -> None:
    run_on(before, save, shared_path, way)
    found = run_on(after, restore_on, shared_path, way, node_size)
    assert [wrong for wrong, *_ in found] == [[]] * after
    read = [each for _, chunks, _ in found for each in chunks]
    assert len(read) == len(set(read)), "no chunk is read twice"
    for part in range(before):
        numbers = sorted(chunk for of, chunk, _ in read if of == part)
        assert numbers and numbers == list(range(len(numbers)))
    readers = [sum(any(of == part for of, *_ in chunks) for _, chunks, _ in found) for part in range(before)]
    assert max(readers) > 1, "some part is read by several ranks"
    shares = [sum(length for *_, length in chunks) for _, chunks, _ in found]
    assert max(shares) <= 1.5 * sum(shares) / after


def keeps_two(comm: Any, directory: Path) -> None:
    save(comm, directory, "raw", keep={"persistent": 2})
    comm.barrier()
    if comm.rank == 0:
        (path,) = (directory / "ckpt").glob("step-000000000002-*/part-00003-of-*")
        flip(path, int(0.6 * path.stat().st_size))
    comm.barrier()


def restore_the_one_before(comm: Any, directory: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        return restore(comm, directory, "raw", 1)


def test_damage_in_the_stretch_of_any_rank_gives_the_step_before(run_on: Any, shared_path: Path) -> None:
    """Part 3 of step 2 is read by three ranks, and one of them finds it damaged."""
    run_on(4, keeps_two, shared_path)
    for wrong, chunks, explanation in run_on(3, restore_the_one_before, shared_path):
        assert wrong == []
        assert len(chunks) > len(set(chunks)), "both steps have been read"
        assert "step 2: no other source for part 3" in explanation


#: A job of three nodes with all levels, whose nodes are all new.
NODES: dict[str, Any] = {"node_size": 1, "every": {"partner": 1}, "compression": "none"}


def healed(comm: Any, directory: Path) -> list[list[str]]:
    """Restored from the persistent level, healed, and then restored from what was healed alone."""
    moved = {"local_dir": str(directory / "moved" / "{node}"), **NODES}
    found = [restore(comm, directory, "raw", **moved)]
    comm.barrier()
    if comm.rank == 0:
        for path in (directory / "ckpt").glob("step-*/part-*"):
            path.unlink()
    comm.barrier()
    found.append(restore(comm, directory, "raw", **moved))
    assert "4 of 4 parts persistent" in found[0][2] and "4 of 4 parts local" in found[1][2]
    return [wrong for wrong, *_ in found]


def test_parts_that_several_ranks_have_read_are_written_to_nodes_again(run_on: Any, shared_path: Path) -> None:
    """By one rank each, which reads what the others have read of it once more."""
    run_on(4, save, shared_path, "raw")
    assert run_on(3, healed, shared_path) == [[[], []]] * 3
