"""Communicators between the ranks of this mpirun."""

from __future__ import annotations

import pytest

from deeppart.comm import Comm, connect, finish
from tests.mpi.comm.limits import LIMIT_S


@pytest.fixture(scope="module")
def comm() -> Comm:
    """All ranks."""
    return connect(None, LIMIT_S)


@pytest.fixture
def own_channel(comm: Comm) -> Comm:
    """A channel that a test may break."""
    return finish(comm, comm.channel(), "channel", LIMIT_S)
