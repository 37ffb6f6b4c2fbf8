"""The ranks of a restore: which one this is, and exchanges that come to an end."""

from __future__ import annotations

import pytest

from deeppart.comm.base import Operation
from deeppart.comm.single import SingleComm
from deeppart.errors import CommError, PeerTimeoutError
from deeppart.recovery.ranks import Ranks


def test_an_exchange_is_driven_to_its_end() -> None:
    ranks = Ranks(SingleComm(), (0,), 5.0)
    assert ranks.rank == 0 and ranks.threads == 1
    assert ranks.finish(ranks.comm.allgather(b"mine"), "asking") == [b"mine"]


@pytest.mark.parametrize("payload", [[], [b""], [b"one", b"", b"two"]])
def test_what_all_are_told_in_one_exchange(payload: list[bytes]) -> None:
    ranks = Ranks(SingleComm(), (0,), 5.0)
    assert ranks.share([[1, "a"], None], payload, "telling") == [([[1, "a"], None], b"".join(payload))]


def test_one_that_gets_no_further_ends_in_an_error_that_names_it() -> None:
    def stuck() -> Operation[None]:
        while True:
            yield False

    ranks = Ranks(SingleComm(), (0,), 0.1)
    with pytest.raises(PeerTimeoutError, match="asking: waited"):
        ranks.finish(stuck(), "asking")
    with pytest.raises(CommError, match="can no longer communicate"):
        ranks.finish(ranks.comm.allgather(b"mine"), "asking again")
