"""How the ranks of a session find each other without MPI: each puts its address into a store, rank 0 publishes all.

The store is torch's store of the job (``torch.distributed.Store``); it is not needed any more once the ranks have met.
Entries of an earlier job, or of a start that was given up, do no harm: a rank accepts only a roster with the address
that it made for this start; rank 0 makes a new roster when a newer address arrives; and the start has succeeded only
when every rank knows, directly or through others, that every rank has the same roster.

Anyone who can reach the store's port can write there. Unreadable entries are skipped and, if the ranks share a secret
(``DEEPPART_SECRET_FILE``), so are entries made without it; the ranks they claim to be from are still waited for.
"""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Protocol, TypeVar

from deeppart._threads import start_thread
from deeppart.comm.base import Operation
from deeppart.comm.channel import Comm
from deeppart.comm.single import NotConnected
from deeppart.comm.sockets.address import Address
from deeppart.comm.sockets.rank_sockets import RankSockets
from deeppart.comm.sockets.transport import SocketTransport, connect_all
from deeppart.comm.waiting import finish
from deeppart.config import scheduled_job
from deeppart.errors import CommError, PeerTimeoutError, say

T = TypeVar("T")

#: Interval of polling the store: at first, and at most, in seconds; with more ranks, each polls less often.
_LOOK_S, _LOOK_MOST_S, _LOOKS_PER_S = 2e-3, 0.1, 20_000
#: How often rank 0 publishes which ranks have arrived, for error messages of the others.
_SAY_S = 0.25
#: How often the others read that, and whether their start has been given up.
_ASK_S = 0.5
#: How long the thread is joined at the end; it may be in a call of the store that does not return.
_END_S = 0.5
#: Hexadecimal digits of a tag: HMAC with SHA-256 (FIPS 198-1).
_TAG_LENGTH = 64
#: Bytes of an address as JSON, at most: it has two endpoints.
_MOST_ADDRESS_BYTES = 2048
_CONNECTING = "connecting the ranks"


class Store(Protocol):
    """The methods of ``torch.distributed.Store`` that are used."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def delete_key(self, key: str, /) -> bool: ...


class Search:
    """One rank's side of a start. Its thread calls the store, whose calls have no timeout.

    Attributes:
        roster: version, and the addresses in rank order; None until there is one with this rank's address.
        is_given_up: true if rank 0 has given up this start, and is in a later one.
        error: why the thread has ended; None while it runs.
        present: ranks that have arrived, as far as known.
        skipped: lines about entries of the store that were not accepted.
        news: set when the thread has a roster, or ends.
    """

    def __init__(
        self, open_store: Callable[[], Store], rank: int, size: int, address: Address, secret: bytes | None = None
    ) -> None:
        self._open_store, self._rank, self._size, self._address = open_store, rank, size, address
        self._secret = secret
        self._over, self.news = threading.Event(), threading.Event()
        # Written by the thread only, each in one assignment.
        self.roster: tuple[int, tuple[Address, ...]] | None = None
        self.error: BaseException | None = None
        self.is_given_up = False
        self.present = {rank}
        self.skipped: tuple[str, ...] = ()
        self._thread = start_thread(self._run, "deeppart-rendezvous", self._failed)

    def end(self) -> None:
        """End the thread, because the start has ended or was given up."""
        self._over.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            store = self._open_store()
            if self._over.is_set():  # no rank may wait for one that has given up
                return
            if self._rank == 0:
                self._receive(store)
            else:
                self._register(store)
        finally:
            self.news.set()

    def _failed(self, error: BaseException) -> None:
        """The thread has ended with an error, whose type depends on torch."""
        self.error = error

    def _sealed(self, key: str, text: bytes) -> bytes:
        """A value with a tag, which includes the key: an entry of one rank is not valid for another."""
        if self._secret is None:
            return text
        job = f"{scheduled_job()}\0{self._size}\0{key}\0"  # nor for another job with the same secret
        message = b"deeppart meeting\0" + job.encode() + text
        return hmac.digest(self._secret, message, "sha256").hex().encode() + text

    def _leave(self, store: Store, key: str, text: bytes) -> None:
        store.set(key, self._sealed(key, text).decode())

    def _look(self, store: Store, key: str, read: Callable[[bytes], T]) -> T | None:
        """The value that a rank of this job has put under a key; None for any other, with a line in ``skipped``."""
        found = store.get(key)
        text = found if self._secret is None else found[_TAG_LENGTH:]
        reason = "it was not made with the secret of this rank"
        if hmac.compare_digest(found, self._sealed(key, text)):
            try:
                return read(text)
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError, zlib.error):
                reason = "it cannot be read"
        line = f"skipped {key} in the store where ranks meet: {reason}"
        if line not in self.skipped:
            self.skipped = (*self.skipped, line)
            say(f"rank {self._rank} has {line}")
        return None

    def _roster_key(self, version: int) -> str:
        return f"roster/{self._address.start}/{version}"

    def _unpacked(self, text: bytes) -> tuple[Address, ...]:
        """The inverse of :func:`_packed`, of as many addresses as there are ranks."""
        most_bytes = _MOST_ADDRESS_BYTES * self._size  # somebody else may have written it
        data = zlib.decompressobj().decompress(base64.b85decode(text), most_bytes)
        return tuple(Address(**each) for each in json.loads(data))

    def _register(self, store: Store) -> None:
        """For ranks other than 0: put the address, and wait for a roster with it."""
        own, version, asked_at = f"rank/{self._rank}", 0, time.monotonic()
        self._leave(store, own, self._address.encode())
        store.add("came", 1)
        for pause_s in _pauses_s(self._size):
            if self._over.wait(pause_s):
                break
            while store.check([self._roster_key(version + 1)]):
                version += 1
                roster = self._look(store, self._roster_key(version), self._unpacked)
                if roster is not None and len(roster) == self._size and roster[self._rank] == self._address:
                    self.roster, self.present = (version, roster), set(range(self._size))
                    self.news.set()
            if self.roster is None and time.monotonic() - asked_at > _ASK_S:
                asked_at = time.monotonic()
                given_up = f"given-up/{self._address.public_key}"
                if store.check([given_up]) and self._look(store, given_up, bytes) is not None:
                    self.is_given_up = True
                    return
                if store.check(["present"]) and (present := self._look(store, "present", _ranks)) is not None:
                    self.present = present | {self._rank}
        if self.roster is None and store.check([own]) and store.get(own) == self._sealed(own, self._address.encode()):
            store.delete_key(own)  # unless the next start has replaced it already

    def _receive(self, store: Store) -> None:
        """For rank 0: collect the entries, and publish a roster whenever all are present and one is new."""
        found = {0: self._address}
        came, said_at, version = -1, 0.0, 0
        for pause_s in _pauses_s(self._size):
            before, came = came, store.add("came", 0)
            if came != before and self._collect(store, found) and len(found) == self._size:
                roster = tuple(found[rank] for rank in range(self._size))
                version += 1
                while store.check([self._roster_key(version)]):
                    version += 1  # made by earlier processes: no rank finds its address in it
                self._leave(store, self._roster_key(version), _packed(roster))
                self.roster, self.present = (version, roster), set(found)
                self.news.set()
            if time.monotonic() - said_at > _SAY_S and len(found) < self._size:
                said_at = time.monotonic()
                self.present = set(found)
                self._leave(store, "present", json.dumps(sorted(found)).encode())
            if self._over.wait(pause_s):
                return

    def _collect(self, store: Store, found: dict[int, Address]) -> bool:
        """Read the entries in the store; True if there was a new one."""
        is_new = False
        for rank in range(1, self._size):
            key = f"rank/{rank}"
            if store.check([key]):
                address = self._look(store, key, Address.decode)
                if address is None or address.start > self._address.start:
                    continue  # not a rank's; or the rank has given up this start, and waits for the next
                store.delete_key(key)
                if address.start < self._address.start:
                    self._leave(store, f"given-up/{address.public_key}", b"")
                    continue
                is_new = is_new or found.get(rank) != address
                found[rank] = address
        return is_new


def _packed(roster: tuple[Address, ...]) -> bytes:
    """All addresses, in some 70 bytes each: rank 0's store sends them to every rank."""
    return base64.b85encode(zlib.compress(json.dumps([asdict(each) for each in roster]).encode()))


def _ranks(text: bytes) -> set[int]:
    return {int(each) for each in json.loads(text)}


def _pauses_s(size: int) -> Iterator[float]:
    """Pauses between polls of the store: increasing, and longer with more ranks."""
    pause_s, most_s = _LOOK_S, max(_LOOK_MOST_S, size / _LOOKS_PER_S)
    while True:
        yield pause_s
        pause_s = min(1.5 * pause_s, most_s)


class Rendezvous:
    """A meeting point, used once by each session. There is one per process and store: it counts the process's starts.

    Attributes:
        rank, size: this rank and the number of ranks.
        open_store: connects to the store within about so many seconds; calls of the store are unbounded.
        interface: finds the interface on which this rank listens; see :class:`RankSockets`.
        in_turn: held by the start in progress.
        starts: number of starts begun. Guarded by the lock.
    """

    def __init__(
        self, rank: int, size: int, open_store: Callable[[float], Store], interface: Callable[[], str]
    ) -> None:
        self.rank, self.size, self.open_store, self.interface = rank, size, open_store, interface
        self.in_turn, self.starts = threading.Lock(), 0


def meet(rendezvous: Rendezvous, timeout: float, secret: bytes | None = None) -> Comm:
    """A channel between all ranks of a rendezvous (collective). The n-th start of one rank is that of all."""
    rank, size = rendezvous.rank, rendezvous.size
    with rendezvous.in_turn:  # the starts of several threads, each of which ends by its timeout
        rendezvous.starts += 1
        transport = SocketTransport(RankSockets(rendezvous.interface(), timeout, rendezvous.starts))
        search = Search(lambda: rendezvous.open_store(timeout), rank, size, transport.address, secret)
        waiting = NotConnected(rank, size)
        try:
            return finish(waiting, _connected(search, transport, waiting), _CONNECTING, timeout)
        except BaseException as error:
            transport.close()
            if isinstance(error, PeerTimeoutError) and search.skipped:
                error.found = "; ".join(search.skipped[:5])
                error.todo = (
                    "give all ranks one DEEPPART_SECRET_FILE, or none; or somebody else writes there (SECURITY.md)"
                )
            raise
        finally:
            search.end()


def _connected(search: Search, transport: SocketTransport, waiting: NotConnected) -> Operation[Comm]:
    rank, version, connecting = waiting.rank, 0, None
    while True:
        waiting.arrived = search.present
        if search.is_given_up:
            raise PeerTimeoutError(
                f"{_CONNECTING}: rank 0 has timed out, and has already begun its next start",
                where=f"rank {rank}",
                todo="try again on this rank as well; raise `timeout` if it was only slow",
            )
        if search.roster is not None and search.roster[0] != version:
            version, roster = search.roster
            try:
                connecting = connect_all(transport, rank, roster, version)
            except ValueError as error:
                raise _no_store(error, rank) from error
        if connecting is None:
            if search.error is not None:  # once the roster is known, the store is hardly needed any more
                raise _no_store(search.error, rank) from search.error
            search.news.wait(_LOOK_MOST_S)
        else:
            try:
                next(connecting)
            except StopIteration as stop:
                found: Comm = stop.value
                return found
            except CommError:  # a rank with an old address has gone: the new one is still to come
                connecting = None
        yield False


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
