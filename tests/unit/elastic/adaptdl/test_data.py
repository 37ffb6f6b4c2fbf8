"""Epochs and loaders by AdaptDL's names: where they go on, and on which batches.

Whole scripts, which are told to end and go on with other replicas: tests/elastic/test_adaptdl.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from deeppart.elastic import progress
from deeppart.elastic.adaptdl import checkpoint
from deeppart.elastic.adaptdl import torch as adl
from deeppart.errors import ConfigError
from tests.unit.elastic.adaptdl.conftest import forget_all


def loader_of(length: int, batch: int, **options: Any) -> adl.AdaptiveDataLoader:
    return adl.AdaptiveDataLoader(TensorDataset(torch.arange(length)), batch, **options)


# --- epochs -----------------------------------------------------------------------------------------------------------


def test_a_job_goes_on_in_the_epoch_that_it_was_in(directory: Path) -> None:
    for number in adl.remaining_epochs_until(5):
        assert number == adl.current_epoch() == adl.finished_epochs()
        if number == 3:
            checkpoint.save_all_states()
    assert adl.current_epoch() is None and adl.finished_epochs() == 5
    forget_all()
    assert adl.finished_epochs() == 3 and list(adl.remaining_epochs_until(5)) == [3, 4]


# --- loops over data --------------------------------------------------------------------------------------------------


def test_which_loader_is_the_current_one() -> None:
    loader = loader_of(4, 2)
    assert (loader.batch_size, loader.current_batch_size, loader.current_local_bsz) == (2, None, None)
    for _ in loader:
        assert adl.current_dataloader() is loader and loader.is_optim_step() and not loader.is_accum_step()
        for make in (adl.Accumulator, lambda: loader_of(4, 2)):
            with pytest.raises(ConfigError, match="within a loop"):
                make()
    assert adl.current_dataloader() is None


class Model:
    """As a model that says what the training is worth."""

    def __init__(self) -> None:
        self.effective_steps = 0.0
        self.noise = Model

    known = False


def test_a_job_goes_on_in_a_further_pass_of_a_loop(directory: Path) -> None:
    samples = []
    for run in range(2):
        loader, model = loader_of(20, 4), Model()
        progress.trained = model
        loader.autoscale_batch_size(8)
        model.effective_steps = run * 3.5
        for _ in adl.remaining_epochs_until(1):
            for (batch,) in loader:
                samples += batch.tolist()
                model.effective_steps += 0.5
                if run == 0 and len(samples) == 28:
                    checkpoint.save_all_states()
                    break
            if run == 0:
                break
        forget_all()
    assert samples == [*range(20)] * 2
