"""Every rank sees the same before it goes on.

Run inside mpirun (``make test-mpi``).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deeppart.comm import Comm, agree, raise_together, together
from deeppart.errors import RemoteRankError, StateError
from tests.mpi.comm.limits import LIMIT_S

pytestmark = pytest.mark.mpi(min_size=2)


def test_agreement(comm: Comm) -> None:
    agreed = agree(comm, {"same": 5, "other": comm.rank}, {"flag": comm.rank}, "test", LIMIT_S)
    assert agreed.differing == {"other"} and agreed.flags == {"flag": comm.size - 1}
    raise_together(comm, None, "test", LIMIT_S)
    with pytest.raises(StateError if comm.rank == 1 else RemoteRankError, match="what is wrong"):
        raise_together(comm, StateError("what is wrong") if comm.rank == 1 else None, "test", LIMIT_S)


def fails_on(rank: int, failing: int, error: Exception) -> Callable[[], int]:
    """Something to do, which fails on one rank and returns ten times the rank on the others."""

    def do() -> int:
        if rank == failing:
            raise error
        return 10 * rank

    return do


@pytest.mark.parametrize("last", [False, True])
def test_an_error_of_the_library_ends_it_on_all_ranks(comm: Comm, last: bool) -> None:
    failing = comm.size - 1 if last else 0
    own = StateError("what is wrong", todo="mend it")
    with pytest.raises(StateError if comm.rank == failing else RemoteRankError) as caught:
        together(comm, fails_on(comm.rank, failing, own), "it failed", ("the test", LIMIT_S))
    if comm.rank == failing:
        assert caught.value is own, "as it is"
    else:
        assert caught.value.summary == f"the test: refused by rank {failing}"
        assert "what is wrong" in str(caught.value.found) and "it failed" not in str(caught.value)
        assert "no rank has saved or changed anything" in str(caught.value.todo)
