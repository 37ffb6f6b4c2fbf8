"""Every rank sees the same before it goes on.

Run inside mpirun (``make test-mpi``).
"""

from __future__ import annotations

import pytest

from deeppart.comm import Comm, connect
from deeppart.comm.agreement import agree, raise_together
from deeppart.errors import RemoteRankError, StateError

pytestmark = pytest.mark.mpi(min_size=2)

LIMIT_S = 100.0


@pytest.fixture(scope="module")
def comm() -> Comm:
    return connect(None, LIMIT_S)


def test_agreement(comm: Comm) -> None:
    agreed = agree(comm, {"same": 5, "other": comm.rank}, {"flag": comm.rank}, "test", LIMIT_S)
    assert agreed.differing == {"other"} and agreed.flags == {"flag": comm.size - 1}
    raise_together(comm, None, "test", LIMIT_S)
    with pytest.raises(StateError if comm.rank == 1 else RemoteRankError, match="what is wrong"):
        raise_together(comm, StateError("what is wrong") if comm.rank == 1 else None, "test", LIMIT_S)
