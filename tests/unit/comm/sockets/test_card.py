"""How a rank is reached."""

from __future__ import annotations

import pytest

from deeppart.comm.sockets.card import Card, address_towards, host_name

CHANGES = (
    ("tcp://", "foo://"), (":1", ""), (":1", ":0"), (":1", ":65536"), ("k" * 40, "short"), ("k" * 40, "#" * 40),
    ("77", '"x"'),
)  # fmt: skip


def replace_text(card: Card, old: str, new: str) -> bytes:
    text = card.encode().decode()
    assert old in text
    return text.replace(old, new, 1).encode()


def test_a_card_comes_back() -> None:
    card = Card("tcp://10.0.0.1:1", "tcp://10.0.0.1:2", "k" * 40, host_name(), 77, 3, "call")
    assert Card.decode(card.encode()) == card
    changed = [replace_text(card, *pair) for pair in CHANGES]
    for bad in (b"", b"[]", b'{"address": 1}', b"\xff", *changed):
        with pytest.raises((ValueError, TypeError)):
            Card.decode(bad)


def test_the_host_is_the_same_within_a_host() -> None:
    assert host_name() == host_name()


def test_the_address_that_reaches_another_one() -> None:
    assert address_towards("127.0.0.1", 9) == "127.0.0.1"
    with pytest.raises(OSError, match=r"\w"):
        address_towards("no-such-host.invalid", 9)
