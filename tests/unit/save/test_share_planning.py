"""This rank's share: all of it is laid out once, and a share that cannot be planned says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deeppart.comm import SingleComm
from deeppart.save import share_planning
from deeppart.save.share_planning import plan_share
from deeppart.state.capture.layout import ShareLayout
from deeppart.state.compare.state_layout import derive
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.globs import Replication

KAPPA = 1e5
WITHIN = ("checkpoint(step=1)", 20.0)


def planned(state: Any, own: tuple[int, ...] = (), *, all_tell: bool = False) -> ShareLayout | str:
    flat = flatten(state)
    layout = derive(flat, Replication("auto"))
    layout.per_rank[list(own)] = True
    return plan_share(SingleComm(), layout, flat, KAPPA, WITHIN, all_tell=all_tell)


@pytest.mark.parametrize("all_tell", [False, True])
def test_one_rank_gets_every_byte_once(all_tell: bool) -> None:
    share = planned({"a": torch.zeros(1000), "b": torch.zeros(3, dtype=torch.int64)}, all_tell=all_tell)
    assert isinstance(share, ShareLayout)
    assert share.nbytes == 4000 + 24 == sum(chunk.length for chunk in share.chunks)
    assert sorted(span["leaf"] for span in share.spans) == [0, 1]
    assert not any(chunk.per_rank for chunk in share.chunks)


def test_leaves_of_its_own_are_marked_and_lie_behind_the_shared_ones() -> None:
    share = planned({"a": torch.zeros(1000), "b": torch.zeros(500)}, own=(0,))
    assert isinstance(share, ShareLayout)
    assert [(chunk.length, chunk.per_rank) for chunk in share.chunks] == [(2000, False), (4000, True)]


def test_leaves_without_bytes_and_views_of_others_take_no_space() -> None:
    whole = torch.zeros(1000)
    share = planned({"a": whole, "b": whole[10:20], "c": torch.zeros(0)})
    assert isinstance(share, ShareLayout) and share.nbytes == 4000


def test_a_plan_that_fails_is_told_instead_of_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other ranks go on; they hear of it in the commit rounds."""

    def no_memory(*_: Any, **__: Any) -> Any:
        raise MemoryError("none left")

    monkeypatch.setattr(share_planning, "share_set", no_memory)
    assert planned({"a": torch.zeros(10)}) == "MemoryError: none left"
