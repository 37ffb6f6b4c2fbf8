"""How the ranks of a session find each other: each leaves its card at a store, rank 0 publishes the roster.

The store is one that torch has for the job (``torch.distributed.Store``); it is not needed any more once the ranks have
met. What an earlier job, or a start that was given up, has left in it does no harm: a rank believes only a roster that
has the card in it which it made for this start; rank 0 makes a new one when a newer card comes; and the start is over
only when every rank has heard, directly or through others, that every rank has the same roster.

Whoever reaches the store's port can write there. What cannot be read is skipped, and, where the ranks share a secret
(``DEEPPART_SECRET_FILE``), what was made without it; the rank that it was to stand for is waited for.
"""

from __future__ import annotations

import hmac
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, TypeVar
from uuid import uuid4

import numpy as np

from deeppart._threads import start_thread
from deeppart.comm.base import Operation, rank_names
from deeppart.comm.single import SingleComm
from deeppart.comm.sockets import trees
from deeppart.comm.sockets.card import Card
from deeppart.comm.sockets.channel import CollectiveMessages, Link, SocketComm
from deeppart.comm.sockets.doors import Doors
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
_CHANNEL = 0
_CONNECTING = "connecting the ranks"


_lock = threading.Lock()
#: Name of what the ranks meet at -> starts of this process there. Guarded by the lock.
_starts: Counter[str] = Counter()
#: The same -> held by the start that is under way there. Guarded by the lock.
_turns: dict[str, threading.Lock] = {}


class Store(Protocol):
    """What is used of ``torch.distributed.Store``."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def delete_key(self, key: str, /) -> bool: ...


class Meeting:
    """One rank's side of a start. Its thread talks to the store, whose calls cannot be bounded.

    Attributes:
        roster: version, and the cards in rank order; None as long as there is none with this rank's card.
        is_given_up: rank 0 has given up the start that this is, and is in a later one.
        error: why the thread has ended; None while it runs.
        here: ranks that have come, as far as it is known.
        skipped: lines about what is in the store and is not believed.
    """

    def __init__(
        self, open_store: Callable[[], Store], rank: int, size: int, card: Card, secret: bytes | None = None
    ) -> None:
        self._open_store, self._rank, self._size, self._card = open_store, rank, size, card
        self._secret = secret
        self._over = threading.Event()
        # Written by the thread alone, each in one assignment.
        self.roster: tuple[int, tuple[Card, ...]] | None = None
        self.error: BaseException | None = None
        self.is_given_up = False
        self.here = {rank}
        self.skipped: tuple[str, ...] = ()
        self._thread = start_thread(self._run, "deeppart-meeting", self._failed)

    def end(self) -> None:
        """The start is over, or given up: look at the store no more."""
        self._over.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        store = self._open_store()
        if self._over.is_set():  # nobody is to wait for a rank that has given up
            return
        if self._rank == 0:
            self._receive(store)
        else:
            self._register(store)

    def _failed(self, error: BaseException) -> None:
        """Of whatever kind torch has for it."""
        self.error = error

    def _sealed(self, key: str, text: bytes) -> bytes:
        """What to leave under a key, which is in the tag: a card of one rank is none of another's."""
        if self._secret is None:
            return text
        job = f"{scheduled_job()}\0{self._size}\0{key}\0"  # a card of another job with the same secret is none of this
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
            except (ValueError, TypeError, OverflowError, RecursionError):
                reason = "it cannot be read"
        line = f"skipped {key} in the store where ranks meet: {reason}"
        if line not in self.skipped:
            self.skipped = (*self.skipped, line)
            say(f"rank {self._rank} has {line}")
        return None

    def _roster_key(self, version: int) -> str:
        return f"roster/{self._card.start}/{version}"

    def _register(self, store: Store) -> None:
        """Of any rank but 0: leave the card, and wait for a roster that has it."""
        own, version, asked_at = f"card/{self._rank}", 0, time.monotonic()
        self._leave(store, own, self._card.encode())
        store.add("came", 1)
        for pause_s in _pauses_s(self._size):
            if self._over.wait(pause_s):
                break
            while store.check([self._roster_key(version + 1)]):
                version += 1
                cards = self._look(store, self._roster_key(version), _roster)
                if cards is not None and len(cards) == self._size and cards[self._rank] == self._card:
                    self.roster, self.here = (version, cards), set(range(self._size))
            if self.roster is None and time.monotonic() - asked_at > _ASK_S:
                asked_at = time.monotonic()
                given_up = f"given-up/{self._card.call}"
                if store.check([given_up]) and self._look(store, given_up, bytes) is not None:
                    self.is_given_up = True
                    return
                if store.check(["here"]) and (here := self._look(store, "here", _ranks)) is not None:
                    self.here = here | {self._rank}
        if self.roster is None and store.check([own]) and store.get(own) == self._sealed(own, self._card.encode()):
            store.delete_key(own)  # unless it is that of the next start already

    def _receive(self, store: Store) -> None:
        """Of rank 0: collect the cards, and publish the roster whenever all are there and one is new."""
        found = {0: self._card}
        came, said_at, version = -1, 0.0, 0
        for pause_s in _pauses_s(self._size):
            before, came = came, store.add("came", 0)
            if came != before and self._collect(store, found) and len(found) == self._size:
                cards = tuple(found[rank] for rank in range(self._size))
                version += 1
                while store.check([self._roster_key(version)]):
                    version += 1  # of processes before these: nobody finds his card in it
                self._leave(store, self._roster_key(version), json.dumps([asdict(card) for card in cards]).encode())
                self.roster, self.here = (version, cards), set(found)
            if time.monotonic() - said_at > _SAY_S and len(found) < self._size:
                said_at = time.monotonic()
                self.here = set(found)
                self._leave(store, "here", json.dumps(sorted(found)).encode())
            if self._over.wait(pause_s):
                return

    def _collect(self, store: Store, found: dict[int, Card]) -> bool:
        """Take the cards that have been left; True if there was a new one."""
        is_new = False
        for rank in range(1, self._size):
            key = f"card/{rank}"
            if store.check([key]):
                card = self._look(store, key, Card.decode)
                if card is None or card.start > self._card.start:
                    continue  # of no rank; or it has given up the start that this rank is in, and waits for the next
                store.delete_key(key)
                if card.start < self._card.start:
                    self._leave(store, f"given-up/{card.call}", b"")
                    continue
                is_new = is_new or found.get(rank) != card
                found[rank] = card
        return is_new


def _roster(text: bytes) -> tuple[Card, ...]:
    return tuple(Card(**each) for each in json.loads(text))


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
        meeting: where the ranks meet; None before that has begun.
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size = rank, size
        self.meeting: Meeting | None = None

    def heard(self) -> set[int]:
        """Ranks that have come, as far as it is known."""
        return {self.rank} if self.meeting is None else set(self.meeting.here)


@dataclass(frozen=True, slots=True)
class Place:
    """Where ranks meet.

    Attributes:
        name: no two places of this process have the same.
        rank, size: this rank and the number of ranks.
        open_store: connects to the store; takes as long as it may.
        interface: finds where this rank listens; see :class:`Doors`.
    """

    name: str
    rank: int
    size: int
    open_store: Callable[[], Store]
    interface: Callable[[], str]


def meet(place: Place, timeout: float, secret: bytes | None = None) -> SocketComm:
    """A channel between all ranks that meet at a place (collective). The first start of one rank is that of all."""
    arrivals = Arrivals(place.rank, place.size)
    with _lock:
        in_turn = _turns.setdefault(place.name, threading.Lock())
    if not in_turn.acquire(timeout=timeout):  # the starts of several threads
        raise PeerTimeoutError(
            f"{_CONNECTING}: another start of this process has not ended", where=f"rank {place.rank}"
        )
    operation = _connected(place, arrivals, timeout, secret)
    try:
        return finish(arrivals, operation, _CONNECTING, timeout)
    except PeerTimeoutError as error:
        if arrivals.meeting is not None and arrivals.meeting.skipped:
            error.found = "; ".join(arrivals.meeting.skipped[:5])
            error.todo = "give all ranks one DEEPPART_SECRET_FILE, or none; or somebody else writes there (SECURITY.md)"
        raise
    finally:
        operation.close()  # if it was given up, sockets and thread go now, not when the error is forgotten
        in_turn.release()


def _connected(place: Place, arrivals: Arrivals, silence_s: float, secret: bytes | None) -> Operation[SocketComm]:
    rank, size = place.rank, place.size
    with _lock:
        _starts[place.name] += 1
        start = _starts[place.name]
    transport = Transport(Doors(place.interface(), start, uuid4().hex, silence_s))
    meeting = arrivals.meeting = Meeting(place.open_store, rank, size, transport.card, secret)
    version, agreeing = 0, None
    try:
        while True:
            if meeting.error is not None:
                raise _no_store(meeting.error, rank) from meeting.error
            if meeting.is_given_up:
                raise PeerTimeoutError(
                    f"{_CONNECTING}: rank 0 has waited in vain, and is at its next try already",
                    where=f"rank {rank}",
                    todo="try again on this rank as well; raise `timeout` if it was only slow",
                )
            if meeting.roster is not None and meeting.roster[0] != version:
                version, cards = meeting.roster
                _check_hosts(cards)
                try:
                    transport.know(cards, rank, version)
                except ValueError as error:
                    raise _no_store(error, rank) from error
                messages = CollectiveMessages(transport, rank, size, _CHANNEL, version)
                agreeing = trees.maximum(messages, np.zeros(1, dtype=np.int64))
            if agreeing is not None:
                try:
                    next(agreeing)
                except StopIteration:
                    return Link(transport, rank, size).next_channel()
                except CommError:  # one whose card is old is gone: it is to come yet
                    agreeing = None
            yield False
    except BaseException:
        transport.close()
        raise
    finally:
        meeting.end()


def _check_hosts(cards: Sequence[Card]) -> None:
    """Addresses that other hosts can reach."""
    if len({card.host for card in cards}) == 1:
        return
    alone = [rank for rank, card in enumerate(cards) if card.address.startswith(("tcp://127.", "tcp://[::1]"))]
    if alone:
        raise CommError(
            f"{rank_names(alone)} listen where only their own host can reach them",
            expected="the address of an interface that the nodes reach each other on",
            found=cards[alone[0]].address,
            todo="set MASTER_ADDR to a name that is no local one, or GLOO_SOCKET_IFNAME to the interface's name",
        )


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
