"""What is left alone as a whole where ranks match a step together.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from tests.mpi.state.apart_states import config, save

pytestmark = pytest.mark.mpi(min_size=4)


def generators(seed: int) -> tuple[dict[str, Any], Any, random.Random, np.random.RandomState]:
    """A state with generators, and these; half of what they hold is the same on all ranks."""
    generator = np.random.default_rng(seed)
    generator.integers(1 << 30, dtype=np.uint32)  # half of a number is left over
    plain, legacy = random.Random(seed), np.random.RandomState(seed)
    legacy.randint(5)
    state: dict[str, Any] = {"numpy": generator.bit_generator.state, "legacy": legacy.get_state(legacy=True)}
    state |= {"plain": plain.getstate(), "list": [seed, 7, torch.full((3,), float(seed)), torch.ones(2)], "step": 7}
    return state, generator, plain, legacy


def saved_generators(rank: int) -> dict[str, Any]:
    return generators(rank)[0]


def draws_after_drop(comm: Any, directory: Path, has_state: bool) -> Any:
    live, generator, plain, legacy = generators(100 + comm.rank)
    if not has_state:
        live = dict.fromkeys(("numpy", "legacy", "plain", "list"))
    with deeppart.Checkpointer(config(directory), comm) as ck, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert ck.restore(live, per_rank="drop") == 2
    assert live["step"] == 7
    if not has_state:
        return live, [str(each.message) for each in caught]
    expected = generator.random(), plain.random(), legacy.random_sample()
    generator.bit_generator.state = live["numpy"]
    plain.setstate(live["plain"])
    legacy.set_state(live["legacy"])
    return expected == (generator.random(), plain.random(), legacy.random_sample())


def test_half_of_a_generator_is_not_restored(run_on: Any, shared_path: Path) -> None:
    """What is equal on all ranks within it came from the checkpoint, once: then all ranks drew the same."""
    run_on(2, save, shared_path, saved_generators)
    assert run_on(3, draws_after_drop, shared_path, True) == [True] * 3
    for live, told in run_on(3, draws_after_drop, shared_path, False):
        assert (live["numpy"], live["legacy"], live["plain"]) == (None, None, None)
        assert live["list"][:3] == [None, 7, None] and live["list"][3].tolist() == [1, 1]
        assert len(told) <= 1 and all("list/0, numpy, legacy, plain" in text for text in told), told
