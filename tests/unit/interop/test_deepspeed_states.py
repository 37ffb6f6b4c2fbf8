"""State dicts as tensors and a text: they come back as they were, and nothing else does."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch

from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.interop.deepspeed_states import put_together, take_apart
from deeppart.testing import difference

STATES: dict[str, Any] = {
    "module": {"weight": torch.arange(6.0).view(2, 3), 7: [torch.tensor(1), (torch.ones(2), None)]},
    "param_shapes": [OrderedDict(weight=torch.Size([2, 3]))],
    "marked": [("deeppart:tensor", 0), ("deeppart:tuple", ()), ("deeppart:object", "LossScaler", {})],
    "small": (1, 2.5, "x", True, ()),
}


def test_they_come_back_as_they_were() -> None:
    file = take_apart(STATES, "x")
    assert [each.shape for each in file["tensors"]] == [(2, 3), (), (2,)]
    expected = STATES | {"param_shapes": [{"weight": torch.Size([2, 3])}]}
    assert difference(expected, put_together(file, "x")) is None


def test_an_object_is_refused_with_its_path() -> None:
    with pytest.raises(UnsupportedLeafError, match="x/a/0"):
        take_apart({"a": [object()]}, "x")


def test_a_class_that_is_not_known_is_refused_by_name() -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfigError

    with pytest.raises(UnsupportedLeafError, match="DeepSpeedConfigError"):
        take_apart({"a": DeepSpeedConfigError()}, "x")


def test_objects_of_deepspeed_come_back() -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    scaler = DynamicLossScaler(16.0, 1000, 1.0, 2, False)
    scaler.cur_iter = 5
    states = {"scaler": scaler, "stage": ZeroStageEnum.gradients, "at": fragment_address(numel=3, start=4)}
    found = put_together(take_apart(states, "x"), "x")
    assert type(found["scaler"]) is DynamicLossScaler and vars(found["scaler"]) == vars(scaler)
    assert found["stage"] is ZeroStageEnum.gradients and found["at"] == states["at"]


@pytest.mark.parametrize("outline", [("deeppart:tensor", 1), ("deeppart:tensor", "0"), ("deeppart:tensor",)])
def test_another_text_is_damage(outline: Any) -> None:
    from deeppart.interop.training_state import pack

    with pytest.raises(CorruptFileError):
        put_together({"tensors": [torch.ones(1)], "rest": pack([outline], "x")}, "x")
