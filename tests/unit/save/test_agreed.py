"""What the steps of a save hand to each other: whatever one of them returns is enough for the next."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.comm import SingleComm
from deeppart.errors import CheckpointError, DeeppartError, UnsupportedLeafError
from deeppart.save.agreed import Agreed, Call
from deeppart.save.saver import Saver
from deeppart.state.capture.staging import Staging
from deeppart.state.tree.flat import FlatState

PERSISTENT = frozenset({"persistent"})


def nobody(*_: Any) -> None:
    raise AssertionError("one rank differs from no other")


@pytest.fixture
def saver(tmp_path: Path) -> Saver:
    return Saver(SingleComm(), deeppart.Config(str(tmp_path)), Staging(), nobody)


def test_a_call_is_named_as_the_user_wrote_it() -> None:
    call = Call(12, 3, PERSISTENT)
    assert call.name == "checkpoint(step=12)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        call.step = 13  # type: ignore[misc]


def test_look_agree_capture(saver: Saver) -> None:
    state = {"w": torch.arange(1000.0), "step": 1}
    flattened = saver.flatten(state)
    assert isinstance(flattened, FlatState)
    agreed = saver.agree(Call(1, 0, PERSISTENT), flattened, busy=False)
    assert isinstance(agreed, Agreed)
    assert agreed.flat is flattened and agreed.rank0 == (0, 0) and agreed.diverged == () and agreed.trailing is None
    assert [kind.shape for kind in agreed.layout.types] == [(1000,)]
    captured = saver.capture(agreed)
    assert captured.own_bytes == 0 and captured.deferred is None
    assert captured.staged.data.tobytes() == state["w"].numpy().tobytes()  # type: ignore[attr-defined]
    saver.let_go(agreed)
    assert flattened.data == [], "nothing of the state is kept"


def test_a_busy_rank_ends_the_call_before_anything_is_planned(saver: Saver) -> None:
    flattened = saver.flatten({"w": torch.zeros(10)})
    assert saver.agree(Call(1, 0, PERSISTENT), flattened, busy=True) is None
    again = saver.agree(Call(1, 0, PERSISTENT), saver.flatten({"w": torch.zeros(10)}), busy=False)
    assert again is not None and saver.capture(again).staged.layout.nbytes == 40


def test_what_look_found_is_raised_by_agree(saver: Saver) -> None:
    flattened = saver.flatten({"w": object()})
    assert isinstance(flattened, UnsupportedLeafError)
    with pytest.raises(UnsupportedLeafError) as raised:
        saver.agree(Call(1, 0, PERSISTENT), flattened, busy=False)
    assert raised.value is flattened
    refusal: DeeppartError = CheckpointError("refused before it looked")
    with pytest.raises(CheckpointError, match="refused before it looked"):
        saver.agree(Call(2, 0, PERSISTENT), refusal, busy=False)
