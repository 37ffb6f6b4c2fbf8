"""Computes parity over the parts of a set, row by row: in each row, member s of the set encodes stripe s.

The member computes m blocks of parity (:mod:`deeppart.nodes.exchange.coding`), of which it keeps the first, and others
keep the rest (:mod:`deeppart.plan.redundancy`).

It is verified that exactly the written bytes are encoded: each member digests everything that it sends, and compares
that with the digest of the part from when it was written; the encoder of each block returns the digest of the bytes it
has encoded (for all rows at the end, since a message costs as much as many digests). Parity of other bytes would
replace good parity and be useless when needed.

If one rank cannot read or write, all ranks raise at the end, before any parity file has its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import xxhash

from deeppart.comm import Comm, Operation, interleaved
from deeppart.errors import CheckpointError, CommError, CorruptFileError, DeeppartError, as_error
from deeppart.model import Attempt, ParityIdentity, ParityMember
from deeppart.nodes.exchange.coding import SLICE_BYTES, Block, Coding, Step, memory_lengths
from deeppart.nodes.exchange.memory import Arena, Bytes, PartBlocks, PartFile, Storing, json_head
from deeppart.part import ParityWriter
from deeppart.plan.redundancy import ParitySet, block_bytes_for
from deeppart.storage import DurableFile, RateLimit

_HEAD_TAG, _DIGESTS_TAG = 0, 1
_DIGEST_BYTES = 16


def encode_set(
    comm: Comm,
    which: ParitySet,
    attempt: Attempt,
    mine: PartFile | None,
    open_parity: Callable[[ParityIdentity], DurableFile],
    arena: Arena,
    limit: RateLimit | None,
) -> Operation[DurableFile]:
    """Take part in encoding one set, of which this rank is a member."""
    place = which.place_of(comm.rank)
    members = yield from _introduce(comm, which, mine)
    identity = ParityIdentity(attempt, members, which.tolerate, block_bytes_for(len(members)), place)
    if not identity.longest_bytes:  # as all members know
        raise (mine and mine.problem) or CorruptFileError("no part of a parity set can be read")
    problems: list[DeeppartError] = []
    source = None if mine is None else PartBlocks(mine, problems)
    storing = Storing(partial(open_parity, identity), problems)
    try:
        encoding = _Encoding(comm, which, identity, source, storing, arena, limit)
        yield from encoding.run(encoding.rounds())
        yield from encoding.exchange_digests()
        if mine is not None and not problems:
            encoding.check(mine)
        encoding.finish()
        if problems or storing.file is None:
            raise problems[0]
        return storing.file
    except BaseException:
        storing.abort()
        raise
    finally:
        if source is not None:
            source.close()


def encode_sets(
    comm: Comm,
    sets: Sequence[tuple[ParitySet, PartFile | None]],
    attempt: Attempt,
    open_parity: Callable[[ParityIdentity], DurableFile],
    arena: Arena,
    limit: RateLimit | None,
) -> Operation[list[DurableFile]]:
    """Take part in encoding several sets, in an order common to all ranks; for :func:`begin_together`."""
    sizes = [len(which.members) for which, _ in sets]
    arena.reserve(max((memory_lengths(size, block_bytes_for(size)) for size in sizes), key=sum, default=[]))
    yield True
    files: list[DurableFile] = []
    problem: DeeppartError | None = None
    try:
        for which, mine in sets:
            try:
                files.append((yield from encode_set(comm, which, attempt, mine, open_parity, arena, limit)))
            except CommError:  # the other ranks can no longer be reached
                raise
            except Exception as error:
                # Continue: the members of the other sets are waiting.
                problem = problem or as_error(error, "parity could not be encoded")
        problems = yield from comm.allgather(str(problem or "").encode())
        if problem is not None:
            raise problem
        for rank, told in enumerate(problems):
            if told:
                raise CheckpointError("parity could not be encoded", found=f"rank {rank}: {told.decode()}")
    except BaseException:
        for file in files:
            file.abort()
        raise
    return files


def _introduce(comm: Comm, which: ParitySet, mine: PartFile | None) -> Operation[tuple[ParityMember, ...]]:
    """Exchange the records of the members' parts."""
    place = which.place_of(comm.rank)
    document = [0, ""] if mine is None else [mine.nbytes, mine.index_digest]
    heads = [json_head(document if other == place else [0, ""]) for other in range(len(which.members))]
    others = [(other, member.rank) for other, member in enumerate(which.members) if other != place]
    moves = [comm.receive_into(heads[other], rank, _HEAD_TAG) for other, rank in others]
    moves += [comm.send(heads[place], rank, _HEAD_TAG) for _, rank in others]
    yield from interleaved(moves)
    told = [json.loads(head.tobytes()) for head in heads]
    return tuple(
        ParityMember(None if member.part is None or not nbytes else member.part, nbytes, digest)
        for member, (nbytes, digest) in zip(which.members, told, strict=True)
    )


class _Encoding(Coding):
    """One member's share of encoding one set."""

    digesting = True

    def __init__(
        self,
        comm: Comm,
        which: ParitySet,
        identity: ParityIdentity,
        source: PartBlocks | None,
        storing: Storing,
        arena: Arena,
        limit: RateLimit | None,
    ) -> None:
        super().__init__(comm, identity, arena, limit)
        self._ranks = [member.rank for member in which.members]
        self._place, self._source = identity.place, source
        self._writer = ParityWriter(storing, identity)
        #: Digest of all bytes that are sent.
        self._whole = xxhash.xxh3_128()
        #: (row, block) -> digest of the block that is sent.
        self._sent: dict[tuple[int, int], bytes] = {}
        #: (row, index) -> parity that this member keeps, of rows in progress.
        self._kept: dict[tuple[int, int], Bytes] = {}
        #: Stripe -> digests of its encoded blocks in each row: of this member's stripe, at the end of others as well.
        shape = (self._stripes.rows, self._stripes.members, _DIGEST_BYTES)
        self._encoded = {self._place: np.zeros(shape, np.uint8)}

    def rounds(self) -> Iterator[list[Step]]:
        """The steps of each row: one on each member."""
        stripes, ranks, members = self._stripes, self._ranks, range(self._stripes.members)

        def blocks(kind: str, places: Sequence[int]) -> tuple[Block, ...]:
            return tuple(Block(kind, place, index, ranks[place]) for index, place in enumerate(places))

        data = [blocks("data", [stripes.source(s, i) for i in range(stripes.data_blocks)]) for s in members]
        parity = [blocks("parity", [stripes.keeper(s, j) for j in range(stripes.tolerate)]) for s in members]
        for row in range(stripes.rows):
            yield [Step(row, data[s], parity[s], ranks[s]) for s in members]

    def read(self, row: int, block: Block, memory: Bytes) -> Bytes:
        filled = self.filled(row, block)
        if self._source is not None:
            memory = self._source.get(self._stripes.start(row, block.index), filled, memory)
        digest = xxhash.xxh3_128()
        for at in range(0, memory.size, SLICE_BYTES):
            digest.update(memory[at : at + SLICE_BYTES].data)
            self._whole.update(memory[at : min(at + SLICE_BYTES, filled)].data)
        self._sent[row, block.index] = digest.digest()
        return memory

    def room(self, row: int, block: Block, memory: Bytes) -> Bytes:
        self._kept[row, block.index] = memory
        return memory

    def computed(self, step: Step, digests: list[bytes]) -> None:
        table = np.frombuffer(b"".join(digests), np.uint8)
        self._encoded[self._place][step.row] = table.reshape(-1, _DIGEST_BYTES)

    def ended(self, steps: Sequence[Step]) -> None:
        """Append the parity of a row that this member keeps to its file."""
        self._writer.add_row([self._kept.pop((steps[0].row, j)) for j in range(self._stripes.tolerate)])

    def exchange_digests(self) -> Operation[None]:
        """Exchange digests of encoded blocks: each member gets those of its blocks, and of stripes whose parity it
        keeps.
        """
        mine, moves = self._encoded[self._place], list[Operation[None]]()
        for other, rank in enumerate(self._ranks):
            if other != self._place:
                self._encoded[other] = np.empty_like(mine[:, self._columns(other, self._place)], order="C")
                moves.append(self._comm.receive_into(self._encoded[other].reshape(-1), rank, _DIGESTS_TAG))
                sent = np.ascontiguousarray(mine[:, self._columns(self._place, other)])
                moves.append(self._comm.send(sent.reshape(-1), rank, _DIGESTS_TAG))
        yield from interleaved(moves)

    def _columns(self, stripe: int, member: int) -> slice:
        """The digests of a stripe that a member receives: all if it keeps parity of it, else that of its own block."""
        index = (member - stripe) % self._stripes.members - self._stripes.tolerate
        return slice(None) if index < 0 else slice(index, index + 1)

    def finish(self) -> None:
        """Write the index and footer of the file."""
        kept = [self._stripes.kept_stripe(self._place, j) for j in range(self._stripes.tolerate)]
        self._writer.finish(np.stack([self._encoded[stripe] for stripe in kept], axis=1))

    def check(self, mine: PartFile) -> None:
        """Check that exactly the digested bytes of this member's blocks were encoded (a mapped file may change), and
        that they are the part as it was written or checked.
        """
        found = self._whole.hexdigest()
        for (row, i), digest in self._sent.items():
            if self._encoded[self._stripes.stripe_of(self._place, i)][row, 0].tobytes() != digest:
                found = "other bytes on the rank that encodes them"
        if found != mine.digest:
            raise CorruptFileError(
                "a part has changed since it was written and checked, while parity of it was encoded",
                expected=f"xxh3-128 {mine.digest}",
                found=found,
                where=str(mine.path),
                todo="suspect that node's storage or memory; the next checkpoint is protected again",
            )
