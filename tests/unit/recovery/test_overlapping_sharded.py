"""Live shards that share memory: the same tensor at two places, or views of one buffer; each has its own bytes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import StateError, StructureMismatchError
from deeppart.model import Box
from tests.unit.sharded_states import Piece, piece, restore, rows, save

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
    with pytest.raises(StructureMismatchError, match="embed"):
        restore(tmp_path, live)
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


def test_shards_that_reach_into_each_other_or_into_a_plain_tensor_are_refused(tmp_path: Path) -> None:
    states = [{"a": rows(WHOLE, rank, 2), "b": rows(WHOLE + 50, rank, 2), "plain": torch.ones(40)} for rank in range(2)]
    save(tmp_path, states)
    buffers = [torch.zeros(40) for _ in range(2)]
    live: list[dict[str, Any]] = []
    for other in ("b", "plain"):
        live = [{"a": slice_of(each, 0, 20, 4 * rank), "plain": each} for rank, each in enumerate(buffers)]
        if other == "b":
            live = [
                {"a": each["a"], "b": slice_of(buffer, 15, 35, 4 * rank), "plain": torch.zeros(40)}
                for rank, (each, buffer) in enumerate(zip(live, buffers, strict=True))
            ]
        with pytest.raises(StructureMismatchError, match="share memory") as caught:
            restore(tmp_path, live, exclude="none" if other == "b" else "b")
        assert all(name in str(caught.value) for name in ("a", other)) and not any(each.any() for each in buffers)


# --- tied shards, whatever ranks hold of them -------------------------------------------------------------------------

LINE = torch.arange(8.0)


def at(local: torch.Tensor, offset: int, length: int = 8) -> Any:
    """A local tensor, as it is, as a part of a tensor of ``length`` elements."""
    x = local.as_subclass(Piece)
    x.global_shape, x.global_offsets = (length,), [(offset,)]
    x.local_sizes, x.local_offsets = [tuple(local.shape)], [(0,)]
    return x


def test_one_memory_at_two_places_of_equal_tensors_is_no_tie(tmp_path: Path) -> None:
    states = []
    for rank in range(2):
        local = torch.arange(4.0) + 10 * rank
        states.append({"a": at(local, 4 * rank), "b": at(local[:], 4 * (1 - rank))})
    save(tmp_path, states)
    loaded = deeppart.load(tmp_path)
    assert loaded["a"].tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
    assert loaded["b"].tolist() == [10, 11, 12, 13, 0, 1, 2, 3]


def diverged() -> list[dict[str, Any]]:
    states = []
    for rank in range(2):
        local = LINE.clone()
        local[0] += rank
        states.append({"a": at(local, 0), "b": at(local[:], 0)})
    return states


@pytest.mark.filterwarnings("ignore::deeppart.DeeppartWarning")
@pytest.mark.parametrize("tied", [True, False])
def test_replicas_that_differ_come_back_tied_or_not(tmp_path: Path, tied: bool) -> None:
    save(tmp_path, diverged())
    live = []
    for _ in range(2):
        local = torch.zeros(8)
        live.append({"a": at(local, 0), "b": at(local[:] if tied else torch.zeros(8), 0)})
    assert restore(tmp_path, live) == 1
    for rank, state in enumerate(live):
        assert all(state[name].tolist() == [rank, 1, 2, 3, 4, 5, 6, 7] for name in "ab"), rank
        loaded = deeppart.load(tmp_path, rank=rank)
        assert all(loaded[name].tolist() == [rank, 1, 2, 3, 4, 5, 6, 7] for name in "ab"), rank


def test_tied_on_one_rank_alone(tmp_path: Path) -> None:
    def states(scale: float) -> list[dict[str, Any]]:
        found = []
        for rank in range(2):
            local = scale * LINE[4 * rank : 4 * rank + 4]
            found.append({"a": at(local, 4 * rank), "b": at(local.clone() if rank else local[:], 4 * rank)})
        return found

    save(tmp_path, states(1.0))
    live = states(0.0)
    assert restore(tmp_path, live) == 1
    assert [state[name].tolist() for state in live for name in "ab"] == [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]] * 2


def test_shards_that_overlap_themselves_are_refused(tmp_path: Path) -> None:
    whole = torch.arange(6.0).view(2, 3)
    save(tmp_path, [{"w": piece(whole, Box.whole((2, 3)))}])
    live = {"w": piece(whole, Box.whole((2, 3)))}
    odd = torch.zeros(20).as_strided((2, 3), (2, 1)).as_subclass(Piece)
    for name in ("global_shape", "global_offsets", "local_sizes", "local_offsets"):
        setattr(odd, name, getattr(live["w"], name))
    with pytest.raises(StateError, match="several elements at one address"):
        restore(tmp_path, [{"w": odd}])


def test_another_whole_shape_is_noticed_at_the_next_checkpoint(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        ck.checkpoint({"w": at(LINE.clone(), 0)}, 1).wait("persistent")
        with pytest.raises(StructureMismatchError, match="of 9 elements, 8 are in a shard"):
            ck.checkpoint({"w": at(LINE.clone(), 0, 9)}, 2)


W = torch.arange(200.0).view(20, 10) + 1


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("view", [W[10:20, 5:], W[10:], W.T], ids=["box", "rows", "transposed"])
@pytest.mark.parametrize("of_view", [False, True], ids=["the owner", "the view"])
def test_shards_of_a_view_or_of_what_it_is_a_view_of_are_refused(
    tmp_path: Path, view: torch.Tensor, of_view: bool, ranks: int
) -> None:
    """Nothing has the bytes of the view as such: it would stay as it was."""
    save(tmp_path, [{"w": W, "view": view}])
    plain, split = (W, view) if of_view else (view, W)
    names = ("w", "view") if of_view else ("view", "w")
    zeros = [(torch.zeros_like(plain), rows(split * 0, rank, ranks)) for rank in range(ranks)]
    live = [dict(zip(names, each, strict=True)) for each in zeros]
    with pytest.raises(StructureMismatchError, match="saved as a view"):
        restore(tmp_path, live)
    assert not any(each[name].any() for each in live for name in names)
    restore(tmp_path, live, exclude="view")
    whole = live[0]["w"]
    assert torch.equal(whole, W if of_view else rows(W, 0, ranks))


@pytest.mark.parametrize("seed", range(12))
def test_one_tensor_under_three_names_some_of_them_split(tmp_path: Path, seed: int) -> None:
    """Of which one has the bytes in the checkpoint, the live states know nothing; nor what other ranks have split."""
    rng = random.Random(seed)
    saving, ranks = rng.choice([1, 2]), rng.choice([1, 2, 3])
    save(tmp_path, [dict.fromkeys("abc", W) | {"d": W + 1}] * saving, compression=rng.choice(["none", "zstd"]))

    def live(rank: int) -> dict[str, Any]:
        return {name: rows(W * 0, rank, ranks) if rng.random() < 0.5 else torch.zeros(20, 10) for name in "abcd"}

    states = [live(rank) for rank in range(ranks)]
    restore(tmp_path, states, on_nodes=rng.random() < 0.5)
    for rank, state in enumerate(states):
        for name, found in state.items():
            expected = W + (name == "d")
            split = rows(expected, rank, ranks) if isinstance(found, Piece) else expected
            assert torch.equal(found.as_subclass(torch.Tensor), split.as_subclass(torch.Tensor)), (rank, name)
