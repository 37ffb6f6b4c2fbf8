"""The sockets of a rank: where they listen."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from deeppart.comm.channel import Comm
from deeppart.comm.messages import Kind, packed, unpacked
from deeppart.comm.sockets import peer_memory
from deeppart.comm.sockets.rank_sockets import RankSockets
from deeppart.errors import CommError
from tests.unit.comm.worlds import do, on_all, transport_of, world


def listening(port: int) -> set[str]:
    """Local addresses, as the kernel shows them, on which something listens at a port."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            place, state = line.split()[1], line.split()[3]
            if state == "0A" and int(place.split(":")[1], 16) == port:
                found.add(place.split(":")[0])
    return found


@pytest.mark.parametrize("interface", ["127.0.0.1", "lo"])
def test_only_the_interface_that_is_named_is_bound(interface: str) -> None:
    rank_sockets = RankSockets(interface, 5.0)
    for address in (rank_sockets.address.messages, rank_sockets.address.pieces):
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        assert host == "127.0.0.1"
        assert listening(int(port)) == {"0100007F"}
    rank_sockets.close(0)


#: What ZeroMQ says to anybody, before it knows who it is: signature, version, mechanism, 64 bytes.
GREETING_BYTES = 64


@pytest.fixture
def pair() -> Iterator[list[Comm]]:
    with world(2) as comms:
        yield comms


def ports(comm: Comm) -> list[int]:
    address = transport_of(comm).address
    return [int(each.rpartition(":")[2]) for each in (address.messages, address.pieces)]


def works(pair: list[Comm]) -> bool:
    """Short and long messages, in both directions, with the right bytes."""

    def run(rank: int) -> bool:
        there, here = np.full(300_000, rank, dtype=np.uint8), np.zeros(300_000, dtype=np.uint8)
        moves = [pair[rank].receive_into(here, 1 - rank, 0), pair[rank].send(there, 1 - rank, 0)]
        for each in moves:
            do(pair[rank], each)
        return bool((here == 1 - rank).all()) and do(pair[rank], pair[rank].allgather(b"x")) == [b"x", b"x"]

    return on_all(2, run) == [True, True]


def scans() -> list[bytes]:
    """What port scanners and attackers begin with."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01"
    return [
        b"",
        b"\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        bytes(8),
        *(struct.pack("<q", rank) for rank in range(4)),  # how gloo's ranks name themselves
        b"\x16\x03\x01\x00\x5f\x01\x00" + os.urandom(88),
        os.urandom(5000),
        bytes(100_000),
        *(greeting + name.ljust(20, b"\0") + bytes(32) for name in (b"NULL", b"PLAIN", b"CURVE", b"GSSAPI")),
        greeting + b"NULL".ljust(20, b"\0") + bytes(32) + b"\x04\x26\x05READY" + os.urandom(64),
        greeting + b"PLAIN".ljust(20, b"\0") + bytes(32) + b"\x04\x0c\x05HELLO\x010\x04" + os.urandom(4),
    ]


def test_a_port_scan(pair: list[Comm]) -> None:
    assert works(pair)
    connections = []
    for comm in pair:
        for port in ports(comm):
            for said in scans():
                connection = socket.create_connection(("127.0.0.1", port))
                connection.sendall(said)
                connections.append(connection)
    assert works(pair), "while they are connected"
    for connection in connections:
        connection.settimeout(0.05)
        heard = b""
        try:
            while len(heard) < 10_000 and (more := connection.recv(4096)):
                heard += more
        except (TimeoutError, ConnectionError):
            pass
        assert len(heard) <= GREETING_BYTES + 50, f"{heard!r}"
        connection.close()
    assert works(pair)


@pytest.mark.parametrize("how", ["null", "a key of its own", "the key of a rank", "a guess", "another's"])
def test_a_stranger_that_speaks_the_protocol(pair: list[Comm], how: str) -> None:
    """It knows everything that can be read at the store, and sends what a rank would send."""
    assert works(pair)
    addresses = [transport_of(comm).address for comm in pair]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.set(zmq.LINGER, 0)
    monitor = stranger.get_monitor_socket(zmq.Event.HANDSHAKE_SUCCEEDED)
    endpoint = addresses[1].messages
    if how in ("a key of its own", "the key of a rank"):
        public, private = zmq.curve_keypair()
        stranger.set(zmq.CURVE_SERVERKEY, addresses[1].public_key.encode())
        stranger.set(zmq.CURVE_SECRETKEY, private)
        stranger.set(zmq.CURVE_PUBLICKEY, public if how == "a key of its own" else addresses[0].public_key.encode())
    elif how != "null":
        endpoint = addresses[1].pieces
        stranger.set(zmq.PLAIN_USERNAME, b"0")
        mine = transport_of(pair[0])._sockets.authenticator.password(0)
        stranger.set(zmq.PLAIN_PASSWORD, {"a guess": b"0" * 64, "another's": mine}[how])
    stranger.connect(endpoint)
    header = packed(Kind.SHORT, (1, 0, 1))
    for _ in range(3):
        stranger.send_multipart([header + bytes(8)] if endpoint == addresses[1].messages else [header, bytes(8)])
    assert not monitor.poll(400), "it was let in"
    here = np.zeros(8, dtype=np.uint8)
    waiting = pair[1].receive_into(here, 0, 7)
    next(waiting)
    assert works(pair) and not here.any()
    assert not stranger.poll(0), "it was told something"
    context.destroy(linger=0)


def let_in_everybody(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Answer ZeroMQ's requests for authentication until the context ends."""
    handler = context.socket(zmq.REP)
    handler.bind("inproc://zeromq.zap.01")
    with contextlib.suppress(zmq.ZMQError):
        while True:
            handler.send_multipart([b"1.0", handler.recv_multipart()[1], b"200", b"", b"", b""])
    handler.close(0)


@pytest.mark.parametrize("said", ["what was asked for", "nonsense"])
def test_who_takes_the_port_of_a_dead_rank_is_not_believed(
    pair: list[Comm], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lets in everybody, and sends what a rank would."""

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(peer_memory, "read_memory", refuse)
    here = np.zeros(5_000_000, dtype=np.uint8)
    sending, receiving = pair[0].send(np.full(5_000_000, 7, dtype=np.uint8), 1, 5), pair[1].receive_into(here, 0, 5)
    next(sending)
    monkeypatch.setattr(transport_of(pair[1]), "_fetch", lambda *_: False)  # it has seen the offer, and no more
    offered = transport_of(pair[1])._offered
    while not any(offered.values()):
        next(receiving)
    monkeypatch.undo()
    monkeypatch.setattr(peer_memory, "read_memory", refuse)
    port = ports(pair[0])[1]
    transport_of(pair[0])._closed = True
    transport_of(pair[0])._finalizer()  # as the kernel does when a process is killed
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    threading.Thread(target=let_in_everybody, args=(context,), daemon=True).start()
    stranger = context.socket(zmq.ROUTER)
    stranger.set(zmq.PLAIN_SERVER, 1)
    stranger.set(zmq.ZAP_DOMAIN, b"any")
    stranger.bind(f"tcp://127.0.0.1:{port}")
    asked = 0
    with pytest.raises(CommError, match="rank 0 of this job: gone"):
        while True:
            next(receiving)
            if stranger.poll(10):
                route, header = stranger.recv_multipart()
                kind, key, offset, _ = unpacked(header)
                assert kind == Kind.READY
                piece = bytes(min(1 << 20, here.size - offset))
                good = [route, packed(Kind.PIECE, key, offset), piece]
                stranger.send_multipart(good if said == "what was asked for" else [route, b"x", header, b"", piece])
                asked += 1
    assert asked == 5
    stranger.close(0)
    context.term()
