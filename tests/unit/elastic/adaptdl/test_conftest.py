"""What runs functions on replicas notices what goes wrong in them."""

from __future__ import annotations

import os
import time

import pytest

from deeppart.elastic.adaptdl.conftest import elastic_multiprocessing
from deeppart.elastic.adaptdl.env import num_replicas, num_restarts, replica_rank


def test_sizes_are_as_it_returns_them() -> None:
    @elastic_multiprocessing
    def job(expected: list[int]) -> int:
        assert num_replicas() == expected[num_restarts()]
        return [*expected, 0][num_restarts() + 1]

    job([1, 3, 2])


def test_a_replica_that_is_killed_fails_the_test_at_once() -> None:
    @elastic_multiprocessing
    def job() -> int:
        if num_restarts() == 1 and replica_rank() == 1:
            os.kill(os.getpid(), 9)
        elif num_restarts() == 1:
            time.sleep(60)  # as one that waits for the other
        return 2

    with pytest.raises(AssertionError, match="replica 1 ended with exit code -9"):
        job()


def test_replicas_that_disagree() -> None:
    @elastic_multiprocessing
    def job() -> int:
        return 2 if num_restarts() == 0 else replica_rank()

    with pytest.raises(AssertionError, match="different numbers"):
        job()
