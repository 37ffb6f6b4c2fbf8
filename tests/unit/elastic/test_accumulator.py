"""Sums that survive restarts; between ranks: tests/elastic/test_changing_sizes.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from deeppart.elastic import Accumulator, ElasticDataLoader, Progress
from deeppart.errors import ConfigError
from tests.unit.elastic.jobs import Alone, numbers


def test_numbers_tensors_and_arrays_are_added() -> None:
    sums = Accumulator(progress=Progress(), ranks=Alone())
    weight = torch.ones(1, requires_grad=True)
    for _ in range(3):
        sums["loss"] += (weight * 0.1).sum()
        sums["hits"] += 2
        sums.update(seen=np.int64(4), share=np.array([0.5]))
        sums -= {"hits": torch.tensor(1)}
        sums += {"seen": 1}
        sums.subtract(seen=1)
    assert dict(sums) == {} and "loss" not in sums and len(sums) == 0 and sums.get("loss", 5) == 5
    with pytest.raises(KeyError):
        del sums["loss"]
    with sums.synchronized():
        assert dict(sums) == {"loss": pytest.approx(0.3, rel=1e-7), "hits": 3, "seen": 12, "share": 1.5}
        assert type(sums["hits"]) is int and type(sums["loss"]) is float
        sums["mean"] = sums["loss"] / sums["seen"]
        sums.update(new=2)
        sums.subtract(new=3)
        with pytest.raises(KeyError):
            sums["newer"] += 1
        del sums["hits"]
    with sums.synchronized():
        assert set(sums) == {"loss", "seen", "share", "mean", "new"} and sums.get("new") == -1


@pytest.mark.parametrize("value", [torch.zeros(2), "1", [1], None, 1j])
def test_what_cannot_be_added_is_named(value: Any) -> None:
    sums = Accumulator(progress=Progress(), ranks=Alone())
    with pytest.raises(ConfigError, match="cannot be added up") as caught:
        sums["loss"] += value
    assert "'loss'" in str(caught.value)
    with pytest.raises(ConfigError, match="only be added to"):
        sums["loss"] = 1


def test_fillers_are_not_counted() -> None:
    """Three samples on two ranks in steps of two: the second rank fills in at last."""
    progress = Progress()
    loader = ElasticDataLoader(numbers(3), 2, progress=progress, ranks=Alone(1, 2), shuffle=False)
    sums = Accumulator(progress=progress, ranks=Alone())
    for (batch,) in loader:
        sums["seen"] += len(batch)
        sums["sum"] += batch.sum()
    with sums.synchronized():
        assert dict(sums) == {"seen": 1, "sum": 1}


def test_a_job_that_goes_on_finds_the_sums_and_what_blocks_had_found() -> None:
    def train(progress: Progress, stop_at: int | None) -> tuple[list[float], dict[str, Any] | None]:
        loader = ElasticDataLoader(numbers(4), 1, progress=progress, ranks=Alone(), shuffle=False)
        checks = ElasticDataLoader(numbers(2), 1, progress=progress, ranks=Alone(), shuffle=False)
        sums = Accumulator(progress=progress, ranks=Alone())
        means: list[float] = []
        step = 0
        for _ in progress.remaining_epochs_until(2):
            for each in (loader, checks):
                for (batch,) in each:
                    sums.update(value=batch.sum(), seen=1)
                    step += 1
                    if step == stop_at:
                        return means, progress.state_dict()
                with sums.synchronized():
                    means.append(sums["value"] / sums["seen"])
                    sums.clear()
        return means, None

    whole, _ = train(Progress(), None)
    assert whole == [1.5, 0.5, 1.5, 0.5]
    for place in range(1, 12):
        _, state = train(Progress(), place)
        going_on = Progress()
        assert state is not None
        going_on.load_state_dict(state)
        means, _ = train(going_on, None)
        # Blocks of the epoch that was under way have their values again; those of epochs that are over are not run.
        assert means == whole[-len(means) :] and len(means) == (4 if place <= 6 else 2), place


def test_no_checkpoint_in_the_middle_of_a_block() -> None:
    progress = Progress()
    sums = Accumulator(progress=progress, ranks=Alone())
    with sums.synchronized(), pytest.raises(ConfigError, match="after the block"):
        progress.state_dict()
