"""Leaves that share memory, of which one is asked for: no byte changes but those that are its own, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import DeeppartError
from tests.unit.sharded_states import restore, save

pytestmark = pytest.mark.usefixtures("working_directory")


@pytest.fixture
def ck(tmp_path: Path) -> Iterator[deeppart.Checkpointer]:
    with deeppart.Checkpointer(persistent_dir=tmp_path / "ckpt", timeout=30.0) as checkpointer:
        yield checkpointer


@pytest.mark.parametrize("how", [{"exclude": "big"}, {"keys": "view"}, {"keys": "view", "exclude": "big"}])
@pytest.mark.parametrize("kind", ["rows", "a column", "another dtype"])
def test_of_an_excluded_owner_no_byte_changes_but_those_of_the_view(
    ck: deeppart.Checkpointer, how: dict[str, Any], kind: str
) -> None:
    def state(value: float) -> dict[str, torch.Tensor]:
        big = torch.arange(24.0).view(6, 4) + value
        view = {"rows": big[2:4], "a column": big[:, 1], "another dtype": big[1].view(torch.int32)}[kind]
        return {"big": big, "view": view, "beside": torch.full((3,), value)}

    saved, live = state(100), state(0)
    ck.checkpoint(saved, 1).wait(timeout=30)
    expected = state(0)
    expected["view"].copy_(saved["view"])
    big, view = live["big"], live["view"]
    ck.restore(live, **how)
    assert live["big"] is big and live["view"] is view
    assert torch.equal(big, expected["big"]), "all else in it is as it was"
    assert torch.equal(view, saved["view"]) and view.data_ptr() >= big.data_ptr()
    assert live["beside"].tolist() == ([100.0] * 3 if "keys" not in how else [0.0] * 3)


def test_a_view_that_is_excluded_gets_the_bytes_of_what_is_asked_for(ck: deeppart.Checkpointer) -> None:
    big = torch.arange(6.0)
    ck.checkpoint({"big": big, "view": big[2:4]}, 1).wait(timeout=30)
    other = torch.zeros(6)
    live = {"big": other, "view": other[2:4]}
    ck.restore(live, exclude="view")
    assert other.tolist() == big.tolist() and live["view"].data_ptr() == other[2:].data_ptr()


def test_views_of_each_others_rows_that_were_saved_as_two(ck: deeppart.Checkpointer) -> None:
    buffer = torch.arange(6.0)
    ck.checkpoint({"a": buffer[:4], "b": buffer[2:]}, 1).wait(timeout=30)
    live_buffer = torch.zeros(6)
    ck.restore({"a": live_buffer[:4], "b": live_buffer[2:]}, exclude="a")
    assert live_buffer.tolist() == [0.0, 0.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.filterwarnings("ignore::deeppart.errors.PerRankNotice")
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("how", [{"exclude": "big"}, {"keys": "view"}], ids=str)
def test_on_several_ranks(tmp_path: Path, ranks: int, own: bool, how: dict[str, Any]) -> None:
    """Leaves of each rank's own, too, and on another number of ranks."""

    def state(value: float) -> dict[str, torch.Tensor]:
        big = torch.arange(6.0) + value
        return {"big": big, "view": big[2:4], "beside": torch.full((3,), value)}

    save(tmp_path, [state(100 + 50 * rank * own) for rank in range(2)])
    live = [state(0) for _ in range(ranks)]
    if own and ranks != 2:
        for per_rank in ("strict", "rank0", "drop", lambda path, old, rank, size: old[0]):
            with pytest.raises(DeeppartError, match=r"of each rank's own|of each of its 2 ranks"):
                restore(tmp_path, live, **how, per_rank=per_rank)
        assert all(each["big"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0] for each in live)
        return
    restore(tmp_path, live, **how)
    for rank, each in enumerate(live):
        begin = 102.0 + 50 * rank * own
        assert each["big"].tolist() == [0.0, 1.0, begin, begin + 1, 4.0, 5.0], rank
        assert each["view"].data_ptr() == each["big"][2:].data_ptr()


@pytest.mark.filterwarnings("ignore::deeppart.PerRankNotice")
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_one_of_two_names_of_a_leaf(tmp_path: Path, own: bool) -> None:
    def state(value: float) -> dict[str, torch.Tensor]:
        weight = torch.arange(6.0) + value
        return {"a": weight, "b": weight}

    save(tmp_path, [state(100 + 50 * rank * own) for rank in range(2)])
    live = [{"b": torch.zeros(6)} for _ in range(2)]
    restore(tmp_path, live, keys="b")
    assert [each["b"][0].item() for each in live] == [100.0, 150.0 if own else 100.0]
