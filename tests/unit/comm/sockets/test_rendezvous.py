"""How ranks find each other: whoever is late, gives up, or was there before."""

from __future__ import annotations

import base64
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from deeppart.comm.channel import Comm
from deeppart.comm.sockets.address import Address
from deeppart.comm.sockets.rank_sockets import RankSockets
from deeppart.comm.sockets.rendezvous import Rendezvous, Search, _packed, meet
from deeppart.errors import CommError, PeerTimeoutError
from tests.unit.comm.worlds import LIMIT_S, do, on_all


class Shelf:
    """What is used of a store of torch."""

    def __init__(self) -> None:
        self.lock, self.values = threading.Lock(), dict[str, str]()
        self.places: dict[int, Rendezvous] = {}

    def set(self, key: str, value: str) -> None:
        with self.lock:
            self.values[key] = value

    def get(self, key: str) -> bytes:
        with self.lock:
            return self.values[key].encode()

    def add(self, key: str, amount: int) -> int:
        with self.lock:
            self.values[key] = str(int(self.values.get(key, "0")) + amount)
            return int(self.values[key])

    def check(self, keys: list[str]) -> bool:
        with self.lock:
            return all(key in self.values for key in keys)

    def delete_key(self, key: str) -> bool:
        with self.lock:
            return self.values.pop(key, None) is not None


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def start(
    shelf: Any, rank: int, size: int, timeout: float = LIMIT_S, secret: bytes | None = None, open_store: Any = None
) -> Comm:
    """One rank's start. Each rank of the test counts its own starts, as processes do."""
    with shelf.lock:
        rendezvous = shelf.places.setdefault(rank, Rendezvous(rank, size, lambda _: shelf, lambda: "127.0.0.1"))
    rendezvous.open_store = open_store or (lambda _: shelf)
    return meet(rendezvous, timeout, secret)


def use(comm: Any) -> Any:
    """All ranks talk, and end the session."""
    if isinstance(comm, Exception):
        return comm
    found = do(comm, comm.allgather(str(comm.rank).encode()))
    do(comm, comm.allgather(b""))
    comm.release()
    return found


def everyone(n: int) -> list[list[bytes]]:
    return [[str(rank).encode() for rank in range(n)]] * n


@pytest.mark.parametrize("n", [2, 3, 9])
def test_all_meet_again_and_again(shelf: Shelf, n: int) -> None:
    for _ in range(3):
        assert on_all(n, lambda rank: use(start(shelf, rank, n))) == everyone(n)
    assert not [key for key in shelf.values if key.startswith("rank/")], "what was used is taken away"


@pytest.mark.parametrize("late", [0, 1])
def test_a_start_that_was_given_up_does_not_stand_in_the_way(shelf: Shelf, late: int) -> None:
    """The first start of the late rank is not taken for the second of the others, whatever it was for."""
    given_up = threading.Event()

    def run(rank: int) -> Any:
        if rank == late:
            given_up.wait(LIMIT_S)
        with pytest.raises(PeerTimeoutError, match="connecting the ranks") as caught:
            start(shelf, rank, 2, timeout=0.5)
        given_up.set()
        return caught.value.summary, use(start(shelf, rank, 2))

    found = on_all(2, run)
    assert [talk for _, talk in found] == everyone(2), found


def test_who_did_not_come_is_named(shelf: Shelf) -> None:
    def run(rank: int) -> str:
        if rank == 2:
            return ""
        with pytest.raises(PeerTimeoutError) as caught:
            start(shelf, rank, 4, timeout=1.5)
        return caught.value.summary

    found = on_all(4, run)
    assert all("for rank 2" in found[rank] for rank in (0, 1, 3)), found
    assert not [key for key in shelf.values if key in ("rank/1", "rank/3")], "they do not come any more"


def old_address(start_number: int) -> Address:
    """Of a process that has ended."""
    sockets = RankSockets("127.0.0.1", 5.0, start_number)
    sockets.close(0)
    return sockets.address


@pytest.mark.parametrize("late_s", [0.0, 0.5])
@pytest.mark.parametrize("left", ["card", "roster", "both", "given-up", "later"])
def test_what_a_job_before_has_left_does_no_harm(shelf: Shelf, left: str, late_s: float) -> None:
    """An elastic job that starts again meets at the same store."""
    addresses = [old_address(2 if left == "later" else 1) for _ in range(3)]
    if left in ("card", "both", "later"):
        shelf.set("rank/2", addresses[2].encode().decode())
        shelf.add("came", 1)
    if left in ("roster", "both"):
        for version in (1, 2):
            shelf.set(f"roster/1/{version}", _packed(tuple(addresses)).decode())
    if left == "given-up":
        shelf.set(f"given-up/{addresses[1].public_key}", "")
        shelf.set("present", "[0, 1, 2]")

    def run(rank: int) -> Any:
        time.sleep(late_s * (rank == 2))  # what was left of rank 2 is believed meanwhile
        return use(start(shelf, rank, 3))

    assert on_all(3, run) == everyone(3)


def failing(error: Exception) -> Callable[[float], Any]:
    def open_store(timeout: float) -> Any:
        raise error

    return open_store


def test_no_store(shelf: Shelf) -> None:
    for rank in (0, 1):
        with pytest.raises(CommError, match="the ranks cannot meet") as caught:
            start(shelf, rank, 2, open_store=failing(ConnectionRefusedError("nobody there")))
        assert "nobody there" in str(caught.value) and "MASTER_ADDR" in str(caught.value)


def test_a_store_that_goes_away_once_the_roster_is_known_does_no_harm(shelf: Shelf) -> None:
    """As that of rank 0's process does, which may be the first to have met all others."""
    is_lost = threading.Event()

    class Losing(Shelf):
        def __init__(self, rank: int) -> None:
            self.rank, self.lock, self.values, self.has_roster = rank, shelf.lock, shelf.values, False

        def get(self, key: str) -> bytes:
            self.has_roster = key.startswith("roster")
            if self.has_roster and self.rank == 2:
                assert is_lost.wait(LIMIT_S)
                time.sleep(0.3)  # rank 1 has to wait for rank 2
            return super().get(key)

        def check(self, keys: list[str]) -> bool:
            if self.has_roster and self.rank == 1:
                is_lost.set()
                raise ConnectionResetError
            return super().check(keys)

    def run(rank: int) -> Any:
        return use(start(shelf, rank, 3, open_store=lambda _: Losing(rank)))

    assert on_all(3, run) == everyone(3)


SECRET, OTHER = b"s" * 32, b"o" * 32


def test_an_entry_of_a_stranger_is_none_of_a_rank(shelf: Shelf) -> None:
    """Well-formed, without a tag, with the tag of another secret, or with that of another rank's entry."""
    forged_address = old_address(1)
    text = forged_address.encode()

    def sealed(secret: bytes, key: str) -> str:
        return Search(threading.Event().wait, 0, 3, forged_address, secret)._sealed(key, text).decode()  # type: ignore[arg-type]

    for forged in (text.decode(), sealed(OTHER, "rank/1"), sealed(SECRET, "rank/2")):
        shelf.values.clear()
        shelf.places.clear()
        shelf.set("rank/1", forged)
        shelf.add("came", 1)
        with pytest.raises(PeerTimeoutError) as caught:
            start(shelf, 0, 2, timeout=1.0, secret=SECRET)
        assert "for rank 1" in caught.value.summary and "rank/1" in str(caught.value.found)
        assert "DEEPPART_SECRET_FILE" in str(caught.value.todo)


@pytest.mark.parametrize("text", [b"[" + b" " * (256 << 20), b"[0]", b"not compressed"], ids=["bomb", "other", "none"])
def test_a_roster_of_a_stranger_is_skipped(shelf: Shelf, text: bytes) -> None:
    packed = text if text == b"not compressed" else base64.b85encode(zlib.compress(text))
    shelf.set("roster/1/1", packed.decode())
    assert on_all(2, lambda rank: use(start(shelf, rank, 2))) == everyone(2)


def test_ranks_with_one_secret_meet_and_others_do_not(shelf: Shelf) -> None:
    for _ in range(2):
        assert on_all(3, lambda rank: use(start(shelf, rank, 3, secret=SECRET))) == everyone(3)

    def run(rank: int) -> str:
        with pytest.raises(PeerTimeoutError, match="connecting the ranks") as caught:
            start(shelf, rank, 3, timeout=2.0, secret=(SECRET, OTHER, None)[rank])
        return str(caught.value)

    found = on_all(3, run)
    assert all("skipped" in text and "give all ranks one DEEPPART_SECRET_FILE" in text for text in found), found


def test_a_store_that_hangs_ends_in_a_timeout(shelf: Shelf) -> None:
    over = threading.Event()

    def hang(timeout: float) -> Any:
        over.wait(60.0)

    began = time.monotonic()
    with pytest.raises(PeerTimeoutError):
        start(shelf, 1, 2, timeout=0.5, open_store=hang)
    assert time.monotonic() - began < 30.0
    over.set()
