"""Random generators, positions of data loaders, and small nested values as texts."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.interop.training_state import own_generator, pack, position, rng_state, seek, set_rng_state, unpack

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # by torchdata


def draw() -> tuple[Any, ...]:
    return random.random(), random.gauss(0, 1), float(np.random.rand()), np.random.randn(), torch.rand(2).tolist()


def test_generators_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    draw()  # leaves half of a pair of Gaussian numbers in Python's and in numpy's generator
    state = {"rng": rng_state()}
    with deeppart.Checkpointer(persistent_dir=str(tmp_path)) as checkpointer:
        checkpointer.checkpoint(state, step=1)
        expected = draw()
        fresh: dict[str, Any] = {"rng": {}}
        checkpointer.restore(fresh)
    set_rng_state(fresh["rng"])
    assert draw() == expected


class Stage(enum.Enum):
    TWO = 2


@dataclass
class Scaler:
    scale: float
    window: Any


def test_tensors_apart_and_objects_of_known_classes() -> None:
    tensors = list[torch.Tensor]()
    classes = {"Scaler": Scaler, "Stage": Stage}
    state = {"module": {7: [torch.ones(2, 3), (torch.tensor(1), None)]}, "at": [Scaler(2.0, torch.ones(1)), Stage.TWO]}
    text = pack(state, "x", tensors, classes)
    assert [each.shape for each in tensors] == [(2, 3), (), (1,)]
    found = unpack(text, "x", tensors, classes)
    assert found["module"][7][0].data_ptr() == tensors[0].data_ptr() and found["module"][7][1] == (tensors[1], None)
    assert type(found["at"][0]) is Scaler and found["at"][0].window is tensors[2] and found["at"][1] is Stage.TWO
    for known, some in ((classes, tensors[:1]), ({}, tensors)):
        with pytest.raises(CorruptFileError):
            unpack(text, "x", some, known)
    with pytest.raises(UnsupportedLeafError, match=r"Other(.|\n)*x/a/0"):
        pack({"a": [type("Other", (), {})()]}, "x", tensors, classes)


@pytest.mark.parametrize("value", [object(), torch.eye(2).to_sparse(), np.array([object()])])
def test_what_has_no_exact_encoding_is_refused_with_its_path(value: Any) -> None:
    with pytest.raises(UnsupportedLeafError, match="state/worker/0"):
        pack({"worker": [value]}, "state")


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        '["{}"]',
        '["{}",[[1]]]',
        '["{}",[[["[]",[]],1]]]',
        '["array",["torch","float32",[2]],"AAAA"]',
        '["array",["torch","pickle",[1]],"AAAA"]',
        '["array",["torch","float32",[-1]],""]',
        '["array",["torch","float32",[1]],"!"]',
        '["eval","1"]',
        "[" * 100_000,
    ],
)
def test_another_text_is_damage(text: str) -> None:
    with pytest.raises(CorruptFileError):
        unpack(text, "x")


# --- positions of data loaders ---


def stateful(data: Any, **how: Any) -> Any:
    module = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install 'deeppart[trainers]'")
    return module.StatefulDataLoader(data, batch_size=2, **how)


def test_a_loader_goes_on_with_the_same_batches() -> None:
    data = list(range(20))
    whole, resumed = (stateful(data, shuffle=True) for _ in range(2))
    for loader in (whole, resumed):
        own_generator(loader)
    batches = iter(whole)
    for _ in range(4):
        next(batches)
    saved = unpack(pack(position(whole), "x"), "x")
    rest = [batch.tolist() for batch in batches]
    seek(resumed, saved)
    assert [batch.tolist() for batch in resumed] == rest and len(rest) == 6
    assert [batch.tolist() for batch in whole] == [batch.tolist() for batch in resumed]  # and in the next epoch
