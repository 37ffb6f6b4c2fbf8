"""How the ranks of a session find each other without MPI: each leaves its address at a store, rank 0 publishes all.

The store is one that torch has for the job (``torch.distributed.Store``); it is not needed any more once the ranks have
met. What an earlier job, or a start that was given up, has left in it does no harm: a rank believes only a roster that
has the address in it which it made for this start; rank 0 makes a new one when a newer address comes; and the start is
over only when every rank has heard, directly or through others, that every rank has the same roster.

Whoever reaches the store's port can write there. What cannot be read is skipped, and, where the ranks share a secret
(``DEEPPART_SECRET_FILE``), what was made without it; the rank that it was to stand for is waited for.
"""

from __future__ import annotations

import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Protocol, TypeVar

from deeppart._threads import start_thread
from deeppart.comm.base import Operation
from deeppart.comm.single import SingleComm
from deeppart.comm.sockets.address import Address
from deeppart.comm.sockets.channel import SocketComm, connect_all
from deeppart.comm.sockets.rank_sockets import RankSockets
from deeppart.comm.sockets.transport import Transport
from deeppart.comm.waiting import finish
from deeppart.config import scheduled_job
from deeppart.errors import CommError, PeerTimeoutError, say

T = TypeVar("T")

#: Looks at the store: at first, and at most, in seconds; more ranks look less often.
_LOOK_S, _LOOK_MOST_S, _LOOKS_PER_S = 2e-3, 0.1, 20_000
#: How often rank 0 says who is there, for those that want to say whom they wait for.
_SAY_S = 0.25
#: How often the others ask for that, and whether their start has been given up.
_ASK_S = 0.5
#: How long the thread is waited for at the end; it may be in a call of the store that does not end.
_END_S = 0.5
#: Hexadecimal digits of a tag: HMAC with SHA-256 (FIPS 198-1).
_TAG_LENGTH = 64
_CONNECTING = "connecting the ranks"


class Store(Protocol):
    """What is used of ``torch.distributed.Store``."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def delete_key(self, key: str, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """What a rank leaves at the store.

    Attributes:
        start: which start of a session there, counted by each rank: the n-th of one rank is that of all.
        address: of the rank, in that start.
    """

    start: int
    address: Address

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps({"start": self.start, "address": asdict(self.address)}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """From what :meth:`encode` has made."""
        found = json.loads(data)
        return cls(int(found["start"]), Address(**found["address"]))


class Search:
    """One rank's side of a start. Its thread talks to the store, whose calls cannot be bounded.

    Attributes:
        roster: version, and the addresses in rank order; None as long as there is none with this rank's.
        is_given_up: rank 0 has given up the start that this is, and is in a later one.
        error: why the thread has ended; None while it runs.
        present: ranks that have come, as far as it is known.
        skipped: lines about what is in the store and is not believed.
    """

    def __init__(
        self, open_store: Callable[[], Store], rank: int, size: int, entry: Entry, secret: bytes | None = None
    ) -> None:
        self._open_store, self._rank, self._size, self._entry = open_store, rank, size, entry
        self._secret = secret
        self._over = threading.Event()
        # Written by the thread alone, each in one assignment.
        self.roster: tuple[int, tuple[Address, ...]] | None = None
        self.error: BaseException | None = None
        self.is_given_up = False
        self.present = {rank}
        self.skipped: tuple[str, ...] = ()
        self._thread = start_thread(self._run, "deeppart-rendezvous", self._failed)

    def end(self) -> None:
        """The start is over, or given up: look at the store no more."""
        self._over.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        store = self._open_store()
        if self._over.is_set():  # no rank is to wait for one that has given up
            return
        if self._rank == 0:
            self._receive(store)
        else:
            self._register(store)

    def _failed(self, error: BaseException) -> None:
        """Of whatever kind torch has for it."""
        self.error = error

    def _sealed(self, key: str, text: bytes) -> bytes:
        """What to leave under a key, which is in the tag: an entry of one rank is none of another's."""
        if self._secret is None:
            return text
        job = f"{scheduled_job()}\0{self._size}\0{key}\0"  # nor is one of another job with the same secret
        message = b"deeppart meeting\0" + job.encode() + text
        return hmac.digest(self._secret, message, "sha256").hex().encode() + text

    def _leave(self, store: Store, key: str, text: bytes) -> None:
        store.set(key, self._sealed(key, text).decode())

    def _look(self, store: Store, key: str, read: Callable[[bytes], T]) -> T | None:
        """What a rank has left under a key; None, which is said once, for what no rank of this job has left there."""
        found = store.get(key)
        text = found if self._secret is None else found[_TAG_LENGTH:]
        reason = "it was not made with the secret of this rank"
        if hmac.compare_digest(found, self._sealed(key, text)):
            try:
                return read(text)
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                reason = "it cannot be read"
        line = f"skipped {key} in the store where ranks meet: {reason}"
        if line not in self.skipped:
            self.skipped = (*self.skipped, line)
            say(f"rank {self._rank} has {line}")
        return None

    def _roster_key(self, version: int) -> str:
        return f"roster/{self._entry.start}/{version}"

    def _register(self, store: Store) -> None:
        """Of any rank but 0: leave the entry, and wait for a roster that has its address."""
        own, version, asked_at = f"rank/{self._rank}", 0, time.monotonic()
        self._leave(store, own, self._entry.encode())
        store.add("came", 1)
        for pause_s in _pauses_s(self._size):
            if self._over.wait(pause_s):
                break
            while store.check([self._roster_key(version + 1)]):
                version += 1
                roster = self._look(store, self._roster_key(version), _roster)
                if roster is not None and len(roster) == self._size and roster[self._rank] == self._entry.address:
                    self.roster, self.present = (version, roster), set(range(self._size))
            if self.roster is None and time.monotonic() - asked_at > _ASK_S:
                asked_at = time.monotonic()
                given_up = f"given-up/{self._entry.address.public_key}"
                if store.check([given_up]) and self._look(store, given_up, bytes) is not None:
                    self.is_given_up = True
                    return
                if store.check(["present"]) and (present := self._look(store, "present", _ranks)) is not None:
                    self.present = present | {self._rank}
        if self.roster is None and store.check([own]) and store.get(own) == self._sealed(own, self._entry.encode()):
            store.delete_key(own)  # unless it is that of the next start already

    def _receive(self, store: Store) -> None:
        """Of rank 0: collect the entries, and publish the roster whenever all are there and one is new."""
        found = {0: self._entry.address}
        came, said_at, version = -1, 0.0, 0
        for pause_s in _pauses_s(self._size):
            before, came = came, store.add("came", 0)
            if came != before and self._collect(store, found) and len(found) == self._size:
                roster = tuple(found[rank] for rank in range(self._size))
                version += 1
                while store.check([self._roster_key(version)]):
                    version += 1  # of processes before these: no rank finds its address in it
                self._leave(store, self._roster_key(version), json.dumps([asdict(each) for each in roster]).encode())
                self.roster, self.present = (version, roster), set(found)
            if time.monotonic() - said_at > _SAY_S and len(found) < self._size:
                said_at = time.monotonic()
                self.present = set(found)
                self._leave(store, "present", json.dumps(sorted(found)).encode())
            if self._over.wait(pause_s):
                return

    def _collect(self, store: Store, found: dict[int, Address]) -> bool:
        """Take the entries that have been left; True if there was a new one."""
        is_new = False
        for rank in range(1, self._size):
            key = f"rank/{rank}"
            if store.check([key]):
                entry = self._look(store, key, Entry.decode)
                if entry is None or entry.start > self._entry.start:
                    continue  # of no rank; or it has given up the start that this rank is in, and waits for the next
                store.delete_key(key)
                if entry.start < self._entry.start:
                    self._leave(store, f"given-up/{entry.address.public_key}", b"")
                    continue
                is_new = is_new or found.get(rank) != entry.address
                found[rank] = entry.address
        return is_new


def _roster(text: bytes) -> tuple[Address, ...]:
    return tuple(Address(**each) for each in json.loads(text))


def _ranks(text: bytes) -> set[int]:
    return {int(each) for each in json.loads(text)}


def _pauses_s(size: int) -> Iterator[float]:
    """Between looks at the store: longer and longer, and the longer the more ranks look."""
    pause_s, most_s = _LOOK_S, max(_LOOK_MOST_S, size / _LOOKS_PER_S)
    while True:
        yield pause_s
        pause_s = min(1.5 * pause_s, most_s)


class Arrivals(SingleComm):
    """Stands in for a communicator while there is none: a wait has to know who has come.

    Attributes:
        search: of this rank for the others; None before that has begun.
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size = rank, size
        self.search: Search | None = None

    def present(self) -> set[int]:
        """Ranks that have come, as far as it is known."""
        return {self.rank} if self.search is None else set(self.search.present)


class Rendezvous:
    """Where ranks meet, once for each session. One for a process and a store: it counts this process's starts there.

    Attributes:
        rank, size: this rank and the number of ranks.
        open_store: connects to the store, within about so many seconds; its calls take as long as they may.
        interface: finds where this rank listens; see :class:`RankSockets`.
        in_turn: held by the start that is under way.
        starts: so many have begun. Guarded by the lock.
    """

    def __init__(
        self, rank: int, size: int, open_store: Callable[[float], Store], interface: Callable[[], str]
    ) -> None:
        self.rank, self.size, self.open_store, self.interface = rank, size, open_store, interface
        self.in_turn, self.starts = threading.Lock(), 0


def meet(rendezvous: Rendezvous, timeout: float, secret: bytes | None = None) -> SocketComm:
    """A channel between all ranks of a rendezvous (collective). The first start of one rank is that of all."""
    arrivals = Arrivals(rendezvous.rank, rendezvous.size)
    if not rendezvous.in_turn.acquire(timeout=timeout):  # the starts of several threads
        where = f"rank {rendezvous.rank}"
        raise PeerTimeoutError(f"{_CONNECTING}: another start of this process has not ended", where=where)
    operation = _connected(rendezvous, arrivals, timeout, secret)
    try:
        return finish(arrivals, operation, _CONNECTING, timeout)
    except PeerTimeoutError as error:
        if arrivals.search is not None and arrivals.search.skipped:
            error.found = "; ".join(arrivals.search.skipped[:5])
            error.todo = "give all ranks one DEEPPART_SECRET_FILE, or none; or somebody else writes there (SECURITY.md)"
        raise
    finally:
        operation.close()  # if it was given up, sockets and thread go now, not when the error is forgotten
        rendezvous.in_turn.release()


def _connected(
    rendezvous: Rendezvous, arrivals: Arrivals, timeout: float, secret: bytes | None
) -> Operation[SocketComm]:
    rank, size = rendezvous.rank, rendezvous.size
    rendezvous.starts += 1
    transport = Transport(RankSockets(rendezvous.interface(), timeout))
    entry = Entry(rendezvous.starts, transport.address)
    search = arrivals.search = Search(lambda: rendezvous.open_store(timeout), rank, size, entry, secret)
    version, connecting = 0, None
    try:
        while True:
            if search.error is not None:
                raise _no_store(search.error, rank) from search.error
            if search.is_given_up:
                raise PeerTimeoutError(
                    f"{_CONNECTING}: rank 0 has waited in vain, and is at its next try already",
                    where=f"rank {rank}",
                    todo="try again on this rank as well; raise `timeout` if it was only slow",
                )
            if search.roster is not None and search.roster[0] != version:
                version, roster = search.roster
                try:
                    connecting = connect_all(transport, rank, roster, version)
                except ValueError as error:
                    raise _no_store(error, rank) from error
            if connecting is not None:
                try:
                    next(connecting)
                except StopIteration as stop:
                    found: SocketComm = stop.value
                    return found
                except CommError:  # one whose address is old is gone: it is to come yet
                    connecting = None
            yield False
    except BaseException:
        transport.close()
        raise
    finally:
        search.end()


def _no_store(error: BaseException, rank: int) -> CommError:
    todo = "see that MASTER_ADDR and MASTER_PORT are those of rank 0's host, and that rank 0 still runs"
    if "EADDRINUSE" in str(error) or "already in use" in str(error):
        todo = "set MASTER_PORT to another one: another program, perhaps another job, listens there"
    return CommError(
        "the ranks cannot meet: there is no store, or it has gone away",
        found=f"{type(error).__name__}: {error}".partition("\n")[0][:500],
        where=f"rank {rank}",
        todo=todo,
    )
