"""Sums, as AdaptDL's accumulator has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from deeppart.elastic.adaptdl import checkpoint, collective, env
from deeppart.elastic.adaptdl.conftest import elastic_multiprocessing
from deeppart.elastic.adaptdl.errors import UsageError
from deeppart.elastic.adaptdl.torch import Accumulator, remaining_epochs_until
from deeppart.elastic.adaptdl.torch.loops import AdaptiveDataLoaderHelper


def test_it_is_empty_outside_and_a_dict_within() -> None:
    collective.initialize()
    sums = Accumulator({"a": 1}, b=2)
    sums["a"] += 5
    sums.update(b=3, c=np.array([1.0, 2.0]))
    sums -= {"a": 1}
    sums += {"d": torch.tensor(4)}
    assert (len(sums), list(sums), "a" in sums, repr(sums)) == (0, [], False, "{}")
    with sums.synchronized(), sums.synchronized():
        assert (sums["a"], sums["b"], sums["c"].tolist(), int(sums["d"])) == (5, 5, [1.0, 2.0], 4)
        sums["mean"] = sums["a"] / 2
        del sums["d"]
        assert sorted(sums) == ["a", "b", "c", "mean"] and len(sums) == 4
        sums.clear()
    with sums.synchronized():
        assert not sums


def test_outside_a_sum_is_only_added_to() -> None:
    sums, others = Accumulator(), Accumulator()
    for wrong in (3, [1], None):
        with pytest.raises(TypeError, match="can only be added to"):
            sums["a"] = wrong
    with pytest.raises(UsageError, match="given to another one"):
        sums["a"] = others["a"]
    for way in (sums["a"].__add__, sums["a"].__sub__):
        with pytest.raises(TypeError, match="another one outside"):
            way(sums["b"])


def test_it_is_not_made_within_a_loop_over_data() -> None:
    with AdaptiveDataLoaderHelper().context(), pytest.raises(UsageError, match="within a loop"):
        Accumulator()


def test_a_block_that_was_over_finds_the_same_again_and_those_of_past_epochs_are_forgotten() -> None:
    @elastic_multiprocessing
    def job() -> int:
        collective.initialize()
        sums = Accumulator()
        ends = {0: (1, 3), 1: (2, 2)}.get(env.num_restarts())  # epoch, and on how many replicas it goes on
        for number in remaining_epochs_until(4):
            own = Accumulator()  # of this epoch
            own["x"] += env.replica_rank() + 1
            with own.synchronized():
                first = own["x"]
            sums["total"] += 1
            if ends is not None and number == ends[0]:
                with sums.synchronized():
                    assert sums["total"] >= 1
                checkpoint.save_all_states()
                names = [name for name in checkpoint._states if "accumulator" in name]
                assert names == ["adaptdl-accumulator-epochNone-0", f"adaptdl-accumulator-epoch{number}-0"]
                return ends[1]
            # An epoch that had been left after the block has what the replicas then have added.
            expected = {0: {0: 1}, 1: {1: 1}, 2: {2: 6, 3: 3}}[env.num_restarts()]
            assert first == expected[number], (env.num_restarts(), number, first)
        return 0

    job()


def test_sums_of_a_job_that_changes_its_size() -> None:
    @elastic_multiprocessing
    def job() -> int:
        collective.initialize()
        sums = Accumulator()
        sizes = [1, 3, 2]
        sums["n"] += 1
        if env.num_restarts() < 2:
            checkpoint.save_all_states()
            return sizes[env.num_restarts() + 1]
        with sums.synchronized():
            assert sums["n"] == sum(sizes)
        return 0

    job()


def test_where_there_is_no_directory_nothing_is_kept(directory: Path) -> None:
    collective.initialize()
    sums = Accumulator()
    with sums.synchronized():
        assert not sums
