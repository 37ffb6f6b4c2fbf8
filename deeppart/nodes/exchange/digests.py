"""Digests of the blocks of a parity set, as one of its members knows them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deeppart.comm.base import Comm, Operation, interleaved
from deeppart.nodes.exchange.memory import Bytes
from deeppart.plan.redundancy import ParitySet, Stripes

DIGEST_BYTES = 16
#: Of what was encoded, to those that sent it and to those that keep parity of it.
_SENDER_TAG, _KEEPER_TAG = 3, 4


class BlockDigests:
    """Digests of all rows, exchanged at the end: a message for each row takes longer than encoding it."""

    def __init__(self, which: ParitySet, stripes: Stripes, place: int) -> None:
        self._which, self._stripes, self._place = which, stripes, place
        k, m, rows = stripes.data_blocks, stripes.tolerate, stripes.rows
        #: Of all blocks of the stripes of which this member keeps parity, that which it encodes first.
        self._kept = np.zeros((m, rows, k + m, DIGEST_BYTES), dtype=np.uint8)
        #: Of this member's blocks that are not all zeros: as it has sent them, and as they were encoded.
        self._sent: dict[tuple[int, int], bytes] = {}
        self._encoded = np.zeros((k, rows, DIGEST_BYTES), dtype=np.uint8)

    def sent(self, row: int, block: int, digest: bytes) -> None:
        """A block of this member is sent to be encoded."""
        self._sent[block, row] = digest

    def encoded(self, row: int, digests: list[bytes]) -> None:
        """This member has encoded its stripe: data, then parity."""
        self._kept[0, row] = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, DIGEST_BYTES)

    def kept(self, row: int) -> npt.NDArray[np.uint8]:
        """Those that belong with the parity that this member keeps, shape (m, k + m, 16); complete at the end."""
        return self._kept[:, row]

    def exchange(self, comm: Comm) -> Operation[None]:
        """Tell the others, and hear from them."""
        moves = []

        def move(source: int, into: Bytes, to: int, what: Bytes, tag: int) -> None:
            moves.append(comm.receive_into(into.reshape(-1), self._which.members[source].rank, tag))
            moves.append(comm.send(what.reshape(-1), self._which.members[to].rank, tag))

        stripes, place, own = self._stripes, self._place, self._kept[0]
        for i in range(stripes.data_blocks):
            encoder, sender = stripes.stripe_of(place, i), stripes.source(place, i)
            move(encoder, self._encoded[i], sender, own[:, i], _SENDER_TAG)
        for j in range(1, stripes.tolerate):
            move(stripes.kept_stripe(place, j), self._kept[j], stripes.keeper(place, j), own, _KEEPER_TAG)
        yield from interleaved(moves)

    def is_encoded_as_sent(self) -> bool:
        """Whether what was encoded of this member's blocks are the bytes that it has digested."""
        return all(self._encoded[place].tobytes() == digest for place, digest in self._sent.items())
