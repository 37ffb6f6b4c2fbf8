"""Live shards that share memory: the same tensor at two places, or views of one buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from deeppart.errors import DeeppartError, StructureMismatchError
from tests.unit.sharded_states import Piece, restore, rows, save

WHOLE = torch.arange(40.0).view(8, 5)


def tied(add: float, rank: int) -> dict[str, Any]:
    mine = rows(WHOLE + add, rank, 2)
    return {"head": mine, "embed": mine}


def untied(add: float, rank: int) -> dict[str, Any]:
    return {"head": rows(WHOLE + add, rank, 2), "embed": rows(WHOLE + add, rank, 2)}


def plain(item: Any) -> torch.Tensor:
    tensor: torch.Tensor = item.detach().as_subclass(torch.Tensor)
    return tensor


@pytest.mark.parametrize("make", [tied, untied])
def test_tied_tensors_come_back_tied_or_not_as_the_live_ones_are(tmp_path: Path, make: Any) -> None:
    save(tmp_path, [tied(0.0, rank) for rank in range(2)])
    live = [make(-1.0, rank) for rank in range(2)]
    restore(tmp_path, live)
    for rank, state in enumerate(live):
        for item in state.values():
            assert torch.equal(plain(item), WHOLE[4 * rank : 4 * rank + 4])
        assert (plain(state["head"]).data_ptr() == plain(state["embed"]).data_ptr()) == (make is tied)


def test_what_was_saved_apart_cannot_be_one_tensor(tmp_path: Path) -> None:
    save(tmp_path, [{"head": rows(WHOLE, rank, 2), "embed": rows(WHOLE + 1, rank, 2)} for rank in range(2)])
    live = [tied(-1.0, rank) for rank in range(2)]
    with pytest.raises(DeeppartError) as caught:
        restore(tmp_path, live)
    assert isinstance(caught.value, StructureMismatchError) and "embed" in str(caught.value)
    assert torch.equal(plain(live[0]["head"]), WHOLE[:4] - 1)


def slice_of(buffer: torch.Tensor, begin: int, stop: int, row: int) -> Any:
    """Rows of a tensor that lie in a part of a buffer."""
    x = buffer[begin:stop].view(-1, 5).as_subclass(Piece)
    x.global_shape, x.global_offsets = (8, 5), [(row, 0)]
    x.local_offsets, x.local_sizes = [(0, 0)], [tuple(x.shape)]
    return x


def test_shards_that_lie_side_by_side_in_one_buffer(tmp_path: Path) -> None:
    """As optimizers keep all parameters in one flat buffer."""
    save(tmp_path, [{"a": rows(WHOLE, rank, 2), "b": rows(WHOLE + 50, rank, 2)} for rank in range(2)])
    buffers = [torch.zeros(40) for _ in range(2)]
    live = [
        {"a": slice_of(buffer, 0, 20, 4 * rank), "b": slice_of(buffer, 20, 40, 4 * rank)}
        for rank, buffer in enumerate(buffers)
    ]
    restore(tmp_path, live)
    for rank, buffer in enumerate(buffers):
        mine = WHOLE[4 * rank : 4 * rank + 4]
        assert torch.equal(buffer, torch.cat([mine.reshape(-1), mine.reshape(-1) + 50]))


def test_shards_that_reach_into_each_other_are_refused(tmp_path: Path) -> None:
    save(tmp_path, [{"a": rows(WHOLE, rank, 2), "b": rows(WHOLE + 50, rank, 2)} for rank in range(2)])
    buffers = [torch.zeros(40) for _ in range(2)]
    live = [
        {"a": slice_of(buffer, 0, 20, 4 * rank), "b": slice_of(buffer, 15, 35, 4 * rank)}
        for rank, buffer in enumerate(buffers)
    ]
    with pytest.raises(StructureMismatchError, match="share some of their memory") as caught:
        restore(tmp_path, live)
    assert all(name in str(caught.value) for name in "ab") and not any(buffer.any() for buffer in buffers)


def test_a_shard_in_a_plain_live_tensor_is_refused(tmp_path: Path) -> None:
    save(tmp_path, [{"a": rows(WHOLE, rank, 2), "plain": torch.ones(40)} for rank in range(2)])
    buffers = [torch.zeros(40) for _ in range(2)]
    live = [{"a": slice_of(each, 0, 20, 4 * rank), "plain": each} for rank, each in enumerate(buffers)]
    with pytest.raises(StructureMismatchError, match="share some of their memory"):
        restore(tmp_path, live)
    assert not any(buffer.any() for buffer in buffers)
