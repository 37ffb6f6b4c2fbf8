"""What to give to restore where an optimizer is not as it was saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import deeppart
from deeppart.errors import DeeppartWarning, StructureMismatchError


class Training:
    """A model and its optimizer, which may have stepped."""

    def __init__(self, *, stepped: bool) -> None:
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        if stepped:
            self.model(torch.ones(1, 3)).sum().backward()
            self.optimizer.step()

    def state(self, how: str) -> dict[str, Any]:
        if how == "names":
            return {"model": self.model, "train": {"opt": get_optimizer_state_dict(self.model, self.optimizer)}}
        if how == "numbers":
            return {"model": self.model, "train": {"opt": self.optimizer.state_dict()}}
        return {"model": self.model, "train": {"opt": self.optimizer}}


def restored(root: Path, saved: dict[str, Any], live: dict[str, Any]) -> None:
    with deeppart.Checkpointer(persistent_dir=root) as ck:
        ck.checkpoint(saved, 1).wait()
    with deeppart.Checkpointer(persistent_dir=root) as ck:
        ck.restore(live)


@pytest.mark.parametrize("saved", ["object", "numbers"])
def test_names_where_numbers_were_saved(tmp_path: Path, saved: str) -> None:
    with pytest.raises(StructureMismatchError, match="has the optimizer itself at train/opt, whose state numbers"):
        restored(tmp_path, Training(stepped=True).state(saved), Training(stepped=True).state("names"))


@pytest.mark.parametrize("live", ["object", "numbers"])
def test_numbers_where_names_were_saved(tmp_path: Path, live: str) -> None:
    with pytest.raises(StructureMismatchError, match=r"what get_optimizer_state_dict\(\) gave, which names"):
        restored(tmp_path, Training(stepped=True).state("names"), Training(stepped=True).state(live))


def test_a_new_optimizer_takes_names_in_the_order_of_its_parameters(tmp_path: Path) -> None:
    """As torch's own load_state_dict does."""
    saved, live = Training(stepped=True), Training(stepped=False)
    restored(tmp_path, saved.state("names"), live.state("object"))
    moments = [[each.optimizer.state[x]["exp_avg"] for x in each.model.parameters()] for each in (saved, live)]
    assert all(torch.equal(one, other) for one, other in zip(*moments, strict=True))


def test_one_that_has_stepped_where_a_new_one_was_saved(tmp_path: Path) -> None:
    with pytest.raises(
        StructureMismatchError, match="had not stepped when it was saved, and the live one has"
    ) as caught:
        restored(tmp_path, Training(stepped=False).state("object"), Training(stepped=True).state("object"))
    assert "no keys there (checkpoint)" in str(caught.value)


@pytest.mark.parametrize("how", ["object", "names", "numbers"])
def test_what_fits_needs_no_advice(tmp_path: Path, how: str) -> None:
    live = Training(stepped=True)
    restored(tmp_path, Training(stepped=True).state(how), live.state(how))


def test_what_nobody_takes_is_told(tmp_path: Path) -> None:
    """A scheduler that is forgotten in the state: its learning rate would be wrong, without a word."""
    training = Training(stepped=True)
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 1)
    live = Training(stepped=True).state("object")
    with pytest.warns(DeeppartWarning, match=r"left in the checkpoint, .* no such key: scheduler\."):
        restored(tmp_path / "beside", training.state("object") | {"scheduler": scheduler}, live)
    assert "scheduler" not in live
    live["more"] = {"n": 0}
    with pytest.warns(DeeppartWarning, match=r"has nothing at more/scheduler \(StepLR\): .* is a dict now"):
        saved = training.state("object") | {"more": {"scheduler": scheduler, "n": 1}}
        restored(tmp_path / "inside", saved, live)
    assert live["more"]["scheduler"]["last_epoch"] == 0


def test_plain_values_that_come_back_are_not_told(tmp_path: Path) -> None:
    training, live = Training(stepped=True), Training(stepped=True)
    restored(tmp_path, training.state("object") | {"step": 3, "best": {"loss": 0.5}}, live.state("object"))
