"""Channels of one session: they do not mix, and the last one closes the sockets."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.unit.comm.worlds import do, on_all, world


def test_channels_do_not_mix() -> None:
    with world(2) as comms:
        others: list[Any] = on_all(2, lambda rank: do(comms[rank], comms[rank].channel()))

        def run(rank: int) -> list[Any]:
            pair = [comms[rank], others[rank]] if rank else [others[rank], comms[rank]]
            here = {id(comm): np.zeros(1, dtype=np.uint8) for comm in pair}
            moves = [(comm, comm.send(np.full(1, comm is comms[rank], dtype=np.uint8), 1 - rank, 0)) for comm in pair]
            moves += [(comm, comm.receive_into(here[id(comm)], 1 - rank, 0)) for comm in reversed(pair)]
            for comm, operation in moves:
                do(comm, operation)
            return [int(here[id(comm)][0]) for comm in (comms[rank], others[rank])]

        assert on_all(2, run) == [[1, 0]] * 2
        for other in others:
            other.release()
            other.release()  # once more does nothing
        assert on_all(2, lambda rank: do(comms[rank], comms[rank].allgather(b""))) == [[b"", b""]] * 2
