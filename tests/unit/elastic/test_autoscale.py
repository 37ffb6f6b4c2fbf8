"""Batches that follow the training: of times and noise that are known, the batch that is best for them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deeppart.elastic import ElasticDataLoader, NoiseScale, Norms, Progress
from deeppart.elastic.autoscale import make_bounds
from deeppart.elastic.goodput import Bounds, Goodput, GradientNoise, Throughput, best_step
from deeppart.elastic.profile import read_profile
from deeppart.elastic.steps import Batch
from deeppart.errors import ConfigError
from tests.unit.elastic.jobs import Alone, numbers

LENGTH, BASE = 20_000, 16
TRUE = Throughput(0.02, 0.0005, 0.0, 0.0, 0.0, 0.0, 1.0)  # a step of m samples: 20 ms + m times 0.5 ms


class Model:
    """A model whose noise is what a test says."""

    def __init__(self, squared: float, variance: float) -> None:
        self.noise = NoiseScale(1)
        norms = Norms(mean_of_parts=(squared + 2 * variance,), of_mean=(squared + variance,), parts=2, scale=1.0)
        self.noise.update(norms)


class Training:
    """One rank that trains for a while, on a clock that the steps themselves advance."""

    def __init__(self, model: Any, **options: Any) -> None:
        self.now_s = 0.0
        self.progress = Progress()
        self.progress.trained = model
        self.loader = ElasticDataLoader(numbers(LENGTH), BASE, progress=self.progress, ranks=Alone())
        self.loader._clock = lambda: self.now_s
        self.loader.autoscale_batch_size(512, every=20, **options)
        self.batches: list[int] = []
        self.seen: Counter[int] = Counter()

    def epoch(self) -> None:
        for (batch,) in self.loader:
            self.now_s += float(TRUE.step_s(1, 1, len(batch)))
            self.batches.append(len(batch))
            self.seen.update(batch.tolist())


@pytest.mark.parametrize("variance", [0.5, 20.0, 4000.0])
def test_the_batch_becomes_the_best_for_the_noise(variance: float, tmp_path: Path) -> None:
    """Little noise: hardly more than the first batch; nothing but noise: as many as are allowed."""
    training = Training(
        Model(1.0, variance), local_bounds=(None, 256), gradient_accumulation=True, profile_dir=tmp_path
    )
    training.epoch()
    assert training.seen == Counter(range(LENGTH))
    bounds = Bounds(BASE, 512, 256)
    best = best_step(Goodput(TRUE, GradientNoise(1.0, variance, BASE)), 1, 1, bounds)
    goodput = Goodput(TRUE, GradientNoise(1.0, variance, BASE))
    reached = training.loader.batch.size
    assert goodput.of_batch(1, 1, reached, reached, 0) >= 0.9 * goodput.of_batch(1, 1, best.batch, best.batch, 0)
    assert (reached > 2 * BASE) == (variance > 1)
    assert len(set(training.batches[:-1])) <= 6, "it changes for more than 5 % only, not at every look"
    profile = read_profile(tmp_path)
    assert profile is not None and profile.bounds == bounds and profile.noise is not None
    assert {timed.local_batch for timed in profile.times} <= set(training.batches)


def test_nothing_changes_before_the_noise_is_known() -> None:
    training = Training(None)
    training.epoch()
    assert set(training.batches) == {BASE} and training.seen == Counter(range(LENGTH))


def test_what_was_measured_is_gone_on_with() -> None:
    training = Training(Model(1.0, 20.0))
    training.epoch()
    saved = training.progress.state_dict()
    later = Training(None)
    later.progress.load_state_dict(saved)
    assert later.loader.batch == training.loader.batch and later.progress.state_dict() == saved


@pytest.mark.parametrize(
    ("most", "local", "accumulate"),
    [(8, None, False), (64, (20, 10), False), (64, (None, 3), False), (16, (8, 16), False), (64, (0, 4), True)],
)
def test_bounds_that_no_batch_fits_are_named(most: int, local: Any, accumulate: bool) -> None:
    """16 samples on 4 ranks."""
    with pytest.raises(ConfigError, match="no batch fits these bounds") as caught:
        make_bounds(Batch(16), 4, most, local, accumulate=accumulate)
    assert "16 samples" in str(caught.value) and "4 ranks" in str(caught.value)


def test_what_does_not_fit_a_rank_at_once_is_accumulated() -> None:
    loader = ElasticDataLoader(numbers(64), 16, progress=Progress(), ranks=Alone())
    loader.autoscale_batch_size(64, (None, 5), gradient_accumulation=True)
    assert loader.batch == Batch(16, 3) and [len(batch) for (batch,) in loader] == [4] * 16
    with pytest.raises(ConfigError, match="already"):
        loader.autoscale_batch_size(64)
