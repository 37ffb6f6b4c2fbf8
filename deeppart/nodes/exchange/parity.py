"""Parity over the parts of a set: every member sends its blocks to the members that encode them, row by row.

In a row, member s of the set encodes stripe s (:mod:`deeppart.plan.redundancy`): it receives k blocks from k
other members, computes m blocks of parity, keeps the first and sends the others on. The blocks of the next row are on
their way meanwhile. Blocks behind the end of a part are zeros and are not sent.

What is encoded is what was written, and nothing else: each member digests all that it sends, which together must be
the part as its writer knows it, and the encoder of each block sends back the digest of what it has encoded: those of
all rows at the end, as each message costs as much as many blocks of digests. Parity of other bytes would take the place
of good parity, and give nothing back when it is needed.

As with copies, a rank that cannot read or write goes on to the end and raises then; and so do the others, before any
share of parity has its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from deeppart.comm import Comm, Operation, interleaved
from deeppart.errors import CheckpointError, CommError, CorruptFileError, DeeppartError, StorageError, as_error
from deeppart.model import Attempt, ParityIdentity, ParityMember
from deeppart.nodes.erasure import ReedSolomon
from deeppart.nodes.exchange.memory import Arena, Blocks, Bytes, json_head, paced
from deeppart.part import ParityWriter
from deeppart.plan.redundancy import ROWS_AT_ONCE, ParitySet, Stripes, block_bytes_for
from deeppart.storage import DurableFile, RateLimit

_HEAD_TAG, _DATA_TAG, _PARITY_TAG = 0, 1, 2  # digests have further ones
#: Encoded and digested so many bytes at a time, while they are in the processor's caches.
_SLICE_BYTES = 128 << 10
_UNREADABLE, _UNWRITABLE = "a part file could not be read", "a parity file could not be written"
DIGEST_BYTES = 16
#: Of what was encoded, to those that sent it and to those that keep parity of it.
_SENDER_TAG, _KEEPER_TAG = 3, 4


@dataclass(frozen=True, slots=True)
class PartFile:
    """A part that this rank contributes to a set.

    Attributes:
        path: the file.
        nbytes: its length.
        index_digest: xxh3-128 of its index, 32 hex digits.
        digest: xxh3-128 of the whole file as it was written or has been checked, 32 hex digits; "" if it could not be:
            the set is then not encoded, and nobody waits for this member in vain.
    """

    path: Path
    nbytes: int
    index_digest: str
    digest: str


def encode_set(
    comm: Comm,
    which: ParitySet,
    attempt: Attempt,
    mine: PartFile | None,
    open_parity: Callable[[ParityIdentity], DurableFile],
    arena: Arena,
    limit: RateLimit | None,
) -> Operation[DurableFile]:
    """Take part in encoding one set, as the member that this rank is."""
    place = which.place_of(comm.rank)
    members = yield from _introduce(comm, which, mine)
    blocks = block_bytes_for(len(members))
    identity = ParityIdentity(attempt, members, which.tolerate, blocks, place)
    encoding = _Encoding(comm, which, identity, mine, open_parity, arena, limit)
    try:
        yield from encoding.run()
        arena.give_back()
        return encoding.result()
    except BaseException:
        encoding.abort()
        raise
    finally:
        encoding.close()


def encode_sets(
    comm: Comm,
    sets: Sequence[tuple[ParitySet, PartFile | None]],
    attempt: Attempt,
    open_parity: Callable[[ParityIdentity], DurableFile],
    arena: Arena,
    limit: RateLimit | None,
) -> Operation[list[DurableFile]]:
    """Take part in encoding several sets, in an order that all ranks share; for :func:`begin_together`."""
    arena.reserve(max((_lengths(which) for which, _ in sets), key=sum, default=[]))
    yield True
    files: list[DurableFile] = []
    problem: DeeppartError | None = None
    try:
        for which, mine in sets:
            try:
                files.append((yield from encode_set(comm, which, attempt, mine, open_parity, arena, limit)))
            except CommError:  # nothing can be said to the other ranks any more
                raise
            except Exception as error:
                # The members of the other sets are waiting all the same.
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


def _lengths(which: ParitySet) -> list[int]:
    """Of the blocks of the rows of a set that are under way at once, in bytes."""
    members = len(which.members)
    return [block_bytes_for(members)] * (ROWS_AT_ONCE * 2 * members)


def _introduce(comm: Comm, which: ParitySet, mine: PartFile | None) -> Operation[tuple[ParityMember, ...]]:
    """Every member tells the others about its part."""
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


class _Row:
    """Memory for one row: k blocks out, k blocks in, m blocks of parity computed, and m that this member keeps."""

    def __init__(self, stripes: Stripes, memory: list[Bytes]) -> None:
        k, m = stripes.data_blocks, stripes.tolerate
        self.own, self.data = memory[:k], memory[k : 2 * k]
        self.parity, self.kept = memory[2 * k : 2 * k + m], memory[2 * k + m :]
        self.coming: list[Operation[None]] = []
        self.going: list[Operation[None]] = []


class _Encoding:
    """One member's part in encoding one set."""

    def __init__(
        self,
        comm: Comm,
        which: ParitySet,
        identity: ParityIdentity,
        mine: PartFile | None,
        open_parity: Callable[[ParityIdentity], DurableFile],
        arena: Arena,
        limit: RateLimit | None,
    ) -> None:
        self._comm, self._which, self._identity, self._limit = comm, which, identity, limit
        self._place = identity.place
        self._stripes = Stripes(len(identity.members), identity.tolerate, identity.block_bytes, identity.longest_bytes)
        self._code = ReedSolomon(self._stripes.data_blocks, self._stripes.tolerate)
        self._problems: list[DeeppartError] = []
        self._source: Blocks | None = None
        self._mine, self._digest = mine, xxhash.xxh3_128()
        self._file: DurableFile | None = None
        self._writer: ParityWriter | None = None
        memory = arena.cut(_lengths(which))
        self._digests = BlockDigests(which, self._stripes, self._place)
        self._rows = [_Row(self._stripes, memory[number::ROWS_AT_ONCE]) for number in range(ROWS_AT_ONCE)]
        try:
            if mine is not None:
                self._source = Blocks(mine.path)
                if self._source.source.size != mine.nbytes or not mine.digest:
                    what = "cannot be read" if not mine.digest else "has changed its length"
                    raise CorruptFileError(f"a part file that is to be protected {what}", where=str(mine.path))
        except Exception as error:  # of whatever kind: the other members are waiting
            self._lose_source(as_error(error, _UNREADABLE))
        try:
            self._file = open_parity(identity)
            self._writer = ParityWriter(self._file, identity)
        except Exception as error:
            self._lose_file(as_error(error, _UNWRITABLE))

    def run(self) -> Operation[None]:
        """All rows."""
        ahead = ROWS_AT_ONCE - 1
        for number in range(min(ahead, self._stripes.rows)):
            yield from self._begin(number)
        for number in range(self._stripes.rows):
            row = self._rows[number % ROWS_AT_ONCE]
            yield from interleaved(row.coming)
            yield True
            if number + ahead < self._stripes.rows:
                yield from self._begin(number + ahead)
            self._encode(number, row)
            yield from self._share(number, row)
            yield from interleaved(row.going)
            self._store(number, row)
            yield True
        yield from self._digests.exchange(self._comm)
        self._compare()

    def result(self) -> DurableFile:
        """The file, finished."""
        if not self._problems and self._writer is not None:
            try:
                self._writer.finish()
            except StorageError as error:
                self._problems.append(error)
        if self._problems or self._file is None:
            raise self._problems[0]
        return self._file

    def abort(self) -> None:
        """Give up what was written."""
        if self._file is not None:
            self._file.abort()

    def close(self) -> None:
        """Close what is read."""
        if self._source is not None:
            self._source.close()

    def _begin(self, number: int) -> Operation[None]:
        """Send this member's blocks of a row, and ask for those of the stripe it encodes."""
        stripes, place, length = self._stripes, self._place, self._stripes.length(number)
        row = self._rows[number % ROWS_AT_ONCE]
        row.coming, row.going = [], []
        for i in range(stripes.data_blocks):
            source = stripes.source(place, i)
            block = row.data[i][:length]
            filled = stripes.filled(number, i, self._identity.members[source].nbytes)
            if filled < length:
                block[filled:] = 0
            if filled:
                rank = self._which.members[source].rank
                row.coming.append(self._comm.receive_into(block[:filled], rank, _DATA_TAG))
        for i in range(stripes.data_blocks):
            filled = stripes.filled(number, i, self._identity.members[place].nbytes)
            if filled:
                block = self._read(stripes.start(number, i), row.own[i][:filled])
                yield from paced(self._limit, filled)
                self._digests.sent(number, i, self._digested(block, length))
                to = self._which.members[stripes.stripe_of(place, i)].rank
                row.going.append(self._comm.send(block, to, _DATA_TAG))

    def _encode(self, number: int, row: _Row) -> None:
        """Compute the parity of this member's stripe, and the digests of its blocks."""
        length = self._stripes.length(number)
        data = [block[:length] for block in row.data]
        parity = [block[:length] for block in (row.kept[0], *row.parity[1:])]
        hashers = [xxhash.xxh3_128() for _ in range(self._stripes.members)]
        for at in range(0, length, _SLICE_BYTES):
            ins = [block[at : at + _SLICE_BYTES] for block in data]
            outs = [block[at : at + _SLICE_BYTES] for block in parity]
            self._code.encode(ins, outs)
            for hasher, block in zip(hashers, (*ins, *outs), strict=True):
                hasher.update(block.data)
        self._digests.encoded(number, [hasher.digest() for hasher in hashers])

    def _share(self, number: int, row: _Row) -> Operation[None]:
        """Send parity to the members that keep it, and ask for what this one keeps for others."""
        stripes, place, length = self._stripes, self._place, self._stripes.length(number)
        for j in range(1, stripes.tolerate):
            source = self._which.members[stripes.kept_stripe(place, j)].rank
            row.going.append(self._comm.receive_into(row.kept[j][:length], source, _PARITY_TAG))
        for j in range(1, stripes.tolerate):
            yield from paced(self._limit, length)
            to = self._which.members[stripes.keeper(place, j)].rank
            row.going.append(self._comm.send(row.parity[j][:length], to, _PARITY_TAG))

    def _digested(self, block: Bytes, length: int) -> bytes:
        """The digest of a block, filled up with zeros; what is sent is digested as a whole, too."""
        digest = xxhash.xxh3_128()
        for at in range(0, block.size, _SLICE_BYTES):
            piece = block[at : at + _SLICE_BYTES].data
            digest.update(piece)
            self._digest.update(piece)
        digest.update(bytes(length - block.size))
        return digest.digest()

    def _compare(self) -> None:
        """Check that the encoded bytes of this member's blocks are the digested ones: others can change the memory of
        a file. And that what was sent is the part as it was written, or as it was when it was checked.
        """
        if self._mine is None or self._source is None:
            return
        found = self._digest.hexdigest()
        if not self._digests.is_encoded_as_sent():
            found = "other bytes on the rank that encodes them"
        if found != self._mine.digest:
            self._lose_source(_changed(self._mine, found))

    def _store(self, number: int, row: _Row) -> None:
        """Append what this member keeps of a row to its file."""
        if self._writer is None:
            return
        try:
            length = self._stripes.length(number)
            self._writer.add_row([block[:length] for block in row.kept], self._digests.kept(number))
        except Exception as error:
            self._lose_file(as_error(error, _UNWRITABLE))

    def _read(self, offset: int, block: Bytes) -> Bytes:
        if self._source is not None:
            try:
                return self._source.get(offset, block.size, block)
            except Exception as error:
                self._lose_source(as_error(error, _UNREADABLE))
        return block

    def _lose_source(self, error: DeeppartError) -> None:
        """Note that the bytes sent from now on are wrong; the level then fails in the commit round."""
        self._problems.append(error)
        self.close()
        self._source = None

    def _lose_file(self, error: DeeppartError) -> None:
        self._problems.append(error)
        self._writer = None


def _changed(mine: PartFile, found: str) -> CorruptFileError:
    return CorruptFileError(
        "a part has changed since it was written and checked, while parity of it was encoded",
        expected=f"xxh3-128 {mine.digest}",
        found=found,
        where=str(mine.path),
        todo="suspect that node's storage or memory; the next checkpoint is protected again",
    )


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
