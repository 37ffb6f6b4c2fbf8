"""Epochs and loaders by AdaptDL's names: where they go on, and on which batches.

Whole scripts, which are told to end and go on with other replicas: tests/elastic/test_adaptdl.py.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from deeppart.elastic import progress
from deeppart.elastic.adaptdl import checkpoint, env
from deeppart.elastic.adaptdl import torch as adl
from deeppart.errors import ConfigError
from tests.unit.elastic.adaptdl.conftest import forget_all
from tests.unit.elastic.adaptdl.replicas import elastic_multiprocessing


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


class Seen(checkpoint.State):
    """What all replicas have trained on."""

    def __init__(self) -> None:
        super().__init__("seen")
        self.counts: Counter[tuple[int, int]] = Counter()
        self.new: Counter[tuple[int, int]] = Counter()

    def sync(self) -> None:
        from deeppart.elastic.adaptdl import collective

        self.counts += collective.allreduce(self.new)
        self.new = Counter()

    def save(self, fileobj: Any) -> None:
        torch.save(dict(self.counts), fileobj)

    def load(self, fileobj: Any) -> None:
        self.counts = Counter(torch.load(fileobj))


def test_which_loader_is_the_current_one() -> None:
    loader = loader_of(4, 2)
    assert (loader.batch_size, loader.current_batch_size, loader.current_local_bsz) == (2, None, None)
    for _ in loader:
        assert adl.current_dataloader() is loader and loader.is_optim_step() and not loader.is_accum_step()
        for make in (adl.Accumulator, lambda: loader_of(4, 2)):
            with pytest.raises(ConfigError, match="within a loop"):
                make()
    assert adl.current_dataloader() is None


def test_every_sample_once_whatever_the_replicas() -> None:
    """98 samples, batches of 12 on 1, 3 and 2 replicas, whose workers are ahead."""

    @elastic_multiprocessing
    def job() -> int:
        adl.init_process_group("gloo")
        loader = loader_of(98, 12, shuffle=True, num_workers=2)
        seen = Seen()
        checkpoint.load_state(seen)
        sizes = [3, 2]
        for epoch in adl.remaining_epochs_until(2):
            for number, (batch,) in enumerate(loader):
                assert loader.current_batch_size == 12 and len(batch) <= (loader.current_local_bsz or 0)
                if loader.counted:
                    seen.new.update((epoch, sample) for sample in batch.tolist())
                if number == 3 and env.num_restarts() < len(sizes):
                    checkpoint.save_all_states()
                    return sizes[env.num_restarts()]
        seen.sync()
        assert seen.counts == Counter({(epoch, sample): 1 for epoch in range(2) for sample in range(98)})
        return 0

    job()


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
